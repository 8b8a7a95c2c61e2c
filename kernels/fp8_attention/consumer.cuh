// A consumer warpgroup of the FP8 attention: scores, online softmax and output
// of 64 query rows. A step is a stage of two key tiles. While a step's softmax
// runs, the tensor cores have the output of the step before it and the scores
// of the one after.
//
// Matrix work takes half the time of bf16's, so that issue slots, register
// ports and the special-function unit are what is scarce: scores are
// accumulated and their exponentials taken in pairs of f16 (codes are small
// enough, tile_layout.h), one in four by a polynomial, probabilities become the
// next operand without a shuffle, since V's keys are permuted, and the tensor
// cores sum them. What those sum are codes: output and sum then round alike.
//
// A product whose left operand is in registers holds its warp up until the
// tensor cores take it, so that those of the last step are issued first and the
// scores, all of whose operands are in shared memory, behind them.
//
// Source of the schedule: FlashAttention-3, arXiv 2407.08608, section 3.2, with
// its next step's scores one step earlier; of the two-level sum: DeepSeek-V3,
// arXiv 2412.19437, section 3.3.2; of exponentials on the FMA units:
// FlashAttention-4 (Dao-AILab/flash-attention, flash_attn/cute).
#pragma once

#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <type_traits>

#include "kernels/fp8_attention/traits.cuh"
#include "kernels/ptx/barrier.cuh"
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/wgmma_e4m3.cuh"

namespace overture::kernels::sm90 {

// s = q k^T of one step. q: [64, head_dim] codes in shared memory, s: [64, 128]
// f16 pairs
template <typename T>
__device__ __forceinline__ void IssueFp8Scores(uint32_t (&scores)[32],
                                               uint32_t q, uint32_t k) {
  const uint64_t q_base =
      ptx::SwizzledRowsDescriptor<fp8::KeyRowBytes(T::kHeadDim)>(q);
  const uint64_t base =
      ptx::SwizzledRowsDescriptor<fp8::KeyRowBytes(T::kHeadDim)>(k);
#pragma unroll
  for (int step = 0; step < T::kHeadDim / 32; ++step) {
    ptx::WgmmaE4M3(scores, ptx::Advance(q_base, step * 32),
                   ptx::Advance(base, step * 32), step == 0);
  }
  ptx::WgmmaCommit();
}

// Fills the right operands that sum the codes of a step's two tiles: for tile h
// ones in columns 2 i + h, each a row of 64 keys as V's are.
template <typename T>
__device__ __forceinline__ void InitOnes(typename T::SharedStorage& s,
                                         int thread) {
  constexpr uint32_t kFourOnes = 0x38383838;  // e4m3
  constexpr int kWords = sizeof(s.ones[0]) / 4;
  auto* words = reinterpret_cast<uint32_t*>(s.ones);
  for (int i = thread; i < T::kTiles * kWords; i += kThreads) {
    const int row = i % kWords / (fp8::kTileKeys / 4);
    words[i] = row % 2 == i / kWords ? kFourOnes : 0;
  }
  ptx::FenceProxyAsync();
}

// Sums of a step's codes: of a thread's row r, sums[2 r + h] is that of tile h.
// Apart, since each is still to be divided by its V's scale.
template <typename T>
__device__ __forceinline__ void IssueFp8Sums(float (&sums)[4],
                                             const uint32_t (&probs)[16],
                                             uint32_t ones) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    ptx::WgmmaE4M3(sums, &probs[4 * step],
                   ptx::SwizzledRowsDescriptor<fp8::kTileKeys>(
                       ones + step / 2 * 8 * fp8::kTileKeys),
                   step == 0);
  }
}

// o += p v of one step, or o = p v. probs: [64, 128] codes, o: [64, head_dim]
template <typename T>
__device__ __forceinline__ void IssueFp8Output(float (&o)[T::kHeadDim / 2],
                                               const uint32_t (&probs)[16],
                                               uint32_t v, bool fresh) {
#pragma unroll
  for (int step = 0; step < 4; ++step) {
    const uint64_t tile = ptx::SwizzledRowsDescriptor<fp8::kTileKeys>(
        v + step / 2 * T::kValueTile);
    ptx::WgmmaE4M3(o, &probs[4 * step], ptx::Advance(tile, step % 2 * 32),
                   fresh && step == 0);
  }
  ptx::WgmmaCommit();
}

