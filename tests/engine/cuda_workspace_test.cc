#include "engine/cuda_workspace.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/fp8_attention/quantized_kv.h"

namespace overture::engine {
namespace {

ModelConfig Llama8B() {
  ModelConfig config;
  config.vocab_size = 128256;
  config.hidden_size = 4096;
  config.intermediate_size = 14336;
  config.num_layers = 32;
  config.num_q_heads = 32;
  config.num_kv_heads = 8;
  config.head_dim = 128;
  return config;
}

constexpr int64_t kProbeBytes = 4 << 20;

void ExpectDisjoint(std::vector<MemoryRegion> regions, int64_t end) {
  std::sort(regions.begin(), regions.end(),
            [](const MemoryRegion& a, const MemoryRegion& b) {
              return a.offset != b.offset ? a.offset < b.offset
                                          : a.bytes < b.bytes;
            });
  int64_t last = 0;
  for (const MemoryRegion& region : regions) {
    EXPECT_EQ(region.offset % 256, 0);
    EXPECT_GE(region.offset, last);
    last = region.offset + region.bytes;
  }
  EXPECT_LE(last, end);
}

TEST(CudaWorkspaceTest, RegionsDoNotOverlap) {
  const CudaWorkspacePlan plan = PlanCudaWorkspace(Llama8B(),
                                                   {.num_tokens = 10007,
                                                    .num_new = 333,
                                                    .selector = {12345, 67},
                                                    .audit = {890, 123},
                                                    .window_rows = 33},
                                                   kProbeBytes);
  ExpectDisjoint(
      {plan.tokens, plan.residual, plan.kv[0], plan.kv[1], plan.q, plan.o,
       plan.window_q, plan.normed, plan.qkv, plan.gate_up, plan.act,
       plan.selector, plan.audit, plan.votes, plan.logits, plan.probe},
      plan.arena_bytes);
  ExpectDisjoint(
      {plan.host_kv[0], plan.host_kv[1], plan.host_votes[0], plan.host_votes[1],
       plan.host_selector, plan.host_audit, plan.host_logits},
      plan.pinned_bytes);
  EXPECT_EQ(plan.kv[0].bytes, int64_t{2} * 8 * 10007 * 128 * 2);
  EXPECT_EQ(plan.residual.bytes, int64_t{333} * 4096 * 4);
  EXPECT_EQ(plan.q.bytes, int64_t{333} * 4096 * 2);
  EXPECT_EQ(plan.selector.bytes, 12345);
  EXPECT_EQ(plan.host_selector.bytes, 67);
  EXPECT_EQ(plan.audit.bytes, 890);
  EXPECT_EQ(plan.host_audit.bytes, 123);
}

TEST(CudaWorkspaceTest, QuantizingNeedsRoomForCodesAndScales) {
  const CudaWorkspacePlan plan = PlanCudaWorkspace(
      Llama8B(), {.num_tokens = 333, .num_new = 333, .quantizes = true},
      kProbeBytes);
  ExpectDisjoint({plan.o, plan.normed, plan.qkv, plan.gate_up, plan.act,
                  plan.o_codes, plan.row_scales, plan.votes},
                 plan.arena_bytes);
  EXPECT_EQ(plan.o_codes.bytes, 333 * 4096);
  EXPECT_EQ(plan.row_scales.bytes, 333 * 4);
  EXPECT_EQ(plan.act.bytes, 333 * 14336);
}

TEST(CudaWorkspaceTest, Fp8AttentionNeedsRoomForALayersKvAndASegmentsQueries) {
  const CudaWorkspacePlan plan = PlanCudaWorkspace(
      Llama8B(), {.num_tokens = 1000, .num_new = 300, .fp8_attention = true},
      kProbeBytes);
  ExpectDisjoint({plan.o, plan.act, plan.fp8_kv, plan.fp8_queries, plan.logits},
                 plan.arena_bytes);
  EXPECT_EQ(plan.fp8_kv.bytes, kernels::Fp8KvBytes(8, 128, 1000));
  EXPECT_EQ(plan.fp8_queries.bytes, kernels::Fp8QueryBytes(32, 128, 300));
}

TEST(CudaWorkspaceTest, AllNewTokensUnderAnySelectorAreTheUpperBound) {
  const int64_t n = 50000;
  const CudaWorkspacePlan bound = PlanCudaWorkspace(
      Llama8B(), {.num_tokens = n, .num_new = n, .selector = {1 << 20, 64}},
      kProbeBytes);
  for (const int64_t num_new : {int64_t{1}, int64_t{9000}, n}) {
    for (const int64_t selector_bytes : {0, 64}) {
      const CudaWorkspacePlan plan =
          PlanCudaWorkspace(Llama8B(),
                            {.num_tokens = n,
                             .num_new = num_new,
                             .segment_rows = 16384,
                             .selector = {selector_bytes, selector_bytes}},
                            kProbeBytes);
      EXPECT_LE(plan.device_bytes(), bound.device_bytes());
      EXPECT_LE(plan.pinned_bytes, bound.pinned_bytes);
    }
  }
}

TEST(CudaWorkspaceTest, DensePrefillsCarryNoProbe) {
  const CudaWorkspacePlan plan = PlanCudaWorkspace(
      Llama8B(), {.num_tokens = 4096, .num_new = 4096}, kProbeBytes);
  EXPECT_EQ(plan.probe.bytes, 0);
  EXPECT_EQ(plan.selector.bytes, 0);
  EXPECT_EQ(plan.host_selector.bytes, 0);
}

TEST(CudaWorkspaceTest, AMillionTokensFitBesideAnEightBModel) {
  const int64_t n = 1 << 20;
  const CudaWorkspacePlan plan =
      PlanCudaWorkspace(Llama8B(),
                        {.num_tokens = n,
                         .num_new = n,
                         .segment_rows = 262144,
                         .selector = {600'000'000, 256}},
                        kProbeBytes);
  // 16 GB of weights leave 84 of the 100 GB that one request may peak at.
  EXPECT_LT(plan.device_bytes(), int64_t{84} * 1000 * 1000 * 1000);
  // The residual stream and two layers' KV at least.
  EXPECT_GT(plan.device_bytes(), n * 4096 * 4 + 2 * n * 2 * 8 * 128 * 2);
}

}  // namespace
}  // namespace overture::engine
