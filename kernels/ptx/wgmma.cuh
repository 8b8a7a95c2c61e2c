// wgmma: 64 x N x 16 bf16 products with fp32 accumulators on a warpgroup.
// PTX ISA 8.0, section 9.7.14. One instruction per function.
//
// Accumulator layout (thread t of the warpgroup, warp w = t / 32, lane l): for
// column block b of 8, d[4 b + 0..1] is row 16 w + l / 4, columns 8 b + 2 (l %
// 4) + 0..1; d[4 b + 2..3] the same columns of row + 8. The A operand held in
// registers has the same layout, two blocks per 16-wide step.
#pragma once

#include <cstdint>

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/registers.cuh"

namespace overture::kernels::ptx {

// Orders register and shared-memory writes before the wgmmas that follow.
__device__ __forceinline__ void WgmmaFence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void WgmmaCommit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most `kPending` groups are in flight.
template <int kPending>
__device__ __forceinline__ void WgmmaWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Tells the compiler that an asynchronous wgmma owns these registers.
template <int kCount>
__device__ __forceinline__ void FenceRegisters(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
__device__ __forceinline__ void FenceRegisters(uint32_t (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+r"(d[i])::"memory");
}

// Shared-memory matrix descriptors for 128-byte-swizzled panels of 64 bf16
// columns; `panel` is 1,024-byte aligned.
//
// K-major operand (the reduction runs along the 64 columns): 8-row groups are
// 1,024 bytes apart. The next 16-wide step is 32 bytes further.
__device__ __forceinline__ uint64_t KMajorDescriptor(const void* panel) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) |
         (uint64_t{1} << 16) | ((SharedAddress(panel) & 0x3ffff) >> 4);
}
// MN-major operand (the reduction runs along the rows): panels of 64 columns
// are `panel_bytes` apart. The next 16-row step is 2,048 bytes further.
__device__ __forceinline__ uint64_t MnMajorDescriptor(const void* panel,
                                                      uint32_t panel_bytes) {
  return (uint64_t{1} << 62) | (uint64_t{1024 >> 4} << 32) |
         (static_cast<uint64_t>(panel_bytes >> 4) << 16) |
         ((SharedAddress(panel) & 0x3ffff) >> 4);
}
// Descriptor moved by `bytes` (a multiple of 16).
__device__ __forceinline__ uint64_t Advance(uint64_t descriptor,
                                            uint32_t bytes) {
  return descriptor + (bytes >> 4);
}

// d = a b^T (+ d unless `zero`): a [64, 16] and b [64, 16] K-major in shared.
__device__ __forceinline__ void WgmmaSharedShared(float (&d)[32], uint64_t a,
                                                  uint64_t b, bool zero) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, %34, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, "
      "%30, %31}, "
      "%32, %33, p, 1, 1, 0, 0;\n}\n"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]),
        "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]),
        "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]),
        "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]),
        "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]),
        "+f"(d[31])
      : "l"(a), "l"(b), "r"(static_cast<int>(zero)));
}

// d = a b^T (+ d unless `zero`): a [64, 16] and b [128, 16] K-major in shared.
__device__ __forceinline__ void WgmmaSharedShared(float (&d)[64], uint64_t a,
                                                  uint64_t b, bool zero) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, %66, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{" OVERTURE_OPERANDS_64 "}, %64, %65, p, 1, 1, 0, 0;\n}\n"
      : OVERTURE_REGISTERS_64("+f", d)
      : "l"(a), "l"(b), "r"(static_cast<int>(zero)));
}

// d = a b (+ d unless `zero`): a [64, 16] in registers, b [16, 64] MN-major in
// shared.
__device__ __forceinline__ void WgmmaRegisterShared(float (&d)[32],
                                                    const uint32_t* a,
                                                    uint64_t b, bool zero) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, %37, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{" OVERTURE_OPERANDS_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}\n"
      : OVERTURE_REGISTERS_32("+f", d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "r"(static_cast<int>(zero)));
}

// d = a b (+ d unless `zero`): a [64, 16] in registers, b [16, 96] MN-major in
// shared.
__device__ __forceinline__ void WgmmaRegisterShared(float (&d)[48],
                                                    const uint32_t* a,
                                                    uint64_t b, bool zero) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, %53, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n96k16.f32.bf16.bf16 "
      "{" OVERTURE_OPERANDS_48 "}, {%48, %49, %50, %51}, %52, p, 1, 1, 1;\n}\n"
      : OVERTURE_REGISTERS_48("+f", d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "r"(static_cast<int>(zero)));
}

// d = a b (+ d unless `zero`): a [64, 16] in registers, b [16, 128] MN-major in
// shared.
__device__ __forceinline__ void WgmmaRegisterShared(float (&d)[64],
                                                    const uint32_t* a,
                                                    uint64_t b, bool zero) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.eq.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{" OVERTURE_OPERANDS_64 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}\n"
      : OVERTURE_REGISTERS_64("+f", d)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b),
        "r"(static_cast<int>(zero)));
}

}  // namespace overture::kernels::ptx
