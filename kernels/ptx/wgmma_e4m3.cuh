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
      "wgmma.mma_async.sync.aligned.m64n128k32.f16.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
      "%30, %31}, "
      "%32, %33, p, 1, 1;\n}\n"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]),
        "+r"(d[6]), "+r"(d[7]), "+r"(d[8]), "+r"(d[9]), "+r"(d[10]),
        "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]),
        "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]),
        "+r"(d[21]), "+r"(d[22]), "+r"(d[23]), "+r"(d[24]), "+r"(d[25]),
        "+r"(d[26]), "+r"(d[27]), "+r"(d[28]), "+r"(d[29]), "+r"(d[30]),
        "+r"(d[31])
      : "l"(a), "l"(b), "r"(static_cast<int>(zero)));
}

// a [64, 32] in registers, b [128, 32].
__device__ __forceinline__ void WgmmaE4M3(float (&d)[64], const uint32_t* a,
                                          uint64_t b, bool zero) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
      "%30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
      "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, "
      "%58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, %68, p, 1, 1;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
        "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]),
        "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]),
        "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
        "+f"(d[31]), "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]),
        "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), "+f"(d[40]),
        "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]),
        "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]), "+f"(d[50]),
        "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]),
        "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
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