__device__ __forceinline__ __half2 AsHalf2(uint32_t bits) {
  return *reinterpret_cast<const __half2*>(&bits);
}

// 2^x of two f16 up to 2^9, relative error 2^-8.5, on the FMA units; below
// 2^-14, where codes are 0 anyway, 2^-14. NaN stays NaN.
__device__ __forceinline__ __half2 PolynomialExp2(__half2 x) {
  // x + this has round(x) + 15, the biased exponent, in its last bits.
  const __half2 shift = __float2half2_rn(1536.0f + 15.0f);
  x = __hmax2_nan(x, __float2half2_rn(-14.0f));
  const __half2 shifted = __hadd2_rn(x, shift);
  const __half2 f = __hsub2_rn(x, __hsub2_rn(shifted, shift));
  // Minimax of 2^f on [-1/2, 1/2].
  __half2 p =
      __hfma2(f, __float2half2_rn(0.23842924f), __float2half2_rn(0.70344861f));
  p = __hfma2(p, f, __float2half2_rn(1.00044317f));
  const uint32_t exponents =
      (*reinterpret_cast<const uint32_t*>(&shifted) << 10) & 0x7c007c00u;
  return __hmul2(p, AsHalf2(exponents));
}

// Two pairs as the bytes of one register.
__device__ __forceinline__ uint32_t PackE4M3(__half2 low, __half2 high) {
  const uint32_t l = __nv_cvt_halfraw2_to_fp8x2(low, __NV_SATFINITE, __NV_E4M3);
  const uint32_t h =
      __nv_cvt_halfraw2_to_fp8x2(high, __NV_SATFINITE, __NV_E4M3);
  return l | h << 16;
}

// Online softmax of two rows (r and r + 8) per thread, in units of log2, with a
// lazy reference as in sparse_attention/softmax.cuh. A tile's probabilities
// carry the scale of its V, so that one sum over all tiles is in V's units;
// `row_sum` takes it out again.
//
// References are whole numbers, so that codes, unless they are subnormal, do
// not depend on them, nor on the order of the tiles.
struct Fp8Softmax {
  // The largest code is 448 = 2^8.8. A reference that moves puts the largest
  // probability at about 2^5: the smallest normal one, 2^-6, is then 2^-11 of
  // it, and the next 3.8 octaves of growth need no move.
  static constexpr float kTop = 5.0f;
  static constexpr float kLimit = 8.8f;
  // Below any score in use, yet of f16: no infinity less infinity anywhere.
  static constexpr float kUnset = -3e4f;
  float reference[2] = {kUnset, kUnset};
  // Of the codes that met V, over their tiles' scales, all columns.
  float row_sum[2] = {0, 0};

  // A row's largest score of a tile. scores: [64, 64] of the step's
  __device__ __forceinline__ static float Largest(const uint32_t* scores,
                                                  int r) {
    __half2 most[2] = {AsHalf2(scores[r]), AsHalf2(scores[r + 2])};
#pragma unroll
    for (int i = 2; i < 8; i += 2) {
      most[0] = __hmax2(most[0], AsHalf2(scores[2 * i + r]));
      most[1] = __hmax2(most[1], AsHalf2(scores[2 * i + 2 + r]));
    }
    const __half2 top = __hmax2(most[0], most[1]);
    return __half2float(__hmax(__low2half(top), __high2half(top)));
  }

