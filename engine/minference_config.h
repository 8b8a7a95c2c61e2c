// MInference's per-head pattern files: a list with one object per layer,
//
//   [{"0": ["vertical_and_slash", 1000, 6096, 336], "1": ["stream_llm", 100,
//   800, 0.97]}, ...]
//
// from the query head's number to [pattern, int, int, score]. The ints are the
// vertical and slash size, or the initial and local tokens of an A-shape, which
// is a head that keeps nothing but that many forced columns and distances; the
// score is what the search measured and is not used. The ints of a block_sparse
// head are not used either: the released code gives it the best 100 blocks of
// 64 keys, which are 50 of ours, and we add the first 64 keys and each row's
// own tile. Thread-safe: no state.
//
// Errors name file, layer and head: INVALID_ARGUMENT for what is no such file
// or belongs to another model's shape; MappedFile's when the file cannot be
// read. Source: microsoft/MInference `minference/configs/`, and its
// `minference_forward` for the heads a file leaves out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/head_sizes.h"

namespace overture::engine {

// `what` names the text in errors. The list must have `num_layers` objects;
// heads it lacks get VerticalSlashSize's defaults, heads from `num_q_heads` on
// are refused. Sizes are as the file has them, before Clamp.
absl::StatusOr<HeadSizes> ParseMInferenceConfig(absl::string_view text,
                                                absl::string_view what,
                                                int32_t num_layers,
                                                int32_t num_q_heads);

// The inverse: a file that ParseMInferenceConfig reads as these sizes, with
// `scores`, [layer][query head], in the place of what its search measured.
// INVALID_ARGUMENT naming layer and head for a size that the format cannot say:
// blocks, a mass, or forced counts other than its own.
absl::StatusOr<std::string> MInferenceConfigJson(
    const HeadSizes& sizes, const std::vector<std::vector<double>>& scores);

absl::StatusOr<HeadSizes> LoadMInferenceConfig(const std::string& path,
                                               int32_t num_layers,
                                               int32_t num_q_heads);

}  // namespace overture::engine
