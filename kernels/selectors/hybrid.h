// Blocks added to a plan: for each cell the union of what a vertical-slash plan
// keeps and of the blocks that its tile keeps by their scores, and, where asked
// for, the means of the blocks that neither keeps.
#pragma once

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/selectors/block_scores.h"
#include "kernels/tile_plan.h"

namespace overture::kernels {

// `plan` is valid, has one list per query head, aligned tiles of kBlockTileRows
// rows and 64 keys and no means; `sets` are of the same rows and heads, `rules`
// one per head. The result's ranges are the union's, maximal; its columns are
// those of `plan` outside of them; a head that corrects means has those of all
// blocks that lie whole before the tile and of which no key is kept.
// INVALID_ARGUMENT if they do not fit together. Uses OpenMP's threads.
absl::StatusOr<TilePlan> AddBlocks(const TilePlan& plan, const BlockSets& sets,
                                   absl::Span<const BlockRule> rules);

}  // namespace overture::kernels
