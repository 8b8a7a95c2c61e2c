// A consumer warpgroup: scores, online softmax and output of 64 query rows. A
// step's score product is issued together with the last step's output product,
// so that the softmax between hides behind matrix work.
//
// Source of the schedule: FlashAttention-3, arXiv 2407.08608, section 3.2.
#pragma once

#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/sparse_attention/kernel_params.cuh"
#include "kernels/sparse_attention/softmax.cuh"

namespace overture::kernels::sm90 {

// s = q k^T of one step for this warpgroup's 64 rows. s: [64, 128]
template <int kHeadDim>
__device__ __forceinline__ void IssueScores(float (&scores)[64],
                                            const uint16_t* q,
                                            const uint16_t* k) {
#pragma unroll
  for (int step = 0; step < kHeadDim / 16; ++step) {
    const int panel = step / 4;
    const uint32_t offset = (step % 4) * 32;
    ptx::WgmmaSharedShared(
        scores,
        ptx::Advance(ptx::KMajorDescriptor(q + panel * kBlockM * kPanel),
                     offset),
        ptx::Advance(ptx::KMajorDescriptor(k + panel * kBlockN * kPanel),
                     offset),
        step == 0);
  }
}

// o += p v of one step. probs: [64, 128] bf16 pairs, o: [64, head_dim]
template <int kHeadDim>
__device__ __forceinline__ void IssueOutput(float (&o)[kHeadDim / 2],
                                            const uint32_t (&probs)[32],
                                            const uint16_t* v) {
  const uint64_t base = ptx::MnMajorDescriptor(v, kBlockN * kPanel * 2);
#pragma unroll
  for (int step = 0; step < kBlockN / 16; ++step) {
    ptx::WgmmaRegisterShared(o, &probs[4 * step],
                             ptx::Advance(base, step * 2048),
                             /*zero=*/false);
  }
}

// Does a step's StepWork: gives means the weight of their blocks, and hides
// what the thread's two rows may not see, column c of half h beyond their
// limits.
__device__ __forceinline__ void Prepare(float (&scores)[64],
                                        const StepInfo& info, float mean_bias,
                                        const int (&position)[2], int thread) {
  if (info.work & kWeighMeans) {
#pragma unroll
    for (int i = 0; i < 64; ++i) scores[i] += mean_bias;
  }
  const int column0 = (thread & 3) * 2;
  if (!(info.work & kMask)) return;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int last = info.valid - 1 - half * 64;
    const int limit0 = info.valid >= 0 ? last : position[0] - info.start[half];
    const int limit1 = info.valid >= 0 ? last : position[1] - info.start[half];
#pragma unroll
    for (int block = 0; block < 8; ++block) {
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int column = block * 8 + column0 + j;
        const int at = 4 * (half * 8 + block) + j;
        if (column > limit0) scores[at] = -INFINITY;
        if (column > limit1) scores[at + 2] = -INFINITY;
      }
    }
  }
}

// Writes this warpgroup's 64 rows of O through shared memory (its part of Q's
// buffer, which nobody reads any more) and the log-sum-exp.
template <int kHeadDim>
__device__ __forceinline__ void StoreOutput(
    const KernelParams& p, typename Traits<kHeadDim>::SharedStorage& s,
    float (&o)[kHeadDim / 2], const Softmax& softmax, const ItemInfo& item,
    int consumer, int thread) {
  const int warp = thread >> 5;
  const int lane = thread & 31;
  float inverse[2];
  float lse[2];
  softmax.Finish(inverse, lse);
  Rescale(o, inverse);

  const QueryTile tile(p.plan, item.head, item.q_tile);
  const auto q_row = [&](int row) {  // of q and o; may not exist
    return tile.Position(consumer * 64 + row) -
           static_cast<int>(p.plan.q_begin);
  };
  const bool whole = q_row(0) >= 0 && q_row(63) < p.plan.q_len;
  if (whole) {
    // Panel layout as Q's: 128 rows of 128 bytes, 16-byte chunks swizzled.
    const uint32_t base = ptx::SharedAddress(s.q) + consumer * 64 * 128;
    const int row = warp * 16 + (lane & 15);
#pragma unroll
    for (int block = 0; block < kHeadDim / 8; block += 2) {
      // Lanes 0..15 address rows of column block `block`, lanes 16..31 the
      // next.
      const int chunk = block + (lane >> 4);
      const uint32_t address = base + (chunk >> 3) * (kBlockM * 128) +
                               row * 128 + (((chunk & 7) ^ (row & 7)) << 4);
      uint32_t pack[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        pack[i] = Pack(o[4 * block + 2 * i], o[4 * block + 2 * i + 1]);
      }
      ptx::StoreMatrix4(address, pack);
    }
    ptx::FenceProxyAsync();
    ptx::NamedBarrierSync(kStore0 + consumer, 128);
    if (thread == 0) {
      for (int panel = 0; panel < Traits<kHeadDim>::kPanels; ++panel) {
        ptx::TmaStore4d(&p.o,
                        &s.q[panel * kBlockM * kPanel + consumer * 64 * kPanel],
                        panel * kPanel, 0, q_row(0), item.head);
      }
      ptx::TmaStoreCommit();
      ptx::TmaStoreWaitRead<0>();
    }
  } else {
    // A ragged edge of the query range: straight from registers.
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp * 16 + (lane >> 2) + 8 * r;
      if (q_row(row) < 0 || q_row(row) >= p.plan.q_len) continue;
      auto* out =
          reinterpret_cast<uint32_t*>(p.o_data + q_row(row) * p.stride_o_row +
                                      tile.Head(row) * p.stride_o_head);
#pragma unroll
      for (int block = 0; block < kHeadDim / 8; ++block) {
        out[block * 4 + (lane & 3)] =
            Pack(o[4 * block + 2 * r], o[4 * block + 2 * r + 1]);
      }
    }
    ptx::NamedBarrierSync(kStore0 + consumer, 128);
  }
  if (lane == 0) ptx::BarrierArrive(&s.q_empty);
  if (p.lse != nullptr && (lane & 3) == 0) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = warp * 16 + (lane >> 2) + 8 * r;
      if (q_row(row) >= 0 && q_row(row) < p.plan.q_len) {
        p.lse[tile.Head(row) * p.plan.q_len + q_row(row)] = lse[r];
      }
    }
  }
}

