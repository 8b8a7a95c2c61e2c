// What a selector looks at: the queries of a segment and all keys up to its
// end, and the probe that both back ends run over them. Views; pointers are on
// the host or the device, as the back end's.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "engine/model_config.h"
#include "kernels/probe_attention/probe_params.h"

namespace overture::engine {

struct SegmentTensors {
  // Positions of the rows of q; keys and values of [0, end) are there.
  int64_t begin = 0;
  int64_t end = 0;
  DType dtype = DType::kBF16;
  const std::byte* q = nullptr;  // [end - begin, num_q_heads, head_dim]
  const std::byte* k = nullptr;  // [num_kv_heads, num_tokens, head_dim]
  const std::byte* v = nullptr;  // as k
  int64_t num_tokens = 0;        // of the prompt: the stride of a head of k
};

// Votes for a view, an output of the probe of a prompt's last rows.
struct WindowVotes {
  float* sums = nullptr;  // [num_kv_heads, num_tokens], as ProbeAttention's
  int32_t window = 0;     // rows that vote
  bool done = false;      // set once they are written
};

// Some of its rows and the keys up to their end. REQUIRES rows of the segment.
inline SegmentTensors RowsOf(const SegmentTensors& segment,
                             const ModelConfig& config, int64_t begin,
                             int64_t end) {
  SegmentTensors rows = segment;
  rows.begin = begin;
  rows.end = end;
  rows.q += (begin - segment.begin) * config.num_q_heads * config.head_dim *
            SizeOf(segment.dtype);
  return rows;
}

// A probe of the last `num_rows` rows of the segment, at most all, without
// outputs.
inline kernels::ProbeAttentionParams ProbeOf(const SegmentTensors& segment,
                                             const ModelConfig& config,
                                             int64_t num_rows) {
  const int64_t q_row = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t first_row = segment.end - segment.begin - num_rows;
  return {.dtype = segment.dtype,
          .q = segment.q + first_row * q_row * SizeOf(segment.dtype),
          .k = segment.k,
          .stride_q_row = q_row,
          .stride_q_head = config.head_dim,
          .stride_k_row = config.head_dim,
          .stride_k_head = segment.num_tokens * config.head_dim,
          .num_q_heads = config.num_q_heads,
          .num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .num_rows = static_cast<int32_t>(num_rows),
          .kv_len = segment.end,
          .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim))};
}

// Adds the votes to a probe whose rows hold the window.
inline void AddVotes(WindowVotes* votes, kernels::ProbeAttentionParams* probe) {
  probe->window_votes = votes->sums;
  probe->window_rows = votes->window;
  votes->done = true;
}

}  // namespace overture::engine
