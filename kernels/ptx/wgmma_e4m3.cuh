// wgmma on e4m3: 64 x N x 32 products with fp32 or f16 accumulators on a
// warpgroup, d = a b^T (+ d unless `zero`), a in registers or K-major in shared
// memory, b K-major in shared memory. PTX ISA 8.0, section 9.7.14. One
// instruction per function.
//
// The accumulator is laid out as in wgmma.cuh. The A operand (lane l): a[0] is
// row l / 4, columns 4 (l % 4) + 0..3, one a byte, a[1] the same columns of row
// + 8, a[2..3] those 16 columns further. 8-bit operands cannot be MN-major.
//
// The tensor cores add e4m3 products with about 14 bits, whatever the
// accumulator's type: see docs/fp8_attention.md.
#pragma once

#include <cstdint>

#include "kernels/ptx/registers.cuh"
#include "kernels/ptx/wgmma.cuh"

namespace overture::kernels::ptx {

// K-major operand in rows of 64 or 128 bytes, swizzled by as many, at a shared
// address that is a multiple of 8 rows. The next 32-wide step is 32 bytes
// further.
template <int kRowBytes>
__device__ __forceinline__ uint64_t SwizzledRowsDescriptor(uint32_t address) {
  static_assert(kRowBytes == 64 || kRowBytes == 128);
  constexpr uint64_t kSwizzle = kRowBytes == 128 ? 1 : 2;
  return (kSwizzle << 62) | (uint64_t{8 * kRowBytes >> 4} << 32) |
         (uint64_t{1} << 16) | ((address & 0x3ffff) >> 4);
}

// a [64, 32] K-major in shared memory as b [128, 32], d in pairs of f16: d[2 b]
// holds the two columns of block b that two fp32 would, d[2 b + 1] those of row
// + 8.
__device__ __forceinline__ void WgmmaE4M3(uint32_t (&d)[32], uint64_t a,
                                          uint64_t b, bool zero) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f16.e4m3.e4m3 "
      "{" OVERTURE_OPERANDS_32 "}, %32, %33, p, 1, 1;\n}\n"
      : OVERTURE_REGISTERS_32("+r", d)
      : "l"(a), "l"(b), "r"(static_cast<int>(zero)));
}

// a [64, 32] in registers, b [128, 32].
__device__ __forceinline__ void WgmmaE4M3(float (&d)[64], const uint32_t* a,
                                          uint64_t b, bool zero) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
      "{" OVERTURE_OPERANDS_64 "}, {%64, %65, %66, %67}, %68, p, 1, 1;\n}\n"
      : OVERTURE_REGISTERS_64("+f", d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "r"(static_cast<int>(zero)));
}

// a [64, 32] in registers, b [8, 32].
__device__ __forceinline__ void WgmmaE4M3(float (&d)[4], const uint32_t* a,
                                          uint64_t b, bool zero) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, %9, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3}, {%4, %5, %6, %7}, %8, p, 1, 1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "r"(static_cast<int>(zero)));
}

}  // namespace overture::kernels::ptx
