// mbarrier, named barriers and fences: one instruction per function, no
// policy. PTX ISA 8.0, sections 9.7.12 and 9.7.13.
#pragma once

#include <cstdint>

namespace overture::kernels::ptx {

// Address of a shared-memory object as the 32-bit form PTX wants.
__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// The same value, which the compiler then keeps in a register instead of making
// it anew at each use: addresses of a loop.
__device__ __forceinline__ uint32_t Kept(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// `arrivals`: how many arrivals complete a phase.
__device__ __forceinline__ void BarrierInit(uint64_t* barrier,
                                            uint32_t arrivals) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(barrier)),
      "r"(arrivals)
      : "memory");
}

// Makes barrier initialisation visible to the async proxy (TMA).
__device__ __forceinline__ void FenceBarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Those that a loop calls take the barrier's address too: made once, it costs
// nothing per call.
__device__ __forceinline__ void BarrierArrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}
__device__ __forceinline__ void BarrierArrive(uint64_t* barrier) {
  BarrierArrive(SharedAddress(barrier));
}

// Arrives and tells the barrier to wait for `bytes` of TMA traffic.
__device__ __forceinline__ void BarrierArriveExpect(uint64_t* barrier,
                                                    uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   SharedAddress(barrier)),
               "r"(bytes)
               : "memory");
}

// Waits until the phase of the given parity has completed.
__device__ __forceinline__ void BarrierWait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "WAIT_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra DONE_%=;\n"
      "bra WAIT_%=;\n"
      "DONE_%=:\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ __forceinline__ void BarrierWait(uint64_t* barrier,
                                            uint32_t parity) {
  BarrierWait(SharedAddress(barrier), parity);
}

// Whether that phase has completed, without waiting.
__device__ __forceinline__ bool BarrierTest(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

// Named barriers: Sync waits for `threads` threads, Arrive only counts.
__device__ __forceinline__ void NamedBarrierSync(uint32_t id,
                                                 uint32_t threads) {
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void NamedBarrierArrive(uint32_t id,
                                                   uint32_t threads) {
  asm volatile("barrier.cta.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// Orders this thread's ordinary shared-memory accesses before later accesses
// of the async proxy (TMA, wgmma).
__device__ __forceinline__ void FenceProxyAsync() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Register budget of the executing warpgroup.
template <int kRegisters>
__device__ __forceinline__ void RegistersIncrease() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void RegistersDecrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

}  // namespace overture::kernels::ptx
