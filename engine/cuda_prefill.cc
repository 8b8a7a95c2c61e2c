#include "engine/cuda_prefill.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "engine/row_pieces.h"
#include "kernels/fp8/quantize_rows.h"
#include "kernels/fp8_attention/fp8_attention.h"
#include "kernels/probe_attention/probe_attention.h"
#include "kernels/selectors/static_plans.h"
#include "kernels/selectors/vertical_slash_gpu.h"
#include "kernels/sparse_attention/sparse_attention.h"
#include "kernels/tile_plan.h"
#include "kernels/transformer_ops/transformer_ops.h"

namespace overture::engine {
namespace {

constexpr int64_t kElement = 2;  // bytes of bf16

}  // namespace

CudaWorkspaceShape CudaPrefill::ShapeOf(const PrefillJob& job,
                                        const ModelConfig& config) {
  const int64_t n = static_cast<int64_t>(job.tokens.size());
  CudaWorkspaceShape shape{
      .num_tokens = n,
      .num_new = n - job.num_cached,
      .window_rows = NeedsVotes(job) ? job.view->window : 0};
  if (job.selector.kind == SelectorSpec::Kind::kDynamic) {
    shape.segment_rows = SegmentsOf(job.selector).LongestOf(n);
    for (int32_t layer = 0; layer < config.num_layers; ++layer) {
      const std::vector<kernels::VerticalSlashSize> sizes =
          SizesOfLayer(job.selector, layer, config.num_q_heads);
      shape.selector_bytes = std::max(
          shape.selector_bytes,
          kernels::VerticalSlashChoiceBytes(n, sizes) +
              kernels::VerticalSlashPlanBytes(
                  std::min(shape.num_new, shape.segment_rows), n, sizes));
    }
  }
  return shape;
}

CudaPrefill::CudaPrefill(const Resources& resources, const PrefillJob& job)
    : resources_(resources),
      plan_(resources.plan),
      weights_(resources.weights),
      config_(resources.weights.config()),
      job_(job),
      compute_(resources.compute),
      segments_(selects() ? SegmentsOf(job.selector)
                          : SegmentRule::Uniform(kCudaMaxSegmentRows)),
      pairs_(config_.num_layers) {}

absl::StatusOr<PrefillOutput> CudaPrefill::Run() {
  // The buffers are lent: nothing may be in flight when they go back, nor when
  // the plans are freed.
  const auto wait = absl::MakeCleanup([this] {
    compute_.Synchronize().IgnoreError();
    resources_.copies.Synchronize().IgnoreError();
  });
  OVERTURE_ASSIGN_OR_RETURN(computed_, Event::Create());
  for (int i = 0; i < 2; ++i) {
    OVERTURE_ASSIGN_OR_RETURN(Event copied, Event::Create());
    copied_.push_back(std::move(copied));
    OVERTURE_ASSIGN_OR_RETURN(Event paced, Event::Create());
    paced_.push_back(std::move(paced));
  }
  if (job_.view.has_value()) {
    output_.view.emplace();
    output_.view->plan.logical_length = num_tokens();
  }
  OVERTURE_RETURN_IF_ERROR(RunLayers());
  OVERTURE_RETURN_IF_ERROR(SumPhases());
  if (selects()) {
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
      pairs_[layer].computed =
          static_cast<double>(Pinned<uint64_t>(plan_.host_pairs)[layer]) /
          config_.num_q_heads;
    }
  }
  SetDensity(pairs_, &output_);
  return std::move(output_);
}

absl::Status CudaPrefill::RunLayers() {
  const int64_t num_new = num_tokens() - job_.num_cached;
  OVERTURE_RETURN_IF_ERROR(Enter(Phase::kOther));
  OVERTURE_RETURN_IF_ERROR(CudaStatus(
      cudaMemcpyAsync(Device<void>(plan_.tokens),
                      job_.tokens.data() + job_.num_cached, num_new * 4,
                      cudaMemcpyHostToDevice, compute_.get()),
      "copying tokens"));
  OVERTURE_RETURN_IF_ERROR(AsInternal(
      kernels::LaunchEmbed({.tokens = Device<int32_t>(plan_.tokens),
                            .table = weights_.embedding().data(),
                            .residual = Device<float>(plan_.residual),
                            .rows = num_new,
                            .columns = config_.hidden_size},
                           compute_.get())));
  if (selects()) {
    OVERTURE_RETURN_IF_ERROR(
        CudaStatus(cudaMemsetAsync(Device<void>(plan_.pairs), 0,
                                   plan_.pairs.bytes, compute_.get()),
                   "clearing the count of pairs"));
  }
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    OVERTURE_RETURN_IF_ERROR(RunLayer(layer));
    if (layer > 0) OVERTURE_RETURN_IF_ERROR(FinishLayer(layer - 1));
  }
  OVERTURE_RETURN_IF_ERROR(FinishLayer(config_.num_layers - 1));
  return FinalLogits();
}

