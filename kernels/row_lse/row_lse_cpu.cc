#include "kernels/row_lse/row_lse_cpu.h"

#include <dnnl.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "base/status_macros.h"
#include "kernels/onednn/onednn.h"
#include "kernels/simd/scratch_buffer.h"
#include "kernels/simd/simd.h"
#include "kernels/sparse_attention/softmax_rows.h"

namespace overture::kernels {
namespace {

constexpr int64_t kBlockKeys = 512;  // fp32 keys of a block: 256 KB at most
constexpr int64_t kRunKeys = 8 * kBlockKeys;
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// `count` elements as fp32; reads nothing past them.
OVERTURE_SIMD_CLONES void Widen(const BFloat16* from, int64_t count,
                                float* to) {
  int64_t i = 0;
  for (; i + simd::kLanes <= count; i += simd::kLanes) {
    simd::Store(to + i, simd::Load(from + i));
  }
  for (; i < count; ++i) to[i] = static_cast<float>(from[i]);
}

void LoadRow(DType dtype, const void* base, int64_t offset, int64_t count,
             float* to) {
  if (dtype == DType::kBF16) {
    Widen(static_cast<const BFloat16*>(base) + offset, count, to);
  } else {
    std::copy_n(static_cast<const float*>(base) + offset, count, to);
  }
}

// Logits to weights, in place: 2^(logit * scale_log2 - lse_log2).
OVERTURE_SIMD_CLONES void ToWeights(float* row, int64_t count, float scale_log2,
                                    float lse_log2) {
  int64_t i = 0;
  for (; i + simd::kLanes <= count; i += simd::kLanes) {
    simd::Store(row + i,
                simd::Exp2(simd::Load(row + i) * scale_log2 - lse_log2));
  }
  for (; i < count; ++i) row[i] = std::exp2(row[i] * scale_log2 - lse_log2);
}

class RowLse {
 public:
  explicit RowLse(const RowLseParams& params)
      : p_(params),
        group_(params.num_q_heads / params.num_kv_heads),
        rows_(params.rows_per_kv_head()),
        last_(*std::max_element(params.positions.begin(),
                                params.positions.end())),
        num_runs_(last_ / kRunKeys + 1),
        parts_(p_.num_kv_heads * num_runs_ * rows_, {kMinusInf, 0.0f}) {
    queries_.resize(p_.num_kv_heads * rows_ * p_.head_dim);
    for (int64_t i = 0; i < p_.num_kv_heads * rows_; ++i) {
      LoadRow(p_.dtype, p_.q,
              SampleOf(i % rows_) * p_.stride_q_row +
                  QueryHead(i / rows_, i % rows_) * p_.stride_q_head,
              p_.head_dim, &queries_[i * p_.head_dim]);
    }
  }

  absl::Status Run() {
    std::atomic<bool> failed = false;
    const int64_t num_items = p_.num_kv_heads * num_runs_;
#pragma omp parallel for schedule(dynamic)
    for (int64_t item = 0; item < num_items; ++item) {
      if (!AddRun(item / num_runs_, item % num_runs_)) failed = true;
    }
    if (failed) return absl::InternalError("row lse: matrix product failed");
    for (int64_t kv_head = 0; kv_head < p_.num_kv_heads; ++kv_head) {
      for (int64_t r = 0; r < rows_; ++r) {
        p_.lse[OutputOf(kv_head, r)] = Merged(kv_head, r);
      }
    }
    if (p_.weights == nullptr) return absl::OkStatus();
#pragma omp parallel for schedule(dynamic)
    for (int64_t i = 0; i < p_.num_kv_heads * rows_; ++i) {
      const int64_t output = OutputOf(i / rows_, i % rows_);
      const int64_t visible = p_.positions[SampleOf(i % rows_)] + 1;
      float* weights = p_.weights + output * p_.kv_len;
      ToWeights(weights, visible, p_.scale * simd::kLog2E,
                p_.lse[output] * simd::kLog2E);
      std::fill(weights + visible, weights + p_.kv_len, 0.0f);
    }
    return absl::OkStatus();
  }

 private:
  // Row r of a KV head is a query head of a sampled row.
  int64_t SampleOf(int64_t r) const { return r / group_; }
  int64_t QueryHead(int64_t kv_head, int64_t r) const {
    return kv_head * group_ + r % group_;
  }
  int64_t OutputOf(int64_t kv_head, int64_t r) const {
    return SampleOf(r) * p_.num_q_heads + QueryHead(kv_head, r);
  }

  bool AddRun(int64_t kv_head, int64_t run) {
    const onednn::SingleThreaded single;
    thread_local ScratchBuffer scratch;
    float* keys =
        scratch.Reserve<float>(kBlockKeys * (p_.head_dim + rows_ + 1));
    float* scores = keys + kBlockKeys * p_.head_dim;
    float* weights = scores + kBlockKeys * rows_;
    SoftmaxRow* parts = &parts_[(kv_head * num_runs_ + run) * rows_];
    const int64_t end = std::min((run + 1) * kRunKeys, last_ + 1);
    for (int64_t begin = run * kRunKeys; begin < end; begin += kBlockKeys) {
      const int64_t count = std::min(kBlockKeys, end - begin);
      for (int64_t c = 0; c < count; ++c) {
        LoadRow(p_.dtype, p_.k,
                kv_head * p_.stride_k_head + (begin + c) * p_.stride_k_row,
                p_.head_dim, keys + c * p_.head_dim);
      }
      if (dnnl_sgemm('N', 'T', rows_, count, p_.head_dim, 1.0f,
                     &queries_[kv_head * rows_ * p_.head_dim], p_.head_dim,
                     keys, p_.head_dim, 0.0f, scores,
                     kBlockKeys) != dnnl_success) {
        return false;
      }
      for (int64_t r = 0; r < rows_; ++r) {
        const int64_t visible =
            std::min(count, p_.positions[SampleOf(r)] + 1 - begin);
        if (visible <= 0) continue;
        float* row = scores + r * kBlockKeys;
        if (p_.weights != nullptr) {
          std::copy_n(row, visible,
                      p_.weights + OutputOf(kv_head, r) * p_.kv_len + begin);
        }
        const int64_t padded =
            (visible + simd::kLanes - 1) / simd::kLanes * simd::kLanes;
        std::fill(row + visible, row + padded, kMinusInf);
        UpdateRow(row, padded, p_.scale * simd::kLog2E, parts[r], weights);
      }
    }
    return true;
  }

  float Merged(int64_t kv_head, int64_t r) const {
    constexpr double kLn2 = 0.6931471805599453;
    double max = kMinusInf;
    double sum = 0;
    for (int64_t run = 0; run < num_runs_; ++run) {
      const SoftmaxRow& part = parts_[(kv_head * num_runs_ + run) * rows_ + r];
      if (part.max == kMinusInf) continue;
      const double next = std::max<double>(max, part.max);
      sum = sum * std::exp2(max - next) +
            double{part.sum} * std::exp2(part.max - next);
      max = next;
    }
    return static_cast<float>((max + std::log2(sum)) * kLn2);
  }

  const RowLseParams& p_;
  const int64_t group_;
  const int64_t rows_;
  const int64_t last_;  // position of any row
  const int64_t num_runs_;
  std::vector<float> queries_;     // [num_kv_heads, rows, head_dim]
  std::vector<SoftmaxRow> parts_;  // [num_kv_heads, runs, rows]
};

}  // namespace

absl::Status RowLseCpu(const RowLseParams& params) {
  OVERTURE_RETURN_IF_ERROR(CheckRowLse(params));
  return RowLse(params).Run();
}

}  // namespace overture::kernels