template <int kHeadDim>
__device__ __forceinline__ void Consume(
    const KernelParams& p, typename Traits<kHeadDim>::SharedStorage& s,
    int consumer) {
  using T = Traits<kHeadDim>;
  const int thread = threadIdx.x & 127;
  const int warp = thread >> 5;
  const int lane = thread & 31;

  Ring<T::kStages> ring;
  uint32_t item_phase = 0;
  for (;;) {
    ptx::BarrierWait(&s.q_full, item_phase);
    item_phase ^= 1;
    const ItemInfo item = ReadItem(s.item, lane);
    if (item.head < 0) break;

    float o[kHeadDim / 2];  // [64, head_dim]
    float scores[64];       // [64, 128]
    uint32_t probs[32];     // [64, 128], bf16 pairs
    Softmax softmax;
    float scale[2];
    const uint16_t* q = &s.q[consumer * 64 * kPanel];
    const QueryTile tile(p.plan, item.head, item.q_tile);
    const int row = consumer * 64 + warp * 16 + (lane >> 2);
    const int position[2] = {tile.Position(row), tile.Position(row + 8)};

#pragma unroll
    for (int i = 0; i < kHeadDim / 2; ++i) o[i] = 0;
    if (item.num_steps > 0) {
      // First step: scores and softmax alone.
      ptx::BarrierWait(&s.k_full[ring.stage], ring.phase);
      StepInfo info = ReadStep(s.step[ring.stage], lane);
      ptx::WgmmaFence();
      IssueScores<kHeadDim>(scores, q, s.k[ring.stage]);
      ptx::WgmmaCommit();
      ptx::WgmmaWait<0>();
      ptx::FenceRegisters(scores);
      if (lane == 0) ptx::BarrierArrive(&s.k_empty[ring.stage]);
      if (info.work) Prepare(scores, info, p.mean_bias, position, thread);
      softmax.Update(scores, p.scale_log2, scale);
      ToBf16(scores, probs);

      Ring<T::kStages> v_ring = ring;
      ring.Next();
      for (int step = 1; step < item.num_steps; ++step) {
        // Scores of this step and output of the last one, back to back.
        const int k_stage = __shfl_sync(~0u, ring.stage, 0);
        const int v_stage = __shfl_sync(~0u, v_ring.stage, 0);
        ptx::BarrierWait(&s.k_full[ring.stage], ring.phase);
        ptx::BarrierWait(&s.v_full[v_ring.stage], v_ring.phase);
        ptx::WgmmaFence();
        IssueScores<kHeadDim>(scores, q, s.k[k_stage]);
        ptx::WgmmaCommit();
        IssueOutput<kHeadDim>(o, probs, s.v[v_stage]);
        ptx::WgmmaCommit();
        info = ReadStep(s.step[ring.stage], lane);
        ptx::WgmmaWait<1>();
        ptx::FenceRegisters(scores);
        if (lane == 0) ptx::BarrierArrive(&s.k_empty[ring.stage]);

        if (info.work) Prepare(scores, info, p.mean_bias, position, thread);
        const bool moved = softmax.Update(scores, p.scale_log2, scale);
        // Ends the basic block once the softmax is done: ptxas would otherwise
        // hoist the wait above it, and the output product would hide nothing.
        if (softmax.row_sum[0] + softmax.row_sum[1] < 0) __trap();
        ptx::WgmmaWait<0>();
        ptx::FenceRegisters(o);
        if (lane == 0) ptx::BarrierArrive(&s.v_empty[v_ring.stage]);
        ToBf16(scores, probs);
        if (moved) Rescale(o, scale);
        v_ring = ring;
        ring.Next();
      }
      ptx::BarrierWait(&s.v_full[v_ring.stage], v_ring.phase);
      ptx::WgmmaFence();
      IssueOutput<kHeadDim>(o, probs, s.v[v_ring.stage]);
      ptx::WgmmaCommit();
      ptx::WgmmaWait<0>();
      ptx::FenceRegisters(o);
      if (lane == 0) ptx::BarrierArrive(&s.v_empty[v_ring.stage]);
    }
    StoreOutput<kHeadDim>(p, s, o, softmax, item, consumer, thread);
  }
}

}  // namespace overture::kernels::sm90
