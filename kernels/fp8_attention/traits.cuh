// Tile shapes, shared-memory plan and parameters of the FP8 attention kernel.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/fp8_attention/tile_layout.h"
#include "kernels/sparse_attention/device_plan.h"
#include "kernels/sparse_attention/kernel_params.cuh"
#include "kernels/sparse_attention/traits.cuh"

namespace overture::kernels::sm90 {

struct Fp8KernelParams {
  const uint8_t* q;  // [items, QueryTileBytes], as plan.order counts
  const uint8_t* k;  // [kv_heads, num_kv_tiles, KeyTileBytes]
  const uint8_t* v;  // [kv_heads, num_kv_tiles, ValueTileBytes]
  const fp8::TileScales* kv_scales;  // [kv_heads, num_kv_tiles]
  const float* q_scale;              // [items, 128]
  const float* q_offset;             // as q_scale, q . c in units of log2
  __nv_bfloat16* o;
  int64_t stride_o_row;  // elements
  int64_t stride_o_head;
  float* lse;            // [q_heads, q_len] or null
  int64_t num_kv_tiles;  // stride of a head
  int32_t valid_kv_tiles;
  int32_t num_heads;  // of work items: query heads / packed heads
  int32_t group;      // of those per KV head
  DeviceTilePlan plan;
};

// What the producer tells the consumers about one key tile of a step.
struct TileInfo {
  float k_scale;
  float v_log2;
  float v_inverse;
  int32_t start;  // first key; kNoTile if there is none
};

// Register budget, as in traits.cuh; this producer gathers nothing.
inline constexpr int kFp8ProducerRegisters = 40;
inline constexpr int kFp8ConsumerRegisters = 232;
static_assert(128 * (kFp8ProducerRegisters +
                     kNumConsumers * kFp8ConsumerRegisters) <=
              65536);

template <int kHeadDimension>
struct Fp8Traits {
  static constexpr int kHeadDim = kHeadDimension;
  static constexpr int kTiles = 2;   // key tiles of a step
  static constexpr int kStages = 4;  // 5 do not fit
  // Scores read Q to an item's end; the next item's comes meanwhile.
  static constexpr int kQueryStages = 2;
  static constexpr int kKeyTile = fp8::KeyTileBytes(kHeadDim);
  static constexpr int kValueTile = fp8::ValueTileBytes(kHeadDim);
  static constexpr int kQueryTile = fp8::QueryTileBytes(kHeadDim);
  // Steps after which the output leaves the tensor cores' accumulators, which
  // drop what is below 2^-13 of them. 16 or 8 are as fast as never.
  static constexpr int kFlushSteps = 16;

  struct SharedStorage {
    alignas(1024) uint8_t k[kStages][kTiles][kKeyTile];
    alignas(1024) uint8_t v[kStages][kTiles][kValueTile];
    // Output of earlier steps: a thread's own 16-byte columns.
    alignas(16) float4 o[kNumConsumers][kHeadDim / 8][128];
    alignas(1024) uint8_t q[kQueryStages][kQueryTile];
    // [8, 64 keys] for each tile of a step: InitOnes.
    alignas(1024) uint8_t ones[kTiles][8 * fp8::kTileKeys];
    alignas(16) TileInfo tile[kStages][kTiles];
    ItemInfo item[kQueryStages];
    alignas(8) uint64_t q_full[kQueryStages];
    uint64_t q_empty[kQueryStages];
    uint64_t full[kStages];
    uint64_t empty[kStages];
  };
  static_assert(sizeof(SharedStorage) <= 227 * 1024, "shared memory of one SM");
};

}  // namespace overture::kernels::sm90
