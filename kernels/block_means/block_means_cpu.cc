#include "kernels/block_means/block_means_cpu.h"

#include <bit>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace overture::kernels {
namespace {

absl::Status Bad(absl::string_view field, int64_t value,
                 absl::string_view limit) {
  return absl::InvalidArgumentError(
      absl::StrCat("block means: ", field, " is ", value, ", must be ", limit));
}

template <typename T>
void MeanOfBlock(const T* rows, int64_t stride_row, int32_t block_rows,
                 int32_t head_dim, T* mean) {
  std::vector<float> total(head_dim);
  std::vector<float> part(head_dim);
  for (int32_t g = 0; g < block_rows / kMeanPartRows; ++g) {
    part.assign(head_dim, 0.0f);
    for (int32_t r = 0; r < kMeanPartRows; ++r, rows += stride_row) {
      for (int32_t i = 0; i < head_dim; ++i) {
        part[i] += static_cast<float>(rows[i]);
      }
    }
    for (int32_t i = 0; i < head_dim; ++i) total[i] += part[i];
  }
  for (int32_t i = 0; i < head_dim; ++i) {
    mean[i] = T(total[i] * (1.0f / static_cast<float>(block_rows)));
  }
}

template <typename T>
void Run(const BlockMeansParams& p) {
  const int64_t blocks = p.block_end - p.block_begin;
#pragma omp parallel for
  for (int64_t item = 0; item < p.num_heads * blocks; ++item) {
    const int64_t head = item / blocks;
    const int64_t block = p.block_begin + item % blocks;
    MeanOfBlock(static_cast<const T*>(p.rows) + head * p.stride_head +
                    block * p.block_rows * p.stride_row,
                p.stride_row, p.block_rows, p.head_dim,
                static_cast<T*>(p.means) + head * p.stride_mean_head +
                    block * p.stride_mean_row);
  }
}

}  // namespace

absl::Status CheckBlockMeans(const BlockMeansParams& params) {
  if (params.dtype != DType::kBF16 && params.dtype != DType::kF32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "block means: dtype is ", Name(params.dtype), ", must be bf16 or f32"));
  }
  if (params.num_heads < 1) return Bad("num_heads", params.num_heads, ">= 1");
  if (params.head_dim < 8 || params.head_dim > 512 || params.head_dim % 8) {
    return Bad("head_dim", params.head_dim, "a multiple of 8 in [8, 512]");
  }
  if (params.block_rows < kMeanPartRows || params.block_rows > kMeanBlockKeys ||
      !std::has_single_bit(static_cast<uint32_t>(params.block_rows))) {
    return Bad("block_rows", params.block_rows, "a power of two in [16, 128]");
  }
  if (params.block_begin < 0 || params.block_end < params.block_begin) {
    return Bad("block_end", params.block_end, ">= block_begin >= 0");
  }
  if (params.rows == nullptr || params.means == nullptr) {
    return absl::InvalidArgumentError("block means: rows or means is null");
  }
  return absl::OkStatus();
}

absl::Status BlockMeansCpu(const BlockMeansParams& params) {
  OVERTURE_RETURN_IF_ERROR(CheckBlockMeans(params));
  if (params.dtype == DType::kF32) {
    Run<float>(params);
  } else {
    Run<BFloat16>(params);
  }
  return absl::OkStatus();
}

}  // namespace overture::kernels
