#include "kernels/fp8_attention/fp8_attention_cpu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/fp8/e4m3.h"
#include "kernels/sparse_attention/sparse_attention_cpu.h"

namespace overture::kernels {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

uint32_t Magnitude(float value) {
  return std::bit_cast<uint32_t>(value) & 0x7fffffffu;
}

// Exponent for values of this largest magnitude; false if it is not finite.
bool Exponent(uint32_t largest, const fp8::CodeRange& range,
              int32_t* exponent) {
  if (!fp8::IsFinite(largest)) return false;
  *exponent = fp8::ScaleExponent(largest, range);
  return true;
}

void ComputeMean(const QuantizeKvParams& params) {
  const auto* k = static_cast<const BFloat16*>(params.k);
  const int64_t count = std::min<int64_t>(fp8::kMeanKeys, params.kv_len);
  for (int32_t head = 0; head < params.num_kv_heads; ++head) {
    for (int32_t dim = 0; dim < params.head_dim; ++dim) {
      double sum = 0;
      for (int64_t key = 0; key < count; ++key) {
        sum += static_cast<float>(
            k[head * params.stride_kv_head + key * params.stride_kv_row + dim]);
      }
      params.out.mean[head * params.head_dim + dim] =
          static_cast<float>(sum / static_cast<double>(count));
    }
  }
}

// One tile of K or V: codes at offset(key, dim). Returns whether all values are
// finite, and their exponent.
template <typename Value, typename Offset>
bool QuantizeTile(int64_t num_keys, int32_t head_dim,
                  const fp8::CodeRange& range, const Value& value,
                  const Offset& offset, uint8_t* codes, int32_t* exponent) {
  uint32_t largest = 0;
  for (int64_t key = 0; key < num_keys; ++key) {
    for (int32_t dim = 0; dim < head_dim; ++dim) {
      largest = std::max(largest, Magnitude(value(key, dim)));
    }
  }
  const bool finite = Exponent(largest, range, exponent);
  const float inverse = finite ? std::ldexp(1.0f, -*exponent) : kNan;
  for (int64_t key = 0; key < fp8::kTileKeys; ++key) {
    for (int32_t dim = 0; dim < head_dim; ++dim) {
      const float x = key < num_keys ? value(key, dim) : 0.0f;
      codes[offset(static_cast<int32_t>(key), dim)] = E4M3(x * inverse).bits;
    }
  }
  return finite;
}

}  // namespace

absl::Status QuantizeKvCpu(const QuantizeKvParams& params) {
  OVERTURE_RETURN_IF_ERROR(Validate(params));
  if (params.begin == 0) ComputeMean(params);
  const int32_t dim = params.head_dim;
  const int64_t end_tile =
      (params.kv_len + fp8::kTileKeys - 1) / fp8::kTileKeys;
  for (int32_t head = 0; head < params.num_kv_heads; ++head) {
    const float* mean = params.out.mean + int64_t{head} * dim;
    for (int64_t tile = params.begin / fp8::kTileKeys; tile < end_tile;
         ++tile) {
      const int64_t first = tile * fp8::kTileKeys;
      const int64_t num_keys =
          std::min<int64_t>(fp8::kTileKeys, params.kv_len - first);
      const auto at = [&](const void* tensor, int64_t key, int32_t d) {
        return static_cast<float>(static_cast<const BFloat16*>(
            tensor)[head * params.stride_kv_head +
                    (first + key) * params.stride_kv_row + d]);
      };
      const int64_t out = head * params.out.num_tiles + tile;
      int32_t exponents[2];
      const bool k_finite = QuantizeTile(
          num_keys, dim, fp8::kScoreCodes,
          [&](int64_t key, int32_t d) {
            return at(params.k, key, d) - mean[d];
          },
          [&](int32_t key, int32_t d) { return fp8::KeyOffset(key, d, dim); },
          params.out.k + out * fp8::KeyTileBytes(dim), &exponents[0]);
      const bool v_finite = QuantizeTile(
          num_keys, dim, fp8::kValueCodes,
          [&](int64_t key, int32_t d) { return at(params.v, key, d); },
          [&](int32_t key, int32_t d) { return fp8::ValueOffset(key, d); },
          params.out.v + out * fp8::ValueTileBytes(dim), &exponents[1]);
      params.out.scales[out] = {
          .k = k_finite ? std::ldexp(1.0f, exponents[0]) : kNan,
          .v_log2 = v_finite ? static_cast<float>(exponents[1]) : kNan,
          .v_inverse = v_finite ? std::ldexp(1.0f, -exponents[1]) : kNan};
    }
  }
  return absl::OkStatus();
}