absl::Status CudaPrefill::RunLayer(int32_t layer) {
  layer_ = layer;
  have_votes_ = false;
  quantized_keys_ = 0;
  const int64_t n = num_tokens();
  const bool is_last = layer + 1 == config_.num_layers;
  first_output_row_ = is_last ? n - 1 : job_.num_cached;

  OVERTURE_RETURN_IF_ERROR(CheckStop());
  OVERTURE_RETURN_IF_ERROR(ReadPrefix(layer));
  OVERTURE_RETURN_IF_ERROR(ForEachPiece(job_.num_cached, n, segments_,
                                        [this](int64_t begin, int64_t end) {
                                          return RunSegment({begin, end});
                                        }));
  if (votes()) {
    if (!have_votes_) {
      OVERTURE_RETURN_IF_ERROR(Enter(Phase::kSelector));
      OVERTURE_RETURN_IF_ERROR(Probe(Device<std::byte>(plan_.window_q),
                                     job_.view->window, n, false, true));
    }
    OVERTURE_RETURN_IF_ERROR(CopyVotes());
  }
  // The copy out runs beside the next layer.
  OVERTURE_RETURN_IF_ERROR(computed_->Record(compute_));
  OVERTURE_RETURN_IF_ERROR(resources_.copies.WaitFor(*computed_));
  OVERTURE_RETURN_IF_ERROR(CopyRows(Pinned<std::byte>(plan_.host_kv[slot()]),
                                    k(), {job_.num_cached, n},
                                    resources_.copies));
  return copied_[slot()].Record(resources_.copies);
}

absl::Status CudaPrefill::RunSegment(Rows segment) {
  OVERTURE_RETURN_IF_ERROR(KeepPace());
  OVERTURE_RETURN_IF_ERROR(ProjectQkv(segment));
  const Rows output = {std::max(segment.begin, first_output_row_), segment.end};
  if (output.size() > 0) {
    OVERTURE_RETURN_IF_ERROR(Enter(Phase::kSelector));
    OVERTURE_ASSIGN_OR_RETURN(const kernels::DeviceTilePlan plan,
                              PlanOf(segment, output));
    OVERTURE_RETURN_IF_ERROR(Enter(Phase::kAttention));
    OVERTURE_RETURN_IF_ERROR(Attend(segment, output, plan));
    OVERTURE_RETURN_IF_ERROR(ProjectAndMlp(segment, output));
  }
  return paced_[num_segments_++ % 2].Record(compute_);
}

absl::Status CudaPrefill::FinishLayer(int32_t layer) {
  OVERTURE_RETURN_IF_ERROR(copied_[layer % 2].Synchronize());
  const LayerKvView kv = host_view(layer);
  if (job_.view.has_value()) {
    const int64_t count = config_.num_kv_heads * num_tokens();
    output_.view->AppendLayer(
        weights_.kv_layout(), kv,
        votes() ? absl::MakeConstSpan(
                      Pinned<float>(plan_.host_votes[layer % 2]), count)
                : absl::Span<const float>(),
        *job_.view);
  }
  OVERTURE_RETURN_IF_ERROR(CheckStop());
  job_.io->LayerDone(layer, kv);
  return absl::OkStatus();
}

absl::Status CudaPrefill::ReadPrefix(int32_t layer) {
  if (job_.num_cached == 0) return absl::OkStatus();
  // The slot's last layer was handed out, so both its sides are free.
  const auto begin = std::chrono::steady_clock::now();
  MutableLayerKvView dst = host_view(layer);
  dst.num_rows = job_.num_cached;
  OVERTURE_RETURN_IF_ERROR(job_.io->ReadPrefix(layer, dst));
  output_.prefix_seconds +=
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin)
          .count();
  OVERTURE_RETURN_IF_ERROR(Enter(Phase::kOther));
  return CopyRows(k(), Pinned<std::byte>(plan_.host_kv[slot()]),
                  {0, job_.num_cached}, compute_);
}

