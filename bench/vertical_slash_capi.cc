// One layer's vertical-slash attention as the engine runs it, and the data of a
// structured layer, behind C functions for bench/vertical_slash_gpu.py.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/event.h"
#include "base/cuda/stream.h"
#include "base/segments.h"
#include "base/status_macros.h"
#include "bench/structured_model.h"
#include "engine/rope.h"
#include "kernels/probe_attention/probe_attention.h"
#include "kernels/selectors/vertical_slash_gpu.h"
#include "kernels/sparse_attention/sparse_attention.h"

extern "C" {

struct OvertureLayerShape {
  int64_t num_tokens;
  int64_t segment;          // tokens of the first
  int64_t longest_segment;  // of those that grow, see SegmentRule
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
};

struct OvertureLayerTimes {
  double probe_ms;
  double plan_ms;
  double attention_ms;
  double pairs;  // computed (row, key) pairs, over all heads
};

}  // extern "C"

namespace overture {
namespace {

using kernels::VerticalSlashSize;

struct Tensors {  // [heads, tokens, head_dim], contiguous bf16
  const std::byte* q;
  const std::byte* k;
  const std::byte* v;
  std::byte* o;
};

// Rows that are planned and attended to at once.
constexpr int64_t kSliceRows = 65536;

absl::Status RunLayer(const OvertureLayerShape& shape,
                      const std::vector<VerticalSlashSize>& sizes,
                      const Tensors& tensors, OvertureLayerTimes* times) {
  const int64_t n = shape.num_tokens;
  const int64_t dim = shape.head_dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  OVERTURE_ASSIGN_OR_RETURN(const Stream stream, Stream::Create());
  const int64_t count = n * shape.num_q_heads;
  OVERTURE_ASSIGN_OR_RETURN(auto columns, DeviceBuffer<float>::Allocate(count));
  OVERTURE_ASSIGN_OR_RETURN(auto diagonals,
                            DeviceBuffer<float>::Allocate(count));
  OVERTURE_ASSIGN_OR_RETURN(
      auto probe_scratch,
      DeviceBuffer<std::byte>::Allocate(
          kernels::ProbeScratchBytes(n, shape.num_q_heads)));
  OVERTURE_ASSIGN_OR_RETURN(
      auto plan_scratch,
      DeviceBuffer<std::byte>::Allocate(
          kernels::VerticalSlashPlanBytes(std::min(n, kSliceRows), n, sizes)));
  OVERTURE_ASSIGN_OR_RETURN(auto choice_scratch,
                            DeviceBuffer<std::byte>::Allocate(
                                kernels::VerticalSlashChoiceBytes(n, sizes)));
  OVERTURE_ASSIGN_OR_RETURN(auto pairs, DeviceBuffer<uint64_t>::Allocate(1));
  uint64_t host_pairs = 0;
  OVERTURE_RETURN_IF_ERROR(
      pairs.CopyFromHost(absl::MakeConstSpan(&host_pairs, 1), stream));

  const SegmentRule segments = {.tokens = shape.segment,
                                .max_tokens = shape.longest_segment};
  *times = {};
  struct Mark {
    Event event;
    double* phase;  // up to the event
  };
  std::vector<Mark> marks;
  const auto mark = [&](double* phase) -> absl::Status {
    OVERTURE_ASSIGN_OR_RETURN(Event event, Event::Create(Event::Timing::kOn));
    OVERTURE_RETURN_IF_ERROR(event.Record(stream));
    marks.push_back({std::move(event), phase});
    return absl::OkStatus();
  };
  OVERTURE_RETURN_IF_ERROR(mark(nullptr));
  for (int64_t begin = 0, end; begin < n; begin = end) {
    end = std::min(n, segments.EndOf(begin));
    const int64_t rows = std::min<int64_t>(kernels::kProbeRows, end - begin);
    OVERTURE_RETURN_IF_ERROR(kernels::LaunchProbeAttention(
        {.q = tensors.q + (end - rows) * dim * 2,
         .k = tensors.k,
         .stride_q_row = dim,
         .stride_q_head = n * dim,
         .stride_k_row = dim,
         .stride_k_head = n * dim,
         .num_q_heads = shape.num_q_heads,
         .num_kv_heads = shape.num_kv_heads,
         .head_dim = shape.head_dim,
         .num_rows = static_cast<int32_t>(rows),
         .kv_len = end,
         .scale = scale,
         .column_sums = columns.data(),
         .diagonal_sums = diagonals.data()},
        probe_scratch.data(), probe_scratch.bytes(), stream.get()));
    OVERTURE_RETURN_IF_ERROR(mark(&times->probe_ms));
    OVERTURE_ASSIGN_OR_RETURN(
        const kernels::VerticalSlashChoice choice,
        kernels::LaunchVerticalSlashChoice(
            {.column_sums = columns.data(),
             .diagonal_sums = diagonals.data(),
             .sizes = sizes,
             .kv_len = end},
            choice_scratch.data(), choice_scratch.bytes(), stream.get()));
    for (int64_t row = begin; row < end; row += kSliceRows) {
      OVERTURE_ASSIGN_OR_RETURN(
          const kernels::DeviceTilePlan plan,
          kernels::LaunchVerticalSlashPlan(
              choice,
              {.q_begin = row,
               .q_len = std::min(end - row, kSliceRows),
               .pairs = pairs.data()},
              plan_scratch.data(), plan_scratch.bytes(), stream.get()));
      OVERTURE_RETURN_IF_ERROR(mark(&times->plan_ms));
      OVERTURE_RETURN_IF_ERROR(
          kernels::LaunchSparseAttention({.q = tensors.q + row * dim * 2,
                                          .k = tensors.k,
                                          .v = tensors.v,
                                          .o = tensors.o + row * dim * 2,
                                          .stride_q_row = dim,
                                          .stride_q_head = n * dim,
                                          .stride_kv_row = dim,
                                          .stride_kv_head = n * dim,
                                          .stride_o_row = dim,
                                          .stride_o_head = n * dim,
                                          .num_q_heads = shape.num_q_heads,
                                          .num_kv_heads = shape.num_kv_heads,
                                          .head_dim = shape.head_dim,
                                          .scale = scale},
                                         plan, stream.get()));
      OVERTURE_RETURN_IF_ERROR(mark(&times->attention_ms));
    }
  }
  OVERTURE_RETURN_IF_ERROR(
      pairs.CopyToHost(absl::MakeSpan(&host_pairs, 1), stream));
  OVERTURE_RETURN_IF_ERROR(stream.Synchronize());
  times->pairs = static_cast<double>(host_pairs);
  for (size_t i = 1; i < marks.size(); ++i) {
    OVERTURE_ASSIGN_OR_RETURN(
        const float millis, ElapsedMillis(marks[i - 1].event, marks[i].event));
    *marks[i].phase += millis;
  }
  return absl::OkStatus();
}

int Report(const absl::Status& status) {
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 1;
}

absl::Status DescribeLayer(int32_t layer, float* q_means, float* k_means,
                           double* inv_freq, int32_t* sizes) {
  const engine::ModelConfig config = bench::Llama3Config8B();
  OVERTURE_ASSIGN_OR_RETURN(const auto model,
                            bench::StructuredModel::Create(config));
  const bench::AttentionMeans means = model.Means(layer);
  std::copy(means.q.begin(), means.q.end(), q_means);
  for (const auto& k : {means.k, means.k_sink, means.k_mark}) {
    k_means = std::copy(k.begin(), k.end(), k_means);
  }
  const std::vector<double> frequencies =
      engine::RopeInverseFrequencies(config);
  std::copy(frequencies.begin(), frequencies.end(), inv_freq);
  for (int32_t h = 0; h < config.num_q_heads; ++h) {
    *sizes++ = model.head(layer, h).size.vertical;
    *sizes++ = model.head(layer, h).size.slash;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace overture

extern "C" {

// Both return 0, or 1 with the reason on standard error.

// All segments of a layer: probe, choice, attention. `sizes` is [num_q_heads]
// pairs (vertical, slash). The tensors are [heads, tokens, head_dim] bf16 on
// the device, ready; returns when done.
int OvertureVerticalSlashLayer(const OvertureLayerShape* shape,
                               const int32_t* sizes, const void* q,
                               const void* k, const void* v, void* o,
                               OvertureLayerTimes* times) {
  std::vector<overture::kernels::VerticalSlashSize> all(shape->num_q_heads);
  for (auto& size : all) {
    size = {.vertical = sizes[0], .slash = sizes[1]};
    sizes += 2;
  }
  return overture::Report(overture::RunLayer(
      *shape, all,
      {static_cast<const std::byte*>(q), static_cast<const std::byte*>(k),
       static_cast<const std::byte*>(v), static_cast<std::byte*>(o)},
      times));
}

// A layer of bench/structured_model.h's 8B model: q_means [32 * 128], k_means
// [3: ordinary, sink, marked][8 * 128], inv_freq [64], sizes [32][2].
int OvertureStructuredLayer(int32_t layer, float* q_means, float* k_means,
                            double* inv_freq, int32_t* sizes) {
  return overture::Report(
      overture::DescribeLayer(layer, q_means, k_means, inv_freq, sizes));
}

}  // extern "C"
