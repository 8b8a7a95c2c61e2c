// The union of columns, distances and blocks on the GPU, all heads in one go
// and without the host: the twin of AddBlocks. Its plan has the cells of
// AddBlocks over BuildVerticalSlashPlan(kAligned), in the form of device_plan.h
// (the last cell may hold one more tile, at or after kv_len). Plain C++ header.
//
// Cells share no ranges here. Their most is known beforehand, one for every
// three tiles, 43 KB of a cell a million tokens in: so plans are made for as
// many rows at a time as HybridPlanRows says, and their memory stays bounded.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/selectors/block_scores.h"
#include "kernels/selectors/vertical_slash_gpu.h"
#include "kernels/sparse_attention/device_plan.h"

namespace overture::kernels {

struct HybridPlanParams {
  int64_t q_begin = 0;
  int64_t q_len = 0;  // q_begin + q_len is at most the choice's kv_len
  // What LaunchBlockScores wrote for the same rows and heads; device. Null: no
  // block is kept.
  const uint32_t* blocks = nullptr;
  absl::Span<const BlockRule> rules;  // one per query head, for correct_means
  // As VerticalSlashPlanParams::pairs.
  uint64_t* pairs = nullptr;
};

// Enough for every plan of as many heads whose q_len, kv_len and sizes do not
// exceed these; `with_means` if a rule may correct them.
int64_t HybridPlanBytes(int64_t q_len, int64_t kv_len,
                        absl::Span<const VerticalSlashSize> sizes,
                        bool with_means);

// The most rows, a multiple of kGpuTileRows and a power of two of them, at most
// `q_len` rounded up, of which HybridPlanBytes is at most kHybridPlanBytes; at
// least one query tile.
inline constexpr int64_t kHybridPlanBytes = 128 << 20;
int64_t HybridPlanRows(int64_t q_len, int64_t kv_len,
                       absl::Span<const VerticalSlashSize> sizes,
                       bool with_means);

// One list per query head. As LaunchVerticalSlashPlan; INVALID_ARGUMENT also
// for rules that are not one per head.
absl::StatusOr<DeviceTilePlan> LaunchHybridPlan(
    const VerticalSlashChoice& choice, const HybridPlanParams& params,
    void* scratch, int64_t scratch_bytes, void* stream);

}  // namespace overture::kernels