absl::Status CudaPrefill::ProjectQkv(Rows segment) {
  const CudaLayerWeights& weights = weights_.layer(layer_);
  const int64_t n = num_tokens();
  const int64_t q_row_bytes = weights_.q_size() * kElement;
  std::byte* q = Device<std::byte>(plan_.q);
  for (int64_t begin = segment.begin; begin < segment.end;
       begin += kCudaChunkRows) {
    const int64_t rows = std::min(kCudaChunkRows, segment.end - begin);
    OVERTURE_RETURN_IF_ERROR(Enter(Phase::kOther));
    OVERTURE_RETURN_IF_ERROR(AsInternal(
        kernels::LaunchRmsNorm({.x = residual_row(begin),
                                .weight = weights.attention_norm.data(),
                                .out = Device<void>(plan_.normed),
                                .out_scales = row_scales(),
                                .eps = config_.rms_norm_eps,
                                .rows = rows,
                                .columns = config_.hidden_size},
                               compute_.get())));
    OVERTURE_RETURN_IF_ERROR(
        Multiply(*weights.qkv, {Device<void>(plan_.normed), row_scales()}, rows,
                 Device<void>(plan_.qkv), DType::kF32, /*accumulate=*/false));
    const int64_t kv_offset = begin * config_.head_dim * kElement;
    OVERTURE_RETURN_IF_ERROR(AsInternal(
        kernels::LaunchRopeKv({.qkv = Device<float>(plan_.qkv),
                               .inv_freq = weights_.inv_freq().data(),
                               .q = q + (begin - segment.begin) * q_row_bytes,
                               .k = k() + kv_offset,
                               .v = v() + kv_offset,
                               .stride_kv_head = n * config_.head_dim,
                               .rows = rows,
                               .position_begin = begin,
                               .num_q_heads = config_.num_q_heads,
                               .num_kv_heads = config_.num_kv_heads,
                               .head_dim = config_.head_dim},
                              compute_.get())));
  }
  if (!votes()) return absl::OkStatus();
  // The window may reach over a segment border: keep its rows aside.
  const int64_t window_begin = n - job_.view->window;
  const int64_t begin = std::max(segment.begin, window_begin);
  if (begin >= segment.end) return absl::OkStatus();
  return CudaStatus(cudaMemcpyAsync(Device<std::byte>(plan_.window_q) +
                                        (begin - window_begin) * q_row_bytes,
                                    q + (begin - segment.begin) * q_row_bytes,
                                    (segment.end - begin) * q_row_bytes,
                                    cudaMemcpyDeviceToDevice, compute_.get()),
                    "keeping the window's queries");
}

absl::Status CudaPrefill::Probe(const std::byte* q, int64_t num_rows,
                                int64_t kv_len, bool with_sums,
                                bool with_votes) {
  kernels::ProbeAttentionParams params{
      .dtype = DType::kBF16,
      .q = q,
      .k = k(),
      .stride_q_row = weights_.q_size(),
      .stride_q_head = config_.head_dim,
      .stride_k_row = config_.head_dim,
      .stride_k_head = num_tokens() * config_.head_dim,
      .num_q_heads = config_.num_q_heads,
      .num_kv_heads = config_.num_kv_heads,
      .head_dim = config_.head_dim,
      .num_rows = static_cast<int32_t>(num_rows),
      .kv_len = kv_len,
      .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim))};
  if (with_sums) {
    params.column_sums = Device<float>(plan_.columns);
    params.diagonal_sums = Device<float>(plan_.diagonals);
  }
  if (with_votes) {
    params.window_votes = Device<float>(plan_.votes);
    params.window_rows = job_.view->window;
    have_votes_ = true;
  }
  return AsInternal(kernels::LaunchProbeAttention(
      params, Device<void>(plan_.probe), plan_.probe.bytes, compute_.get()));
}

absl::Status CudaPrefill::CopyVotes() {
  const MemoryRegion& to = plan_.host_votes[slot()];
  return CudaStatus(
      cudaMemcpyAsync(Pinned<void>(to), Device<void>(plan_.votes), to.bytes,
                      cudaMemcpyDeviceToHost, compute_.get()),
      "copying votes");
}

