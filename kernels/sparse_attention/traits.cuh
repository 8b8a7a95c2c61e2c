// Tile shapes, shared-memory plan, barriers and roles of the sm_90a attention
// kernel.
#pragma once

#include <cstdint>

namespace overture::kernels::sm90 {

inline constexpr int kBlockM = 128;      // query rows of a work item
inline constexpr int kBlockN = 128;      // keys of a step: two sub-tiles
inline constexpr int kSubTile = 64;      // keys of a plan's tile
inline constexpr int kPanel = 64;        // bf16 columns of a swizzled panel
inline constexpr int kNumConsumers = 2;  // warpgroups of 64 query rows
inline constexpr int kThreads = 128 * (1 + kNumConsumers);

// Register budget, per thread of a warpgroup: 65,536 of the multiprocessor over
// kThreads, rounded down to a multiple of 8, times the three that share it.
// Dense plans run alike with 200, 208 and 216 for the consumers; with the 72
// that 216 leaves, the producer spills and gathers at head dim 96 lose 9%.
inline constexpr int kConsumerRegisters = 200;
inline constexpr int kProducerRegisters =
    65536 / kThreads / 8 * 8 * 3 - kNumConsumers * kConsumerRegisters;
static_assert(kProducerRegisters % 8 == 0);

enum class WarpGroupRole : int {
  kProducer = 0,
  kConsumer0 = 1,
  kConsumer1 = 2
};

// Named barriers (0 is __syncthreads'). Making the consumers take turns at
// issuing products, as FlashAttention-3 does, gained nothing here (-1%).
enum NamedBarrier : uint32_t {
  kProducers = 1,
  kStore0 = 2,  // one per consumer
  kStore1 = 3,
};

// First key of a tile that does not exist: beyond any sequence.
inline constexpr int kNoTile = 0x40000000;

// What a step's scores need before the softmax; most need nothing.
enum StepWork : int32_t {
  kNothing = 0,
  kMask = 1,        // some elements must be masked
  kWeighMeans = 2,  // the keys are means of blocks
};

// What the producer tells the consumers about a step. Column c of half h is
// key start[h] + c for tiles; of gathered rows only the first `valid` of the
// step exist and start is unused.
struct alignas(16) StepInfo {
  int32_t start[2];
  int32_t valid;  // < 0: tiles; >= 0: gathered rows that exist
  int32_t work;   // StepWork bits
};

// What one work item is. Read in one piece, as a step is.
struct alignas(16) ItemInfo {
  int32_t head;  // of the items, see query_tile.cuh; < 0: no more work
  int32_t q_tile;
  int32_t num_steps;
};

template <int kHeadDim>
struct Traits {
  static_assert(kHeadDim == 64 || kHeadDim == 96 || kHeadDim == 128,
                "head dims 64, 96 and 128");
  static constexpr int kPanels = (kHeadDim + kPanel - 1) / kPanel;
  static constexpr int kStages = kHeadDim == 64 ? 4 : 3;
  static constexpr int kPanelElements = kBlockN * kPanel;  // 16 KB

  struct SharedStorage {
    alignas(1024) uint16_t q[kPanels * kBlockM * kPanel];
    alignas(1024) uint16_t k[kStages][kPanels * kPanelElements];
    alignas(1024) uint16_t v[kStages][kPanels * kPanelElements];
    StepInfo step[kStages];
    ItemInfo item;
    alignas(8) uint64_t q_full;
    uint64_t q_empty;
    uint64_t k_full[kStages];
    uint64_t k_empty[kStages];
    uint64_t v_full[kStages];
    uint64_t v_empty[kStages];
  };
  static_assert(sizeof(SharedStorage) <= 227 * 1024, "shared memory of one SM");
};

}  // namespace overture::kernels::sm90