absl::Status Fp8AttentionCpu(const SparseAttentionParams& params) {
  if (params.dtype != DType::kBF16 || params.plan == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("FP8 attention takes bf16 and a plan, got ",
                     Name(params.dtype), params.plan ? "" : " and no plan"));
  }
  const TilePlan& plan = *params.plan;
  const int64_t dim = params.head_dim;
  const int32_t group = params.num_q_heads / std::max(params.num_kv_heads, 1);

  // Codes as the GPU has them, then their values.
  std::vector<uint8_t> buffer(
      Fp8KvBytes(params.num_kv_heads, params.head_dim, plan.kv_len));
  const Fp8Kv kv =
      Fp8KvIn(buffer.data(), params.num_kv_heads, params.head_dim, plan.kv_len);
  OVERTURE_RETURN_IF_ERROR(
      QuantizeKvCpu({.k = params.k,
                     .v = params.v,
                     .stride_kv_row = params.stride_kv_row,
                     .stride_kv_head = params.stride_kv_head,
                     .num_kv_heads = params.num_kv_heads,
                     .head_dim = params.head_dim,
                     .kv_len = plan.kv_len,
                     .out = kv}));
  const auto value = [](uint8_t code) {
    E4M3 e4m3;
    e4m3.bits = code;
    return static_cast<float>(e4m3);
  };
  std::vector<float> k(params.num_kv_heads * plan.kv_len * dim);
  std::vector<float> v(k.size());
  for (int32_t head = 0; head < params.num_kv_heads; ++head) {
    for (int64_t key = 0; key < plan.kv_len; ++key) {
      const int64_t tile = head * kv.num_tiles + key / fp8::kTileKeys;
      const int32_t in_tile = static_cast<int32_t>(key % fp8::kTileKeys);
      for (int32_t d = 0; d < dim; ++d) {
        const int64_t at = (head * plan.kv_len + key) * dim + d;
        k[at] = kv.scales[tile].k *
                value(kv.k[tile * fp8::KeyTileBytes(params.head_dim) +
                           fp8::KeyOffset(in_tile, d, params.head_dim)]);
        v[at] = value(kv.v[tile * fp8::ValueTileBytes(params.head_dim) +
                           fp8::ValueOffset(in_tile, d)]) /
                kv.scales[tile].v_inverse;
      }
    }
  }
  std::vector<float> q(plan.q_len * params.num_q_heads * dim);
  std::vector<float> offset(params.num_q_heads * plan.q_len);  // of the lse
  for (int64_t row = 0; row < plan.q_len; ++row) {
    for (int32_t head = 0; head < params.num_q_heads; ++head) {
      const BFloat16* from = static_cast<const BFloat16*>(params.q) +
                             row * params.stride_q_row +
                             head * params.stride_q_head;
      const float* mean = kv.mean + head / group * dim;
      std::vector<float> scaled(dim);
      uint32_t largest = 0;
      float dot = 0;
      for (int32_t d = 0; d < dim; ++d) {
        scaled[d] = static_cast<float>(from[d]) * fp8::ScaleLog2(params.scale);
        largest = std::max(largest, Magnitude(scaled[d]));
        dot += scaled[d] * mean[d];
      }
      int32_t exponent = 0;
      const bool finite = Exponent(largest, fp8::kScoreCodes, &exponent);
      for (int32_t d = 0; d < dim; ++d) {
        const float code(E4M3(std::ldexp(scaled[d], -exponent)));
        q[(row * params.num_q_heads + head) * dim + d] =
            finite ? std::ldexp(code, exponent) : kNan;
      }
      offset[head * plan.q_len + row] = dot * static_cast<float>(M_LN2);
    }
  }

  std::vector<float> o(q.size());
  SparseAttentionParams exact = params;
  exact.dtype = DType::kF32;
  exact.q = q.data();
  exact.k = k.data();
  exact.v = v.data();
  exact.o = o.data();
  exact.scale = static_cast<float>(M_LN2);  // scores are in units of log2
  exact.stride_q_row = exact.stride_o_row = params.num_q_heads * dim;
  exact.stride_q_head = exact.stride_o_head = dim;
  exact.stride_kv_row = dim;
  exact.stride_kv_head = plan.kv_len * dim;
  OVERTURE_RETURN_IF_ERROR(SparseAttentionCpu(exact, WeightRounding::kE4M3));
  for (int64_t row = 0; row < plan.q_len; ++row) {
    for (int32_t head = 0; head < params.num_q_heads; ++head) {
      BFloat16* to = static_cast<BFloat16*>(params.o) +
                     row * params.stride_o_row + head * params.stride_o_head;
      const float* from = &o[(row * params.num_q_heads + head) * dim];
      for (int32_t d = 0; d < dim; ++d) to[d] = BFloat16(from[d]);
    }
  }
  if (params.lse != nullptr) {
    for (size_t i = 0; i < offset.size(); ++i) params.lse[i] += offset[i];
  }
  return absl::OkStatus();
}

int64_t Fp8AttentionCpuBytes(int32_t num_q_heads, int32_t num_kv_heads,
                             int32_t head_dim, int64_t q_len, int64_t kv_len) {
  const int64_t kv = int64_t{num_kv_heads} * kv_len * head_dim;
  const int64_t q = int64_t{num_q_heads} * q_len * head_dim;
  return Fp8KvBytes(num_kv_heads, head_dim, kv_len) +
         (2 * kv + 2 * q + num_q_heads * q_len) * 4;
}

}  // namespace overture::kernels