absl::StatusOr<kernels::DeviceTilePlan> CudaPrefill::PlanOf(Rows segment,
                                                            Rows output) {
  const double causal =
      static_cast<double>(CausalPairs(output.begin, output.end));
  pairs_[layer_].causal += causal;
  if (selects()) return ChoosePlan(segment, output);
  OVERTURE_ASSIGN_OR_RETURN(const StaticPlan* plan, GetStaticPlan(output));
  pairs_[layer_].computed += causal * plan->density;
  return plan->uploaded.plan();
}

absl::StatusOr<kernels::DeviceTilePlan> CudaPrefill::ChoosePlan(Rows segment,
                                                                Rows output) {
  const int64_t kv_len = segment.end;
  const int64_t num_rows =
      std::min<int64_t>(kernels::kProbeRows, segment.size());
  const std::byte* q =
      Device<std::byte>(plan_.q) +
      (segment.size() - num_rows) * weights_.q_size() * kElement;
  // One pass serves both when the window lies within the probe's rows.
  const bool with_votes =
      votes() && kv_len == num_tokens() && job_.view->window <= num_rows;
  OVERTURE_RETURN_IF_ERROR(Probe(q, num_rows, kv_len, true, with_votes));
  const std::vector<kernels::VerticalSlashSize> sizes =
      SizesOfLayer(job_.selector, layer_, config_.num_q_heads);
  const int64_t choice_bytes = kernels::VerticalSlashChoiceBytes(kv_len, sizes);
  const absl::StatusOr<kernels::VerticalSlashChoice> choice =
      kernels::LaunchVerticalSlashChoice(
          {.column_sums = Device<float>(plan_.columns),
           .diagonal_sums = Device<float>(plan_.diagonals),
           .sizes = sizes,
           .kv_len = kv_len},
          Device<void>(plan_.selector), plan_.selector.bytes, compute_.get());
  if (!choice.ok()) return AsInternal(choice.status());
  const absl::StatusOr<kernels::DeviceTilePlan> plan =
      kernels::LaunchVerticalSlashPlan(
          *choice,
          {.q_begin = output.begin,
           .q_len = output.size(),
           .pairs = Device<uint64_t>(plan_.pairs) + layer_},
          Device<std::byte>(plan_.selector) + choice_bytes,
          plan_.selector.bytes - choice_bytes, compute_.get());
  if (!plan.ok()) return AsInternal(plan.status());
  return *plan;
}

absl::StatusOr<const CudaPrefill::StaticPlan*> CudaPrefill::GetStaticPlan(
    Rows output) {
  const std::pair<int64_t, int64_t> key = {output.begin, output.end};
  const auto found = static_plans_.find(key);
  if (found != static_plans_.end()) return &found->second;
  const kernels::PlanShape shape{.q_begin = output.begin,
                                 .q_len = output.size(),
                                 .kv_len = output.end,
                                 .tile_rows = kernels::kGpuTileRows,
                                 .tile_keys = kernels::kGpuTileKeys};
  const absl::StatusOr<kernels::TilePlan> plan =
      job_.selector.kind == SelectorSpec::Kind::kAShape
          ? kernels::AShapePlan(shape, job_.selector.num_initial,
                                job_.selector.num_local)
          : kernels::DensePlan(shape);
  if (!plan.ok()) return AsInternal(plan.status());
  absl::StatusOr<kernels::UploadedPlan> uploaded =
      kernels::UploadedPlan::Upload(*plan, config_.num_q_heads,
                                    config_.num_kv_heads, compute_);
  if (!uploaded.ok()) return AsInternal(uploaded.status());
  return &static_plans_
              .emplace(key, StaticPlan{*std::move(uploaded),
                                       kernels::Cost(*plan).density})
              .first->second;
}