  // Codes of a step's probabilities.
  __device__ __forceinline__ void Exponentials(const uint32_t (&scores)[32],
                                               const float (&factor)[2][2],
                                               const TileInfo (&tile)[2],
                                               uint32_t (&probs)[16]) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const __half2 scale = __float2half2_rn(factor[h][r]);
        const __half2 shift = __float2half2_rn(tile[h].v_log2 - reference[r]);
        __half2 p[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const __half2 x =
              __hfma2(AsHalf2(scores[16 * h + 2 * i + r]), scale, shift);
          // More of them on the FMA units make those the limit.
          p[i] = i % 4 == 0 ? PolynomialExp2(x) : ptx::Exp2(x);
        }
        // Register i of an operand: 32 keys i / 4, row i & 1, 8-key blocks (i &
        // 2) + 0..1
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          probs[8 * h + i / 2 * 4 + i % 2 * 2 + r] =
              PackE4M3(p[2 * i], p[2 * i + 1]);
        }
      }
    }
  }

  // Turns the scores of a step into codes of probabilities. Returns true, for
  // the whole warp, if earlier outputs must be multiplied with `scale`.
  __device__ __forceinline__ bool Update(const uint32_t (&scores)[32],
                                         const float (&q_scale)[2],
                                         const TileInfo (&tile)[2],
                                         uint32_t (&probs)[16],
                                         float (&scale)[2]) {
    // Of f16: neither 0, by which -infinity were NaN, nor infinity.
    float factor[2][2];
    float top[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        factor[h][r] =
            fminf(fmaxf(q_scale[r] * tile[h].k_scale, 0x1p-24f), 0x1p15f);
      }
      top[r] =
          fmaxf(fmaf(Largest(scores, r), factor[0][r], tile[0].v_log2),
                fmaf(Largest(scores + 16, r), factor[1][r], tile[1].v_log2));
    }
    const bool moved = __any_sync(
        ~0u, top[0] > reference[0] + kLimit || top[1] > reference[1] + kLimit);
    if (__builtin_expect(moved, 0)) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
        top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
        // Each row by itself, so that it depends on no other.
        const float next = top[r] > reference[r] + kLimit ? rintf(top[r] - kTop)
                                                          : reference[r];
        scale[r] = ptx::Exp2(reference[r] - next);
        reference[r] = next;
      }
    }
    Exponentials(scores, factor, tile, probs);
    return moved;
  }

  // Adds the sums of a step (IssueFp8Sums) whose tiles have these 1 / scales.
  __device__ __forceinline__ void Add(const float (&sums)[4],
                                      const float (&v_inverse)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      row_sum[r] = fmaf(sums[2 * r], v_inverse[0],
                        fmaf(sums[2 * r + 1], v_inverse[1], row_sum[r]));
    }
  }
};

// Hides the keys of a tile that a row may not see. scores: [64, 64]
__device__ __forceinline__ void MaskFp8(uint32_t* scores, int start,
                                        const int (&position)[2], int thread) {
  constexpr uint32_t kMinusInfinity = 0xfc00fc00;  // twice
  const int column0 = (thread & 3) * 2 + start;
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    // No branches: wgmmas are in flight.
    const int last = position[i & 1] - i / 2 * 8 - column0;
    uint32_t keep = last >= 1 ? 0xffffffffu : 0x0000ffffu;
    keep = last >= 0 ? keep : 0;
    scores[i] = (scores[i] & keep) | (kMinusInfinity & ~keep);
  }
}

// The output of earlier steps in shared memory, fp32, a thread's own part.
template <int kHeadDim>
struct Fp8Output {
  float4 (*part)[128];
  int thread;
  bool any = false;
  float scale[2] = {1, 1};  // by which what is there must be multiplied

  __device__ __forceinline__ void AddTo(float (&o)[kHeadDim / 2]) const {
    if (!any) return;
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) {
      const float4 earlier = part[i][thread];
      o[4 * i + 0] = fmaf(earlier.x, scale[0], o[4 * i + 0]);
      o[4 * i + 1] = fmaf(earlier.y, scale[0], o[4 * i + 1]);
      o[4 * i + 2] = fmaf(earlier.z, scale[1], o[4 * i + 2]);
      o[4 * i + 3] = fmaf(earlier.w, scale[1], o[4 * i + 3]);
    }
  }
  // REQUIRES that AddTo has added what is there.
  __device__ __forceinline__ void Take(const float (&o)[kHeadDim / 2]) {
#pragma unroll
    for (int i = 0; i < kHeadDim / 8; ++i) {
      part[i][thread] = {o[4 * i], o[4 * i + 1], o[4 * i + 2], o[4 * i + 3]};
    }
    any = true;
    scale[0] = scale[1] = 1;
  }
};

template <int kCount>
__device__ __forceinline__ void RescaleFp8(float (&o)[kCount],
                                           const float (&scale)[2]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) o[i] *= scale[(i / 2) % 2];
}

