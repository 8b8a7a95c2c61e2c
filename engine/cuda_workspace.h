// Where everything that one prefill on the GPU works with lies: computed before
// it starts, so that it either fits or is refused. Plain data and arithmetic,
// no device.
#pragma once

#include <array>
#include <cstdint>

#include "engine/model_config.h"

namespace overture::engine {

// Rows of one matrix product of the MLP. Its activations are 3 * intermediate
// bf16 a row: 0.7 GB for 8,192 rows of an 8B model, and products that long run
// at full speed.
inline constexpr int64_t kCudaChunkRows = 8192;
// Most rows whose queries are held at once: of a segment that is chosen for as
// one. Others are cut into pieces.
inline constexpr int64_t kCudaMaxSegmentRows = 262144;
inline constexpr int64_t kCudaPieceRows = 65536;
// Most rows of one plan and attention call, which bounds a plan's memory.
inline constexpr int64_t kCudaPlanRows = 65536;

// What a part of a prefill, its selector or its audit, works in beside the
// tensors.
struct PartMemory {
  int64_t device_bytes = 0;  // 0 of a selector: it looks at no data
  int64_t pinned_bytes = 0;
};

struct CudaWorkspaceShape {
  int64_t num_tokens = 0;  // of the whole prompt, >= 1
  int64_t num_new = 0;     // computed ones, 1 .. num_tokens
  // Rows of the longest segment, at most kCudaMaxSegmentRows count.
  int64_t segment_rows = kCudaMaxSegmentRows;
  PartMemory selector;
  PartMemory audit;
  int64_t window_rows = 0;  // that vote for a view; 0: none
  bool quantizes = false;   // products read e4m3
  bool fp8_attention = false;
};

// Bytes [offset, offset + bytes) of a buffer; offsets are multiples of 256.
struct MemoryRegion {
  int64_t offset = 0;
  int64_t bytes = 0;
};

// Lays regions one after the other.
class MemoryCarver {
 public:
  MemoryRegion Take(int64_t bytes) {
    constexpr int64_t kAlignment = 256;  // what cudaMalloc gives
    const MemoryRegion region{.offset = end_, .bytes = bytes};
    end_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return region;
  }
  int64_t end() const { return end_; }

 private:
  int64_t end_ = 0;
};

struct CudaWorkspacePlan {
  // On the device.
  MemoryRegion tokens;    // int32 [num_new]
  MemoryRegion residual;  // fp32 [num_new, hidden]
  // bf16 [2: K, V][num_kv_heads][num_tokens][head_dim]: one layer is computed
  // while that before it is copied out.
  std::array<MemoryRegion, 2> kv;
  MemoryRegion q;            // bf16 [segment, num_q_heads * head_dim]
  MemoryRegion o;            // as q
  MemoryRegion window_q;     // bf16 [window, num_q_heads * head_dim]
  MemoryRegion normed;       // bf16 [chunk, hidden], or e4m3 in it
  MemoryRegion qkv;          // fp32 [chunk, qkv_size]
  MemoryRegion gate_up;      // bf16 [chunk, 2 * intermediate]
  MemoryRegion act;          // bf16 or e4m3 [chunk, intermediate]
  MemoryRegion fp8_kv;       // of a layer: kernels::Fp8KvBytes
  MemoryRegion fp8_queries;  // of a segment: kernels::Fp8QueryBytes
  MemoryRegion o_codes;      // e4m3 [chunk, num_q_heads * head_dim]
  MemoryRegion row_scales;   // fp32 [chunk], of a product's e4m3 input
  MemoryRegion selector;     // the selector's own
  MemoryRegion audit;        // the audit's own
  MemoryRegion votes;        // fp32 [num_kv_heads, num_tokens]
  MemoryRegion logits;       // fp32 [vocab]
  MemoryRegion probe;        // scratch of a probe
  int64_t arena_bytes = 0;   // of all the above
  // Allocated beside the arena: an upper bound for the plans of all segments
  // that depend on no data.
  int64_t plan_bytes = 0;

  // On the host, page-locked.
  std::array<MemoryRegion, 2> host_kv;     // as kv
  std::array<MemoryRegion, 2> host_votes;  // as votes
  MemoryRegion host_selector;              // the selector's own
  MemoryRegion host_audit;                 // the audit's own
  MemoryRegion host_logits;
  int64_t pinned_bytes = 0;

  int64_t device_bytes() const { return arena_bytes + plan_bytes; }
};

// `probe_bytes` is kernels::ProbeScratchBytes(num_tokens, num_q_heads).
CudaWorkspacePlan PlanCudaWorkspace(const ModelConfig& config,
                                    const CudaWorkspaceShape& shape,
                                    int64_t probe_bytes);

}  // namespace overture::engine