absl::Status CudaPrefill::Attend(Rows segment, Rows output,
                                 const kernels::DeviceTilePlan& plan) {
  const int64_t offset =
      (output.begin - segment.begin) * weights_.q_size() * kElement;
  const kernels::SparseAttentionParams params = {
      .dtype = DType::kBF16,
      .q = Device<std::byte>(plan_.q) + offset,
      .k = k(),
      .v = v(),
      .o = Device<std::byte>(plan_.o) + offset,
      .stride_q_row = weights_.q_size(),
      .stride_q_head = config_.head_dim,
      .stride_kv_row = config_.head_dim,
      .stride_kv_head = num_tokens() * config_.head_dim,
      .stride_o_row = weights_.q_size(),
      .stride_o_head = config_.head_dim,
      .num_q_heads = config_.num_q_heads,
      .num_kv_heads = config_.num_kv_heads,
      .head_dim = config_.head_dim,
      .scale = 1.0f / std::sqrt(static_cast<float>(config_.head_dim))};
  if (resources_.attention == AttentionPrecision::kBF16) {
    return AsInternal(
        kernels::LaunchSparseAttention(params, plan, compute_.get()));
  }
  const kernels::Fp8Kv kv =
      kernels::Fp8KvIn(Device<void>(plan_.fp8_kv), config_.num_kv_heads,
                       config_.head_dim, num_tokens());
  OVERTURE_RETURN_IF_ERROR(AsInternal(
      kernels::LaunchQuantizeKv({.k = params.k,
                                 .v = params.v,
                                 .stride_kv_row = params.stride_kv_row,
                                 .stride_kv_head = params.stride_kv_head,
                                 .num_kv_heads = config_.num_kv_heads,
                                 .head_dim = config_.head_dim,
                                 .begin = quantized_keys_,
                                 .kv_len = segment.end,
                                 .out = kv},
                                compute_.get())));
  quantized_keys_ = segment.end;
  return AsInternal(kernels::LaunchFp8Attention(
      params, plan, kv, Device<void>(plan_.fp8_queries), compute_.get()));
}

absl::Status CudaPrefill::Multiply(const kernels::Linear& linear,
                                   const kernels::LinearInput& x, int64_t rows,
                                   void* y, DType y_dtype, bool accumulate) {
  OVERTURE_RETURN_IF_ERROR(Enter(Phase::kLinear));
  OVERTURE_RETURN_IF_ERROR(
      AsInternal(linear.Apply(x, rows, y, y_dtype, accumulate, compute_)));
  return Enter(Phase::kOther);
}

absl::Status CudaPrefill::ProjectAndMlp(Rows segment, Rows output) {
  const CudaLayerWeights& weights = weights_.layer(layer_);
  for (int64_t begin = output.begin; begin < output.end;
       begin += kCudaChunkRows) {
    const int64_t rows = std::min(kCudaChunkRows, output.end - begin);
    const int64_t o_offset =
        (begin - segment.begin) * weights_.q_size() * kElement;
    kernels::LinearInput o = {Device<std::byte>(plan_.o) + o_offset};
    if (row_scales() != nullptr) {
      OVERTURE_RETURN_IF_ERROR(AsInternal(
          kernels::LaunchQuantizeRows({.x = o.values,
                                       .codes = Device<void>(plan_.o_codes),
                                       .scales = row_scales(),
                                       .rows = rows,
                                       .columns = weights_.q_size()},
                                      compute_.get())));
      o = {Device<void>(plan_.o_codes), row_scales()};
    }
    OVERTURE_RETURN_IF_ERROR(Multiply(*weights.o, o, rows, residual_row(begin),
                                      DType::kF32, /*accumulate=*/true));
    OVERTURE_RETURN_IF_ERROR(
        AsInternal(kernels::LaunchRmsNorm({.x = residual_row(begin),
                                           .weight = weights.mlp_norm.data(),
                                           .out = Device<void>(plan_.normed),
                                           .out_scales = row_scales(),
                                           .eps = config_.rms_norm_eps,
                                           .rows = rows,
                                           .columns = config_.hidden_size},
                                          compute_.get())));
    OVERTURE_RETURN_IF_ERROR(Multiply(
        *weights.gate_up, {Device<void>(plan_.normed), row_scales()}, rows,
        Device<void>(plan_.gate_up), DType::kBF16, /*accumulate=*/false));
    OVERTURE_RETURN_IF_ERROR(AsInternal(
        kernels::LaunchSwiGlu({.gate_up = Device<void>(plan_.gate_up),
                               .out = Device<void>(plan_.act),
                               .out_scales = row_scales(),
                               .rows = rows,
                               .columns = config_.intermediate_size},
                              compute_.get())));
    OVERTURE_RETURN_IF_ERROR(
        Multiply(*weights.down, {Device<void>(plan_.act), row_scales()}, rows,
                 residual_row(begin), DType::kF32, /*accumulate=*/true));
  }
  return absl::OkStatus();
}