// Writes 64 rows of O, a 4-byte pair at a time, and the log-sum-exp.
template <typename T>
__device__ __forceinline__ void StoreFp8Output(const Fp8KernelParams& p,
                                               float (&o)[T::kHeadDim / 2],
                                               const Fp8Softmax& softmax,
                                               const ItemInfo& item, int row,
                                               int lane) {
  const QueryTile tile(p.plan, item.head, item.q_tile);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float sum = softmax.row_sum[r];
    const bool none = sum == 0;  // no key
    const float inverse = none ? 0.0f : 1.0f / sum;
    const int64_t q_row = tile.Position(row + 8 * r) - p.plan.q_begin;
    if (q_row < 0 || q_row >= p.plan.q_len) continue;
    const int q_head = tile.Head(row + 8 * r);
    auto* out = reinterpret_cast<uint32_t*>(p.o + q_row * p.stride_o_row +
                                            q_head * p.stride_o_head);
#pragma unroll
    for (int block = 0; block < T::kHeadDim / 8; ++block) {
      const __nv_bfloat162 pair = __floats2bfloat162_rn(
          o[4 * block + 2 * r] * inverse, o[4 * block + 2 * r + 1] * inverse);
      out[block * 4 + (lane & 3)] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    if (p.lse != nullptr && (lane & 3) == 0) {
      const int64_t item_idx =
          int64_t{item.head} * p.plan.num_q_tiles + item.q_tile;
      const float offset = p.q_offset[item_idx * kBlockM + row + 8 * r];
      p.lse[q_head * p.plan.q_len + q_row] =
          none ? -INFINITY
               : (softmax.reference[r] + log2f(sum) + offset) *
                     0.69314718055994531f;
    }
  }
}

__device__ __forceinline__ TileInfo ReadTile(const TileInfo& shared) {
  const float4 tile = *reinterpret_cast<const float4*>(&shared);
  return {tile.x, tile.y, tile.z, __float_as_int(tile.w)};
}

template <typename T>
__device__ __forceinline__ void ConsumeFp8(const Fp8KernelParams& p,
                                           typename T::SharedStorage& s,
                                           int consumer) {
  const int thread = threadIdx.x & 127;
  const int warp = thread >> 5;
  const int lane = thread & 31;
  const int row = consumer * 64 + warp * 16 + (lane >> 2);  // of the item

  constexpr uint32_t kKeyStage = T::kTiles * T::kKeyTile;
  constexpr uint32_t kValueStage = T::kTiles * T::kValueTile;
  const uint32_t k_base = ptx::Kept(ptx::SharedAddress(s.k));
  const uint32_t v_base = ptx::Kept(ptx::SharedAddress(s.v));
  const uint32_t full_base = ptx::Kept(ptx::SharedAddress(s.full));
  const uint32_t empty_base = ptx::Kept(ptx::SharedAddress(s.empty));

  Ring<T::kStages> ring;
  const uint32_t ones = ptx::Kept(ptx::SharedAddress(s.ones));
  Ring<T::kQueryStages> items;
  for (;;) {
    ptx::BarrierWait(&s.q_full[items.stage], items.phase);
    const ItemInfo item = ReadItem(s.item[items.stage], lane);
    if (item.head < 0) break;
    const uint32_t q =
        ptx::SharedAddress(s.q[__shfl_sync(~0u, items.stage, 0)]) +
        consumer * 64 * fp8::KeyRowBytes(T::kHeadDim);
    const int64_t item_idx =
        int64_t{item.head} * p.plan.num_q_tiles + item.q_tile;
    const float* scales = p.q_scale + item_idx * kBlockM + row;
    const float q_scale[2] = {scales[0], scales[8]};
    const QueryTile query_tile(p.plan, item.head, item.q_tile);
    const int position[2] = {query_tile.Position(row),
                             query_tile.Position(row + 8)};
    const int first_position = query_tile.Position(consumer * 64 + warp * 16);

    float o[T::kHeadDim / 2];  // [64, head_dim]
    uint32_t scores[2][32];    // [64, 128] f16 pairs of this step and the next
    uint32_t probs[2][16];     // [64, 128] codes of the last step and this one
    float sums[4] = {};        // of the last step's codes
    float v_inverse[2] = {};   // of the last step
    Fp8Softmax softmax;
    Fp8Output<T::kHeadDim> output{s.o[consumer], thread};

    // Scores to probabilities, while products run; then waits for those.
    const auto finish_step = [&](int at, const TileInfo(&tile)[2]) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        if (tile[h].start + kSubTile - 1 > first_position) {
          MaskFp8(scores[at] + 16 * h, tile[h].start, position, thread);
        }
      }
      float scale[2];
      const bool moved =
          softmax.Update(scores[at], q_scale, tile, probs[at], scale);
      // Ends the basic block once the softmax is done: see
      // sparse_attention/consumer.cuh.
      // Never true: codes are not negative, and NaN has other bits.
      uint32_t all = ~0u;
#pragma unroll
      for (int i = 0; i < 16; ++i) all &= probs[at][i];
      if (all == 0x80808080u) __trap();
      ptx::WgmmaWait<0>();
      ptx::FenceRegisters(scores[1 - at]);
      ptx::FenceRegisters(o);
      ptx::FenceRegisters(sums);
      softmax.Add(sums, v_inverse);
      v_inverse[0] = tile[0].v_inverse;
      v_inverse[1] = tile[1].v_inverse;
      if (__builtin_expect(moved, 0)) {
        softmax.row_sum[0] *= scale[0];
        softmax.row_sum[1] *= scale[1];
        RescaleFp8(o, scale);
        output.scale[0] *= scale[0];
        output.scale[1] *= scale[1];
      }
    };

