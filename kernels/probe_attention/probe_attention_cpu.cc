#include "kernels/probe_attention/probe_attention_cpu.h"

#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <new>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

// Compiled once per instruction set and chosen at load: the build targets plain
// x86-64. Sanitizers cannot instrument the loader's choice.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__)
#define OVERTURE_SIMD_CLONES \
  __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define OVERTURE_SIMD_CLONES
#endif

namespace overture::kernels {
namespace {

constexpr int64_t kKeyBlock = 512;  // 128 KiB of fp32 keys at head dim 64: L2
constexpr int64_t kSumBlock = 2048;
constexpr int kLanes = 16;  // partial sums of a row; fixes the order of adds

OVERTURE_SIMD_CLONES
void WidenRow(const uint16_t* from, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) {
    to[i] = std::bit_cast<float>(static_cast<uint32_t>(from[i]) << 16);
  }
}

// Row `row` of a strided tensor as fp32.
void LoadRow(DType dtype, const void* base, int64_t offset, int64_t count,
             float* to) {
  if (dtype == DType::kBF16) {
    WidenRow(static_cast<const uint16_t*>(base) + offset, count, to);
  } else {
    std::copy_n(static_cast<const float*>(base) + offset, count, to);
  }
}

// exp(x) for x <= 0 within 2 ULP; 0 below -87. Branch-free, so that it
// vectorises; libm's does not without -ffast-math. Cody-Waite reduction and the
// polynomial of Cephes' expf.
[[gnu::always_inline]] inline float ExpNonPositive(float x) {
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: rounds to an integer
  const float clamped = x < -87.0f ? -87.0f : x;
  const float shifted = clamped * 1.44269504f + kRound;
  const int32_t exponent =
      std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound);
  const float n = shifted - kRound;
  const float r = (clamped - n * 0.693359375f) + n * 2.12194440e-4f;
  float y = 1.9875691500e-4f;
  y = y * r + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  const float scaled = y * std::bit_cast<float>((exponent + 127) << 23);
  return x < -87.0f ? 0.0f : scaled;
}

// Turns the logits [0, visible) into exp(logit - max), zeroes [visible, total)
// and returns 1 / their sum.
OVERTURE_SIMD_CLONES
float SoftmaxRow(float* row, int64_t visible, int64_t total) {
  float max_lanes[kLanes];
  std::fill_n(max_lanes, kLanes, -std::numeric_limits<float>::infinity());
  const int64_t full = visible / kLanes * kLanes;
  for (int64_t c = 0; c < full; c += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      max_lanes[j] = row[c + j] > max_lanes[j] ? row[c + j] : max_lanes[j];
    }
  }
  float max = *std::max_element(max_lanes, max_lanes + kLanes);
  for (int64_t c = full; c < visible; ++c) max = std::max(max, row[c]);

  float sum_lanes[kLanes] = {};
  for (int64_t c = 0; c < full; c += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      row[c + j] = ExpNonPositive(row[c + j] - max);
      sum_lanes[j] += row[c + j];
    }
  }
  float sum = 0;
  for (const float lane : sum_lanes) sum += lane;
  for (int64_t c = full; c < visible; ++c) {
    row[c] = ExpNonPositive(row[c] - max);
    sum += row[c];
  }
  std::fill(row + visible, row + total, 0.0f);
  return 1.0f / sum;
}

OVERTURE_SIMD_CLONES
void AddScaled(const float* from, float scale, int64_t count, float* to) {
  for (int64_t i = 0; i < count; ++i) to[i] += from[i] * scale;
}

// One call's sizes and scratch. P of one head is kept as exp(logit - row max)
// and the rows' inverse sums.
class Probe {
 public:
  explicit Probe(const ProbeAttentionParams& params)
      : p_(params),
        group_(params.num_q_heads / params.num_kv_heads),
        num_key_blocks_((params.kv_len + kKeyBlock - 1) / kKeyBlock),
        num_sum_blocks_((params.kv_len + kSumBlock - 1) / kSumBlock) {}

  absl::Status Allocate() {
    const int64_t d = p_.head_dim;
    const int64_t threads = omp_get_max_threads();
    exps_.reset(new (std::nothrow) float[p_.num_rows * p_.kv_len]);
    queries_.reset(new (std::nothrow) float[p_.num_rows * d]);
    inverse_sums_.reset(new (std::nothrow) float[p_.num_rows]);
    keys_.reset(new (std::nothrow) float[threads * kKeyBlock * d]);
    if (!exps_ || !queries_ || !inverse_sums_ || !keys_) {
      return absl::ResourceExhaustedError(
          absl::StrCat("probe attention: no memory for ", p_.num_rows, " x ",
                       p_.kv_len, " probabilities"));
    }
    return absl::OkStatus();
  }

