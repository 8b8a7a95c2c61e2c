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
#include "kernels/sparse_attention/sparse_attention.h"
#include "kernels/transformer_ops/transformer_ops.h"

namespace overture::engine {
namespace {

constexpr int64_t kElement = 2;  // bytes of bf16

SegmentRule SegmentsOfLoop(const SelectorSpec& spec) {
  return IsTokenPure(spec) ? SegmentRule::Uniform(kCudaPieceRows)
                           : SegmentsOf(spec);
}

}  // namespace

CudaWorkspaceShape CudaPrefill::ShapeOf(const PrefillJob& job,
                                        const ModelConfig& config) {
  const int64_t n = static_cast<int64_t>(job.tokens.size());
  const int64_t num_new = n - job.num_cached;
  return {.num_tokens = n,
          .num_new = num_new,
          .segment_rows = SegmentsOfLoop(job.selector).LongestOf(n),
          .selector = CudaSelector::MemoryOf(job.selector, config, n, num_new),
          .audit = CudaRowAudit::MemoryOf(job, config),
          .window_rows = NeedsVotes(job) ? job.view->window : 0};
}

CudaPrefill::CudaPrefill(const Resources& resources, const PrefillJob& job)
    : resources_(resources),
      plan_(resources.plan),
      weights_(resources.weights),
      config_(resources.weights.config()),
      job_(job),
      compute_(resources.compute),
      segments_(SegmentsOfLoop(job.selector)),
      selector_(job.selector, config_, num_tokens(),
                num_tokens() - job.num_cached,
                {.stream = compute_,
                 .device = Device<std::byte>(plan_.selector),
                 .pinned = Pinned<std::byte>(plan_.host_selector),
                 .probe_scratch = Device<void>(plan_.probe),
                 .probe_scratch_bytes = plan_.probe.bytes}),
      audit_(job, config_,
             {.stream = compute_,
              .device = Device<std::byte>(plan_.audit),
              .pinned = Pinned<std::byte>(plan_.host_audit)}) {
  if (votes()) {
    votes_ = {.sums = Device<float>(plan_.votes), .window = job_.view->window};
  }
}

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
  SetDensity(selector_.Pairs(), &output_);
  output_.audit = audit_.Audited();
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
  OVERTURE_RETURN_IF_ERROR(selector_.Begin());
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    OVERTURE_RETURN_IF_ERROR(RunLayer(layer));
    if (layer > 0) OVERTURE_RETURN_IF_ERROR(FinishLayer(layer - 1));
  }
  OVERTURE_RETURN_IF_ERROR(FinishLayer(config_.num_layers - 1));
  return FinalLogits();
}

absl::Status CudaPrefill::RunLayer(int32_t layer) {
  layer_ = layer;
  votes_.done = false;
  quantized_keys_ = 0;
  const int64_t n = num_tokens();
  const bool is_last = layer + 1 == config_.num_layers;
  first_output_row_ = is_last ? n - 1 : job_.num_cached;
  audit_.BeginLayer(layer, first_output_row_);

  OVERTURE_RETURN_IF_ERROR(CheckStop());
  OVERTURE_RETURN_IF_ERROR(ReadPrefix(layer));
  OVERTURE_RETURN_IF_ERROR(ForEachPiece(job_.num_cached, n, segments_,
                                        [this](int64_t begin, int64_t end) {
                                          return RunSegment({begin, end});
                                        }));
  OVERTURE_RETURN_IF_ERROR(Enter(Phase::kAudit));
  OVERTURE_RETURN_IF_ERROR(audit_.EndLayer(k()));
  OVERTURE_RETURN_IF_ERROR(Enter(Phase::kOther));
  if (votes()) {
    if (!votes_.done) OVERTURE_RETURN_IF_ERROR(Vote());
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
  OVERTURE_RETURN_IF_ERROR(
      audit_.TakeObserved(TensorsOf(segment, Device<std::byte>(plan_.q))));
  const Rows output = {std::max(segment.begin, first_output_row_), segment.end};
  if (output.size() > 0) {
    OVERTURE_RETURN_IF_ERROR(Enter(Phase::kSelector));
    const bool is_last = segment.end == num_tokens();
    OVERTURE_RETURN_IF_ERROR(
        selector_.Choose(layer_, TensorsOf(segment, Device<std::byte>(plan_.q)),
                         votes() && is_last ? &votes_ : nullptr));
    OVERTURE_RETURN_IF_ERROR(ForEachPiece(
        output.begin, output.end,
        SegmentRule::Uniform(selector_.max_plan_rows()),
        [&](int64_t begin, int64_t end) -> absl::Status {
          OVERTURE_RETURN_IF_ERROR(Enter(Phase::kSelector));
          OVERTURE_ASSIGN_OR_RETURN(const kernels::DeviceTilePlan plan,
                                    selector_.PlanOf(begin, end));
          OVERTURE_RETURN_IF_ERROR(Enter(Phase::kAttention));
          OVERTURE_RETURN_IF_ERROR(Attend(segment, {begin, end}, plan));
          OVERTURE_RETURN_IF_ERROR(Enter(Phase::kAudit));
          return audit_.TakeAttended(
              TensorsOf(segment, Device<std::byte>(plan_.q)), begin, end);
        }));
    OVERTURE_RETURN_IF_ERROR(Enter(Phase::kOther));
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
  audit_.Observe(layer, kv);
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

SegmentTensors CudaPrefill::TensorsOf(Rows rows, const std::byte* q) const {
  return {.begin = rows.begin,
          .end = rows.end,
          .dtype = DType::kBF16,
          .q = q,
          .k = k(),
          .v = v(),
          .num_tokens = num_tokens()};
}

absl::Status CudaPrefill::Vote() {
  OVERTURE_RETURN_IF_ERROR(Enter(Phase::kSelector));
  const int32_t window = job_.view->window;
  kernels::ProbeAttentionParams probe =
      ProbeOf(TensorsOf({num_tokens() - window, num_tokens()},
                        Device<std::byte>(plan_.window_q)),
              config_, window);
  AddVotes(&votes_, &probe);
  return AsInternal(kernels::LaunchProbeAttention(
      probe, Device<void>(plan_.probe), plan_.probe.bytes, compute_.get()));
}

absl::Status CudaPrefill::CopyVotes() {
  const MemoryRegion& to = plan_.host_votes[slot()];
  return CudaStatus(
      cudaMemcpyAsync(Pinned<void>(to), Device<void>(plan_.votes), to.bytes,
                      cudaMemcpyDeviceToHost, compute_.get()),
      "copying votes");
}

absl::Status CudaPrefill::Attend(Rows segment, Rows output,
                                 const kernels::DeviceTilePlan& plan) {
  const int64_t offset =
      (output.begin - segment.begin) * weights_.q_size() * kElement;
  kernels::SparseAttentionParams params = {
      .dtype = DType::kBF16,
      .q = Device<std::byte>(plan_.q) + offset,
      .k = k(),
      .v = v(),
      .o = Device<std::byte>(plan_.o) + offset,
      .lse = audit_.LseOf(output.begin, output.end),
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
  selector_.SetMeans(&params);
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
                                 .kv_len = output.end,
                                 .out = kv},
                                compute_.get())));
  quantized_keys_ = output.end;
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
  OVERTURE_RETURN_IF_ERROR(selector_.FetchCounts());
  OVERTURE_RETURN_IF_ERROR(audit_.Fetch());
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
      case Phase::kAudit:
        output_.audit_seconds += millis * 1e-3;
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
