// mma.sync: 16 x 8 x 16 bf16 products with fp32 accumulators on a warp, and the
// shared-memory loads of their operands. sm_80 and later. PTX ISA 8.0, section
// 9.7.13. One instruction per function.
//
// Accumulator layout (lane l): d[0..1] is row l / 4, columns 2 (l % 4) + 0..1;
// d[2..3] the same columns of row + 8.
#pragma once

#include <cstdint>

namespace overture::kernels::ptx {

// Loads four 8x8 bf16 matrices; lane l gives the address of row l % 8 of
// matrix l / 8. Lane l receives row l / 4, columns 2 (l % 4) + 0..1 of each.
__device__ __forceinline__ void LoadMatrix4(uint32_t (&d)[4],
                                            uint32_t shared_src) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(shared_src)
      : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void LoadMatrix4Transposed(uint32_t (&d)[4],
                                                      uint32_t shared_src) {
  asm volatile(
      "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
      : "r"(shared_src)
      : "memory");
}

// d += a b: a [16, 16] row-major (rows 0-7 and 8-15 of columns 0-7, then of
// columns 8-15), b [16, 8] (rows 0-7, rows 8-15), each part as LoadMatrix4
// gives b's transpose.
__device__ __forceinline__ void MmaM16N8K16(float* d, const uint32_t (&a)[4],
                                            uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace overture::kernels::ptx