absl::Status CudaPrefill::FinalLogits() {
  OVERTURE_RETURN_IF_ERROR(Enter(Phase::kOther));
  OVERTURE_RETURN_IF_ERROR(AsInternal(
      kernels::LaunchRmsNorm({.x = residual_row(num_tokens() - 1),
                              .weight = weights_.output_norm().data(),
                              .out = Device<void>(plan_.normed),
                              .eps = config_.rms_norm_eps,
                              .rows = 1,
                              .columns = config_.hidden_size},
                             compute_.get())));
  OVERTURE_RETURN_IF_ERROR(
      Multiply(weights_.lm_head(), {Device<void>(plan_.normed)}, 1,
               Device<void>(plan_.logits), DType::kF32, /*accumulate=*/false));
  OVERTURE_RETURN_IF_ERROR(
      CudaStatus(cudaMemcpyAsync(Pinned<void>(plan_.host_logits),
                                 Device<void>(plan_.logits), plan_.logits.bytes,
                                 cudaMemcpyDeviceToHost, compute_.get()),
                 "copying logits"));
  if (selects()) {
    OVERTURE_RETURN_IF_ERROR(
        CudaStatus(cudaMemcpyAsync(Pinned<void>(plan_.host_pairs),
                                   Device<void>(plan_.pairs), plan_.pairs.bytes,
                                   cudaMemcpyDeviceToHost, compute_.get()),
                   "copying the count of pairs"));
  }
  OVERTURE_RETURN_IF_ERROR(compute_.Synchronize());
  const float* logits = Pinned<float>(plan_.host_logits);
  output_.logits.assign(logits, logits + config_.vocab_size);
  for (const float logit : output_.logits) {
    if (std::isfinite(logit)) continue;
    return absl::InternalError(
        "a logit is not finite: the model's weights are broken");
  }
  return absl::OkStatus();
}

absl::Status CudaPrefill::CopyRows(std::byte* to, const std::byte* from,
                                   Rows rows, const Stream& stream) const {
  const int64_t row_bytes = config_.head_dim * kElement;
  const int64_t pitch = num_tokens() * row_bytes;
  return CudaStatus(
      cudaMemcpy2DAsync(to + rows.begin * row_bytes, pitch,
                        from + rows.begin * row_bytes, pitch,
                        rows.size() * row_bytes, 2 * config_.num_kv_heads,
                        cudaMemcpyDefault, stream.get()),
      "copying KV");
}

absl::Status CudaPrefill::KeepPace() {
  OVERTURE_RETURN_IF_ERROR(paced_[num_segments_ % 2].Synchronize());
  return CheckStop();
}

absl::Status CudaPrefill::CheckStop() const {
  if (!job_.stop.stop_requested()) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("prefill stopped in layer ", layer_,
                                           " of ", config_.num_layers));
}

absl::Status CudaPrefill::Enter(Phase phase) {
  if (!marks_.empty() && marks_.back().phase == phase) return absl::OkStatus();
  OVERTURE_ASSIGN_OR_RETURN(Event event, Event::Create(Event::Timing::kOn));
  OVERTURE_RETURN_IF_ERROR(event.Record(compute_));
  marks_.push_back({.phase = phase, .event = std::move(event)});
  return absl::OkStatus();
}

absl::Status CudaPrefill::SumPhases() {
  for (size_t i = 0; i + 1 < marks_.size(); ++i) {
    OVERTURE_ASSIGN_OR_RETURN(
        const float millis,
        ElapsedMillis(marks_[i].event, marks_[i + 1].event));
    switch (marks_[i].phase) {
      case Phase::kLinear:
        output_.linear_seconds += millis * 1e-3;
        break;
      case Phase::kSelector:
        output_.selector_seconds += millis * 1e-3;
        break;
      case Phase::kAttention:
        output_.attention_seconds += millis * 1e-3;
        break;
      case Phase::kOther:
        break;
    }
  }
  return absl::OkStatus();
}

MutableLayerKvView CudaPrefill::host_view(int32_t layer) const {
  const MemoryRegion& region = plan_.host_kv[layer % 2];
  std::byte* k = Pinned<std::byte>(region);
  return {.k = k,
          .v = k + region.bytes / 2,
          .num_rows = num_tokens(),
          .head_stride_bytes = weights_.kv_layout().HeadBytes(num_tokens())};
}

}  // namespace overture::engine
