// Copies between global and shared memory: TMA tiles and 16-byte cp.async.
// PTX ISA 8.0, sections 9.7.8.24 and 9.7.8.22.
#pragma once

#include <cuda.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/ptx/barrier.cuh"

namespace overture::kernels::ptx {

// L2 eviction priorities as createpolicy encodes them.
inline constexpr uint64_t kEvictNormal = 0x1000000000000000ull;
inline constexpr uint64_t kEvictFirst = 0x12F0000000000000ull;
inline constexpr uint64_t kEvictLast = 0x14F0000000000000ull;

__device__ __forceinline__ void PrefetchTensorMap(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Copies the box at (x, y, z) to `dst`; elements outside the tensor become 0.
// Completion counts the box's bytes on `barrier`.
__device__ __forceinline__ void TmaLoad3d(const CUtensorMap* map, void* dst,
                                          uint64_t* barrier, int32_t x,
                                          int32_t y, int32_t z,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_"
      "tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(
          SharedAddress(dst)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(x), "r"(y), "r"(z), "l"(policy)
      : "memory");
}

__device__ __forceinline__ void TmaLoad4d(const CUtensorMap* map, void* dst,
                                          uint64_t* barrier, int32_t x,
                                          int32_t y, int32_t z, int32_t w,
                                          uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_"
      "tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(
          SharedAddress(dst)),
      "l"(map), "r"(SharedAddress(barrier)), "r"(x), "r"(y), "r"(z), "r"(w),
      "l"(policy)
      : "memory");
}

// Copies `bytes` contiguous bytes, a multiple of 16, both ends 16-byte aligned.
__device__ __forceinline__ void BulkLoad(void* dst, const void* src,
                                         uint32_t bytes, uint64_t* barrier,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::"
      "cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(SharedAddress(dst)),
      "l"(src), "r"(bytes), "r"(SharedAddress(barrier)), "l"(policy)
      : "memory");
}

// Writes the box at (x, y, z, w); elements outside the tensor are skipped.
__device__ __forceinline__ void TmaStore4d(const CUtensorMap* map,
                                           const void* src, int32_t x,
                                           int32_t y, int32_t z, int32_t w) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, "
      "%4, %5}], [%1];" ::"l"(map),
      "r"(SharedAddress(src)), "r"(x), "r"(y), "r"(z), "r"(w)
      : "memory");
}
__device__ __forceinline__ void TmaStoreCommit() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
// Waits until at most `kPending` store groups still read shared memory.
template <int kPending>
__device__ __forceinline__ void TmaStoreWaitRead() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// 16 bytes, or zeros when `valid` is false.
__device__ __forceinline__ void CopyAsync16(uint32_t shared_dst,
                                            const void* src, bool valid) {
  const int bytes = valid ? 16 : 0;
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_dst),
      "l"(src), "r"(bytes)
      : "memory");
}
__device__ __forceinline__ void CopyAsyncCommit() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void CopyAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// 16 bytes of shared memory, or zeros when `valid` is false: a predicated load
// where the compiler would branch.
__device__ __forceinline__ int4 LoadShared16(const void* src, bool valid) {
  int4 d = {0, 0, 0, 0};
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\n"
      "@p ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];\n}\n"
      : "+r"(d.x), "+r"(d.y), "+r"(d.z), "+r"(d.w)
      : "r"(SharedAddress(src)), "r"(static_cast<int>(valid))
      : "memory");
  return d;
}

// Stores four 8x8 bf16 matrices; lane l gives the address of row l % 8 of
// matrix l / 8, registers hold the wgmma accumulator layout packed in pairs.
__device__ __forceinline__ void StoreMatrix4(uint32_t shared_dst,
                                             const uint32_t (&d)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
          shared_dst),
      "r"(d[0]), "r"(d[1]), "r"(d[2]), "r"(d[3])
      : "memory");
}

// 2^x by the special-function unit, relative error 2^-22; 2^-inf = 0.
__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The same of two f16, relative error 2^-9.9.
__device__ __forceinline__ __half2 Exp2(__half2 x) {
  uint32_t y;
  asm("ex2.approx.f16x2 %0, %1;"
      : "=r"(y)
      : "r"(*reinterpret_cast<const uint32_t*>(&x)));
  return *reinterpret_cast<const __half2*>(&y);
}

}  // namespace overture::kernels::ptx
