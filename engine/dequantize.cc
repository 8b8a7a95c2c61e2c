#include "engine/dequantize.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace overture::engine {
namespace {

// Exact, branch-light and inline, so that the compiler can vectorise the F16
// loop; base's Float16 converts out of line.
inline float HalfToFloat(uint16_t bits) {
  // Rebias by a multiplication, which also normalises subnormals: 2^112.
  const float magnitude =
      std::bit_cast<float>(static_cast<uint32_t>(bits & 0x7fffu) << 13) *
      0x1p112f;
  uint32_t out = std::bit_cast<uint32_t>(magnitude);
  if ((bits & 0x7c00u) == 0x7c00u) out |= 0x7f800000u;  // infinity, NaN
  return std::bit_cast<float>(out | static_cast<uint32_t>(bits & 0x8000u)
                                        << 16);
}

inline float LoadHalf(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return HalfToFloat(bits);
}

void DequantizeF16(const uint8_t* src, int64_t num_elements, float* dst) {
  for (int64_t i = 0; i < num_elements; ++i) dst[i] = LoadHalf(src + 2 * i);
}

void DequantizeBF16(const uint8_t* src, int64_t num_elements, float* dst) {
  for (int64_t i = 0; i < num_elements; ++i) {
    uint16_t bits;
    std::memcpy(&bits, src + 2 * i, sizeof(bits));
    dst[i] = std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
}

// Each block function decodes one block, laid out as its comment says.

// [f16 d][16 bytes: low nibbles are elements 0..15, high ones 16..31]
void BlockQ4_0(const uint8_t* src, float* dst) {
  const float d = LoadHalf(src);
  for (int i = 0; i < 16; ++i) {
    const int q = src[2 + i];
    dst[i] = static_cast<float>((q & 15) - 8) * d;
    dst[i + 16] = static_cast<float>((q >> 4) - 8) * d;
  }
}

// [f16 d][f16 m][16 bytes as Q4_0]
void BlockQ4_1(const uint8_t* src, float* dst) {
  const float d = LoadHalf(src);
  const float m = LoadHalf(src + 2);
  for (int i = 0; i < 16; ++i) {
    const int q = src[4 + i];
    dst[i] = static_cast<float>(q & 15) * d + m;
    dst[i + 16] = static_cast<float>(q >> 4) * d + m;
  }
}

// [f16 d][32 x int8]
void BlockQ8_0(const uint8_t* src, float* dst) {
  const float d = LoadHalf(src);
  for (int i = 0; i < 32; ++i) {
    dst[i] = static_cast<float>(static_cast<int8_t>(src[2 + i])) * d;
  }
}

// The 6-bit scale and minimum of sub-block j (of 8) from 12 packed bytes: the
// first four in the low 6 bits of bytes 0..3 and 4..7; the last four with their
// low 4 bits in bytes 8..11 and their high 2 bits on top of the first ones.
struct ScaleMin {
  float scale;
  float min;
};
inline ScaleMin UnpackScaleMin(const uint8_t* s, int j) {
  int scale, min;
  if (j < 4) {
    scale = s[j] & 63;
    min = s[j + 4] & 63;
  } else {
    scale = (s[j + 4] & 15) | ((s[j - 4] >> 6) << 4);
    min = (s[j + 4] >> 4) | ((s[j] >> 6) << 4);
  }
  return {static_cast<float>(scale), static_cast<float>(min)};
}

// [f16 d][f16 dmin][12 bytes of factors][128 bytes: per 64 elements 32 bytes,
// low nibbles first]
void BlockQ4_K(const uint8_t* src, float* dst) {
  const float d = LoadHalf(src);
  const float dmin = LoadHalf(src + 2);
  const uint8_t* factors = src + 4;
  const uint8_t* q = src + 16;
  for (int j = 0; j < 8; j += 2, q += 32, dst += 64) {
    const ScaleMin low = UnpackScaleMin(factors, j);
    const ScaleMin high = UnpackScaleMin(factors, j + 1);
    const float d0 = d * low.scale, m0 = dmin * low.min;
    const float d1 = d * high.scale, m1 = dmin * high.min;
    for (int i = 0; i < 32; ++i) {
      dst[i] = d0 * static_cast<float>(q[i] & 15) - m0;
      dst[i + 32] = d1 * static_cast<float>(q[i] >> 4) - m1;
    }
  }
}

// [f16 d][f16 dmin][12 bytes of factors][32 bytes: bit j is the fifth bit of
// sub-block j][128 bytes as Q4_K]
void BlockQ5_K(const uint8_t* src, float* dst) {
  const float d = LoadHalf(src);
  const float dmin = LoadHalf(src + 2);
  const uint8_t* factors = src + 4;
  const uint8_t* high_bits = src + 16;
  const uint8_t* q = src + 48;
  for (int j = 0; j < 8; j += 2, q += 32, dst += 64) {
    const ScaleMin low = UnpackScaleMin(factors, j);
    const ScaleMin high = UnpackScaleMin(factors, j + 1);
    const float d0 = d * low.scale, m0 = dmin * low.min;
    const float d1 = d * high.scale, m1 = dmin * high.min;
    for (int i = 0; i < 32; ++i) {
      const int q0 = (q[i] & 15) | (((high_bits[i] >> j) & 1) << 4);
      const int q1 = (q[i] >> 4) | (((high_bits[i] >> (j + 1)) & 1) << 4);
      dst[i] = d0 * static_cast<float>(q0) - m0;
      dst[i + 32] = d1 * static_cast<float>(q1) - m1;
    }
  }
}

// [128 bytes: low 4 bits][64 bytes: high 2 bits][16 x int8 scales][f16 d]; per
// 128 elements 64 low and 32 high bytes, in four runs of 32 elements.
void BlockQ6_K(const uint8_t* src, float* dst) {
  const uint8_t* low = src;
  const uint8_t* high = src + 128;
  const int8_t* scales = reinterpret_cast<const int8_t*>(src + 192);
  const float d = LoadHalf(src + 208);
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 32; ++i) {
      const int s = i / 16;
      const int h = high[i];
      const int q0 = ((low[i] & 15) | ((h & 3) << 4)) - 32;
      const int q1 = ((low[i + 32] & 15) | (((h >> 2) & 3) << 4)) - 32;
      const int q2 = ((low[i] >> 4) | (((h >> 4) & 3) << 4)) - 32;
      const int q3 = ((low[i + 32] >> 4) | (((h >> 6) & 3) << 4)) - 32;
      dst[i] = d * static_cast<float>(scales[s]) * static_cast<float>(q0);
      dst[i + 32] =
          d * static_cast<float>(scales[s + 2]) * static_cast<float>(q1);
      dst[i + 64] =
          d * static_cast<float>(scales[s + 4]) * static_cast<float>(q2);
      dst[i + 96] =
          d * static_cast<float>(scales[s + 6]) * static_cast<float>(q3);
    }
    low += 64;
    high += 32;
    scales += 8;
    dst += 128;
  }
}

