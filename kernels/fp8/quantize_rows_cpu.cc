#include "kernels/fp8/quantize_rows_cpu.h"

#include <algorithm>
#include <bit>

namespace overture::kernels {

void QuantizeRowsCpu(const BFloat16* x, int64_t rows, int64_t columns,
                     E4M3* codes, float* scales) {
#pragma omp parallel for if (rows * columns > 32768)
  for (int64_t r = 0; r < rows; ++r) {
    const BFloat16* row = x + r * columns;
    // Bits of magnitudes order as they do, with NaN above infinity.
    uint32_t bits = 0;
    for (int64_t i = 0; i < columns; ++i) {
      bits = std::max<uint32_t>(bits, row[i].bits & 0x7fffu);
    }
    const float largest = std::bit_cast<float>(
        std::max(bits << 16, std::bit_cast<uint32_t>(kMinRowMax)));
    const float inverse = kE4M3Max / largest;
    for (int64_t i = 0; i < columns; ++i) {
      codes[r * columns + i] = E4M3(static_cast<float>(row[i]) * inverse);
    }
    scales[r] = largest / kE4M3Max;
  }
}

}  // namespace overture::kernels
