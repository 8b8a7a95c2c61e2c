#include "engine/cuda_workspace.h"

#include <algorithm>

#include "base/kv_layout.h"
#include "kernels/fp8_attention/quantized_kv.h"

namespace overture::engine {
namespace {

constexpr int64_t kAlignment = 256;  // what cudaMalloc gives
constexpr int64_t kBf16 = 2;
constexpr int64_t kF32 = 4;
constexpr int64_t kTileRows = 128;
constexpr int64_t kBuffersOfAPlan = 5;

}  // namespace

CudaWorkspacePlan PlanCudaWorkspace(const ModelConfig& config,
                                    const CudaWorkspaceShape& shape,
                                    int64_t probe_bytes) {
  const int64_t n = shape.num_tokens;
  const int64_t hidden = config.hidden_size;
  const int64_t q_size = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t kv_size = int64_t{config.num_kv_heads} * config.head_dim;
  const int64_t held =
      std::min({shape.num_new, shape.segment_rows, kCudaMaxSegmentRows});
  const int64_t chunk = std::min(shape.num_new, kCudaChunkRows);
  const int64_t layer_bytes = 2 * kv_size * n * kBf16;
  const int64_t vote_bytes =
      shape.window_rows > 0 ? config.num_kv_heads * n * kF32 : 0;
  const int64_t input = shape.quantizes ? 1 : kBf16;  // bytes of a product's
  const bool probes = shape.selector.device_bytes + vote_bytes > 0;

  CudaWorkspacePlan plan;
  MemoryCarver device;
  plan.tokens = device.Take(shape.num_new * 4);
  plan.residual = device.Take(shape.num_new * hidden * kF32);
  for (MemoryRegion& kv : plan.kv) kv = device.Take(layer_bytes);
  plan.q = device.Take(held * q_size * kBf16);
  plan.o = device.Take(held * q_size * kBf16);
  plan.window_q = device.Take(shape.window_rows * q_size * kBf16);
  plan.normed = device.Take(chunk * hidden * kBf16);
  plan.qkv = device.Take(chunk * (q_size + 2 * kv_size) * kF32);
  plan.gate_up = device.Take(chunk * 2 * config.intermediate_size * kBf16);
  plan.act = device.Take(chunk * config.intermediate_size * input);
  if (shape.fp8_attention) {
    plan.fp8_kv = device.Take(
        kernels::Fp8KvBytes(config.num_kv_heads, config.head_dim, n));
    plan.fp8_queries = device.Take(
        kernels::Fp8QueryBytes(config.num_q_heads, config.head_dim, held));
  }
  if (shape.quantizes) {
    plan.o_codes = device.Take(chunk * q_size);
    plan.row_scales = device.Take(chunk * kF32);
  }
  plan.selector = device.Take(shape.selector.device_bytes);
  plan.audit = device.Take(shape.audit.device_bytes);
  plan.votes = device.Take(vote_bytes);
  plan.logits = device.Take(config.vocab_size * kF32);
  plan.probe = device.Take(probes ? probe_bytes : 0);
  plan.arena_bytes = device.end();

  // Of one list each: per query tile a cell of 32 bytes, at most two ranges of
  // 8 and the work items; a segment may start and end in the middle of a tile,
  // and the last layer runs the last row alone.
  const int64_t segments = shape.num_new / std::min(held, kCudaPlanRows) + 2;
  const int64_t q_tiles = shape.num_new / kTileRows + 2 * segments + 1;
  plan.plan_bytes = q_tiles * (32 + 2 * 8 + config.num_q_heads * 4) +
                    (segments + 1) * kBuffersOfAPlan * kAlignment;

  MemoryCarver host;
  for (MemoryRegion& kv : plan.host_kv) kv = host.Take(layer_bytes);
  for (MemoryRegion& votes : plan.host_votes) votes = host.Take(vote_bytes);
  plan.host_selector = host.Take(shape.selector.pinned_bytes);
  plan.host_audit = host.Take(shape.audit.pinned_bytes);
  plan.host_logits = host.Take(config.vocab_size * kF32);
  plan.pinned_bytes = host.end();
  return plan;
}

}  // namespace overture::engine