#pragma unroll
    for (int i = 0; i < T::kHeadDim / 2; ++i) o[i] = 0;
    if (item.num_steps > 0) {
      // Of the ring: the stage whose scores are next to be issued, and whether
      // it is known to be full.
      uint32_t stage = 0;
      bool ready = false;
      int since = 0;  // steps that the accumulators hold
      const auto issue_scores = [&](int at) {
        ptx::WgmmaFence();
        IssueFp8Scores<T>(scores[at], q, k_base + stage * kKeyStage);
      };
      const auto take_stage = [&] {
        if (!ready) ptx::BarrierWait(full_base + 8 * ring.stage, ring.phase);
        stage = __shfl_sync(~0u, ring.stage, 0);
      };
      // Step 0: no output yet.
      take_stage();
      issue_scores(0);
      const TileInfo tile[2] = {ReadTile(s.tile[stage][0]),
                                ReadTile(s.tile[stage][1])};
      uint32_t v = v_base + stage * kValueStage;  // of the last step
      uint32_t empty = empty_base + 8 * ring.stage;
      ptx::WgmmaWait<0>();
      ptx::FenceRegisters(scores[0]);
      ring.Next();
      if (item.num_steps > 1) take_stage();
      issue_scores(1);
      finish_step(0, tile);

      // Step `step`, whose scores are there: the output of the step before it
      // and the scores of the one after it; after the last one these are
      // computed again and dropped.
      const auto run_step = [&](auto parity, int step) {
        constexpr int kAt = decltype(parity)::value;
        const TileInfo tile[2] = {ReadTile(s.tile[stage][0]),
                                  ReadTile(s.tile[stage][1])};
        const uint32_t this_v = v_base + stage * kValueStage;
        const uint32_t this_empty = empty_base + 8 * ring.stage;
        ring.Next();
        if (step + 1 < item.num_steps) take_stage();
        ptx::WgmmaFence();
        IssueFp8Output<T>(o, probs[1 - kAt], v, since == 0);
        IssueFp8Sums<T>(sums, probs[1 - kAt], ones);
        issue_scores(1 - kAt);
        Ring<T::kStages> next = ring;
        next.Next();
        ready = ptx::BarrierTest(full_base + 8 * next.stage, next.phase);
        finish_step(kAt, tile);
        ptx::BarrierArrive(empty);
        if (++since == T::kFlushSteps) {
          output.AddTo(o);
          output.Take(o);
          since = 0;
        }
        v = this_v;
        empty = this_empty;
      };
      const auto finish = [&](auto parity) {
        ptx::WgmmaFence();
        IssueFp8Sums<T>(sums, probs[decltype(parity)::value], ones);
        IssueFp8Output<T>(o, probs[decltype(parity)::value], v, since == 0);
        ptx::WgmmaWait<0>();
        ptx::FenceRegisters(o);
        ptx::FenceRegisters(sums);
        softmax.Add(sums, v_inverse);
        ptx::BarrierArrive(empty);
      };
      constexpr std::integral_constant<int, 0> kEven;
      constexpr std::integral_constant<int, 1> kOdd;
      for (int step = 1;; step += 2) {
        if (step >= item.num_steps) {
          finish(kEven);
          break;
        }
        run_step(kOdd, step);
        if (step + 1 >= item.num_steps) {
          finish(kOdd);
          break;
        }
        run_step(kEven, step + 1);
      }
      output.AddTo(o);
    }
    ptx::BarrierArrive(&s.q_empty[items.stage]);
    items.Next();
    StoreFp8Output<T>(p, o, softmax, item, row, lane);
  }
}

}  // namespace overture::kernels::sm90