template <void (*kBlock)(const uint8_t*, float*)>
void DequantizeBlocks(BlockShape shape, const uint8_t* src, int64_t num_blocks,
                      float* dst) {
  for (int64_t i = 0; i < num_blocks; ++i) {
    kBlock(src + i * shape.num_bytes, dst + i * shape.num_elements);
  }
}

}  // namespace

absl::string_view Name(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return "F32";
    case TensorType::kF16:
      return "F16";
    case TensorType::kBF16:
      return "BF16";
    case TensorType::kQ4_0:
      return "Q4_0";
    case TensorType::kQ4_1:
      return "Q4_1";
    case TensorType::kQ8_0:
      return "Q8_0";
    case TensorType::kQ4_K:
      return "Q4_K";
    case TensorType::kQ5_K:
      return "Q5_K";
    case TensorType::kQ6_K:
      return "Q6_K";
  }
  return "unknown";
}

absl::string_view SupportedTensorTypes() {
  return "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K, Q5_K, Q6_K";
}

absl::Status Dequantize(TensorType type, absl::string_view src,
                        absl::Span<float> dst) {
  const BlockShape shape = BlockShapeOf(type);
  if (shape.num_elements == 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor type ", static_cast<uint32_t>(type),
        " cannot be dequantised; supported: ", SupportedTensorTypes()));
  }
  const int64_t num_elements = static_cast<int64_t>(dst.size());
  const int64_t num_blocks = num_elements / shape.num_elements;
  if (num_elements % shape.num_elements != 0 ||
      static_cast<int64_t>(src.size()) != num_blocks * shape.num_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(num_elements, " elements of ", Name(type), " from ",
                     src.size(), " bytes: a block is ", shape.num_elements,
                     " elements in ", shape.num_bytes, " bytes"));
  }
  const uint8_t* in = reinterpret_cast<const uint8_t*>(src.data());
  float* out = dst.data();
  switch (type) {
    case TensorType::kF32:
      if (!src.empty()) std::memcpy(out, in, src.size());
      break;
    case TensorType::kF16:
      DequantizeF16(in, num_elements, out);
      break;
    case TensorType::kBF16:
      DequantizeBF16(in, num_elements, out);
      break;
    case TensorType::kQ4_0:
      DequantizeBlocks<BlockQ4_0>(shape, in, num_blocks, out);
      break;
    case TensorType::kQ4_1:
      DequantizeBlocks<BlockQ4_1>(shape, in, num_blocks, out);
      break;
    case TensorType::kQ8_0:
      DequantizeBlocks<BlockQ8_0>(shape, in, num_blocks, out);
      break;
    case TensorType::kQ4_K:
      DequantizeBlocks<BlockQ4_K>(shape, in, num_blocks, out);
      break;
    case TensorType::kQ5_K:
      DequantizeBlocks<BlockQ5_K>(shape, in, num_blocks, out);
      break;
    case TensorType::kQ6_K:
      DequantizeBlocks<BlockQ6_K>(shape, in, num_blocks, out);
      break;
  }
  return absl::OkStatus();
}

absl::Status Dequantize(TensorType type, absl::string_view src,
                        absl::Span<BFloat16> dst) {
  if (type == TensorType::kBF16 && src.size() == dst.size() * 2) {
    if (!src.empty()) std::memcpy(dst.data(), src.data(), src.size());
    return absl::OkStatus();
  }
  std::vector<float> values(dst.size());
  OVERTURE_RETURN_IF_ERROR(Dequantize(type, src, absl::MakeSpan(values)));
  std::transform(values.begin(), values.end(), dst.begin(),
                 [](float value) { return BFloat16(value); });
  return absl::OkStatus();
}

}  // namespace overture::engine