  absl::Status RunHead(int32_t head) {
    for (int64_t i = 0; i < p_.num_rows; ++i) {
      float* row = &queries_[i * p_.head_dim];
      LoadRow(p_.dtype, p_.q, i * p_.stride_q_row + head * p_.stride_q_head,
              p_.head_dim, row);
      // Here, not as the product's alpha: for one of 0 oneDNN's AVX-512 code
      // leaves what was in memory, be it a NaN.
      for (int64_t j = 0; j < p_.head_dim; ++j) row[j] *= p_.scale;
    }
    std::atomic<bool> failed = false;
#pragma omp parallel
    {
#pragma omp for schedule(static)
      for (int64_t block = 0; block < num_key_blocks_; ++block) {
        if (!Logits(head, block)) failed = true;
      }
#pragma omp for schedule(static)
      for (int64_t i = 0; i < p_.num_rows; ++i) {
        inverse_sums_[i] = SoftmaxRow(
            &exps_[i * p_.kv_len], p_.kv_len - p_.num_rows + i + 1, p_.kv_len);
      }
      if (p_.column_sums != nullptr || p_.window_votes != nullptr) {
#pragma omp for schedule(static) nowait
        for (int64_t block = 0; block < num_sum_blocks_; ++block) {
          SumColumns(head, block);
        }
      }
      if (p_.diagonal_sums != nullptr) {
#pragma omp for schedule(static)
        for (int64_t block = 0; block < num_sum_blocks_; ++block) {
          SumDiagonals(head, block);
        }
      }
    }
    if (failed) {
      return absl::InternalError("probe attention: matrix product failed");
    }
    return absl::OkStatus();
  }

 private:
  // Logits of all rows against one block of keys.
  bool Logits(int32_t head, int64_t block) {
    const int64_t d = p_.head_dim;
    const int64_t begin = block * kKeyBlock;
    const int64_t count = std::min(kKeyBlock, p_.kv_len - begin);
    float* keys = &keys_[omp_get_thread_num() * kKeyBlock * d];
    const int64_t base = (head / group_) * p_.stride_k_head;
    for (int64_t c = 0; c < count; ++c) {
      LoadRow(p_.dtype, p_.k, base + (begin + c) * p_.stride_k_row, d,
              keys + c * d);
    }
    return dnnl_sgemm('N', 'T', p_.num_rows, count, d, 1.0f, queries_.get(), d,
                      keys, d, 0.0f, &exps_[begin], p_.kv_len) == dnnl_success;
  }

  void SumColumns(int32_t head, int64_t block) {
    const int64_t begin = block * kSumBlock;
    const int64_t count = std::min(kSumBlock, p_.kv_len - begin);
    const auto sum_rows = [&](int64_t first_row, float* sums) {
      std::fill_n(sums, count, 0.0f);
      for (int64_t i = first_row; i < p_.num_rows; ++i) {
        AddScaled(&exps_[i * p_.kv_len + begin], inverse_sums_[i], count, sums);
      }
    };
    if (p_.column_sums != nullptr) {
      sum_rows(0, p_.column_sums + head * p_.kv_len + begin);
    }
    if (p_.window_votes != nullptr) {
      float sums[kSumBlock];
      sum_rows(p_.num_rows - p_.window_rows, sums);
      float* votes = p_.window_votes + (head / group_) * p_.kv_len + begin;
      // Heads come in order, so the mean over a group adds in order.
      if (head % group_ == 0) std::fill_n(votes, count, 0.0f);
      AddScaled(sums, 1.0f / static_cast<float>(group_), count, votes);
    }
  }

  // Distances [N - end, N - begin) for the block's [begin, end): row i at
  // distance D reads column N - R + i - D, so that over u = N - 1 - D each row
  // is one contiguous read.
  void SumDiagonals(int32_t head, int64_t block) {
    const int64_t n = p_.kv_len;
    const int64_t begin = block * kSumBlock;
    const int64_t end = std::min(begin + kSumBlock, n);
    float sums[kSumBlock] = {};
    for (int64_t i = 0; i < p_.num_rows; ++i) {
      const int64_t shift = p_.num_rows - 1 - i;  // column = u - shift
      const int64_t first = std::max(begin, shift);
      if (first >= end) continue;
      AddScaled(&exps_[i * n + first - shift], inverse_sums_[i], end - first,
                sums + (first - begin));
    }
    float* out = p_.diagonal_sums + head * n;
    for (int64_t u = begin; u < end; ++u) out[n - 1 - u] = sums[u - begin];
  }

  const ProbeAttentionParams& p_;
  const int32_t group_;
  const int64_t num_key_blocks_;
  const int64_t num_sum_blocks_;
  std::unique_ptr<float[]> exps_;          // [num_rows, kv_len]
  std::unique_ptr<float[]> queries_;       // [num_rows, head_dim], scaled
  std::unique_ptr<float[]> inverse_sums_;  // [num_rows]
  std::unique_ptr<float[]> keys_;          // [threads, kKeyBlock, head_dim]
};

}  // namespace

absl::Status ProbeAttentionCpu(const ProbeAttentionParams& params) {
  OVERTURE_RETURN_IF_ERROR(CheckProbeAttention(params));
  Probe probe(params);
  OVERTURE_RETURN_IF_ERROR(probe.Allocate());
  for (int32_t head = 0; head < params.num_q_heads; ++head) {
    OVERTURE_RETURN_IF_ERROR(probe.RunHead(head));
  }
  return absl::OkStatus();
}

}  // namespace overture::kernels
