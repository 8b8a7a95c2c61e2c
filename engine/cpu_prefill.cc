#include "engine/cpu_prefill.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/row_pieces.h"
#include "kernels/fp8_attention/fp8_attention_cpu.h"
#include "kernels/probe_attention/probe_attention_cpu.h"
#include "kernels/sparse_attention/sparse_attention_cpu.h"

namespace overture::engine {
namespace {

// Rows of one matrix product. 512 keeps a chunk's activations in the second
// level cache and is long enough for full speed.
constexpr int64_t kChunkRows = 512;
// Rows of one attention call: 64 query tiles a head keep all cores busy, and a
// stop request waits for one piece at most. A multiple of the tile's 64 rows.
constexpr int64_t kPieceRows = 4096;
constexpr SegmentRule kPieces = SegmentRule::Uniform(kPieceRows);
// Most rows whose queries are held at once.
constexpr int64_t kMaxSegmentRows = kMaxSegmentTokens;

// Adds the time from construction to destruction to `*seconds`.
class Timer {
 public:
  explicit Timer(double* seconds) : seconds_(seconds) {}
  ~Timer() {
    *seconds_ += std::chrono::duration<double>(Clock::now() - begin_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  double* seconds_;
  Clock::time_point begin_ = Clock::now();
};

}  // namespace

CpuPrefill::CpuPrefill(const CpuWeights& weights, AttentionPrecision attention,
                       const PrefillJob& job)
    : weights_(weights),
      attention_(attention),
      job_(job),
      element_bytes_(SizeOf(weights.dtype())),
      segments_(IsTokenPure(job.selector) ? kPieces : SegmentsOf(job.selector)),
      selector_(job.selector, weights.config()),
      audit_(weights, job),
      pairs_(weights.config().num_layers) {
  const ModelConfig& config = weights_.config();
  const int64_t n = num_tokens();
  const int64_t num_new = n - job_.num_cached;
  const int64_t chunk = std::min(num_new, kChunkRows);
  const int64_t hidden_bytes = chunk * config.hidden_size;
  const int64_t inter = config.intermediate_size;

  residual_ = AlignedBuffer(num_new * config.hidden_size * 4);
  k_ = AlignedBuffer(n * weights_.kv_size() * element_bytes_);
  v_ = AlignedBuffer(n * weights_.kv_size() * element_bytes_);
  const int64_t q_row_bytes = weights_.q_size() * element_bytes_;
  q_ = AlignedBuffer(std::min(num_new, segments_.LongestOf(n)) * q_row_bytes);
  o_ = AlignedBuffer(std::min(num_new, kPieceRows) * q_row_bytes);
  normed_ = AlignedBuffer(hidden_bytes * element_bytes_);
  qkv_ = AlignedBuffer(chunk * weights_.qkv_size() * 4);
  hidden_ = AlignedBuffer(hidden_bytes * 4);
  gate_up_ = AlignedBuffer(chunk * 2 * inter * element_bytes_);
  act_ = AlignedBuffer(chunk * inter * element_bytes_);
  if (votes()) {
    window_q_ = AlignedBuffer(job_.view->window * q_row_bytes);
    window_votes_.resize(config.num_kv_heads * n);
    votes_ = {.sums = window_votes_.data(), .window = job_.view->window};
  }
}

int64_t CpuPrefill::WorkspaceBytes(const CpuWeights& weights,
                                   AttentionPrecision attention,
                                   int64_t num_tokens) {
  const ModelConfig& config = weights.config();
  const int64_t element = SizeOf(weights.dtype());
  const int64_t chunk = std::min(num_tokens, kChunkRows);
  const int64_t held = std::min(num_tokens, kMaxSegmentRows);
  const int64_t piece = std::min(num_tokens, kPieceRows);
  const int64_t rows =
      num_tokens * (config.hidden_size * 4 + 2 * weights.kv_size() * element);
  const int64_t queries = (held + piece) * weights.q_size() * element;
  const int64_t chunks =
      chunk * (config.hidden_size * (4 + element) + weights.qkv_size() * 4 +
               3 * config.intermediate_size * element);
  const int64_t choosing = CpuSelector::WorkspaceBytes(config, num_tokens);
  const int64_t codes = attention == AttentionPrecision::kFp8
                            ? kernels::Fp8AttentionCpuBytes(
                                  config.num_q_heads, config.num_kv_heads,
                                  config.head_dim, piece, num_tokens)
                            : 0;
  return rows + queries + chunks + choosing + codes +
         CpuRowAudit::WorkspaceBytes(weights, piece);
}

MutableLayerKvView CpuPrefill::kv_view() const {
  return {.k = k_.data(),
          .v = v_.data(),
          .num_rows = num_tokens(),
          .head_stride_bytes = weights_.kv_layout().HeadBytes(num_tokens())};
}

absl::Status CpuPrefill::CheckStop() const {
  if (!job_.stop.stop_requested()) return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("prefill stopped in layer ", layer_,
                                           " of ",
                                           weights_.config().num_layers));
}

absl::StatusOr<PrefillOutput> CpuPrefill::Run() {
  const ModelConfig& config = weights_.config();
  const int64_t n = num_tokens();
  for (int64_t i = job_.num_cached; i < n; ++i) {
    weights_.Embed(job_.tokens[i], residual_row(i));
  }
  if (job_.view.has_value()) {
    output_.view.emplace();
    output_.view->plan.logical_length = n;
  }
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    OVERTURE_RETURN_IF_ERROR(RunLayer(layer));
  }
  OVERTURE_RETURN_IF_ERROR(FinalLogits());
  SetDensity(pairs_, &output_);
  output_.audit = audit_.Take();
  return std::move(output_);
}

absl::Status CpuPrefill::RunLayer(int32_t layer) {
  layer_ = layer;
  votes_.done = false;
  const CpuLayerWeights& weights = weights_.layer(layer);
  const int64_t n = num_tokens();
  const bool is_last = layer + 1 == weights_.config().num_layers;
  first_output_row_ = is_last ? n - 1 : job_.num_cached;
  audit_.BeginLayer(layer, first_output_row_);

  OVERTURE_RETURN_IF_ERROR(CheckStop());
  OVERTURE_RETURN_IF_ERROR(ReadPrefix(layer));
  OVERTURE_RETURN_IF_ERROR(ForEachPiece(
      job_.num_cached, n, segments_,
      [&](int64_t begin, int64_t end) -> absl::Status {
        const Rows segment{begin, end};
        OVERTURE_RETURN_IF_ERROR(ProjectQkv(weights, segment));
        const int64_t output_begin = std::max(begin, first_output_row_);
        if (output_begin >= end) return absl::OkStatus();
        OVERTURE_RETURN_IF_ERROR(Choose(segment));
        return ForEachPiece(
            output_begin, end, kPieces,
            [&](int64_t piece_begin, int64_t piece_end) -> absl::Status {
              const Rows piece{piece_begin, piece_end};
              OVERTURE_RETURN_IF_ERROR(CheckStop());
              OVERTURE_RETURN_IF_ERROR(Attend(segment, piece));
              return ProjectAndMlp(weights, piece);
            });
      }));
  if (job_.view.has_value()) OVERTURE_RETURN_IF_ERROR(GatherView());
  {
    const Timer timer(&output_.audit_seconds);
    OVERTURE_RETURN_IF_ERROR(AsInternal(audit_.EndLayer(kv_view())));
  }
  OVERTURE_RETURN_IF_ERROR(CheckStop());
  job_.io->LayerDone(layer, kv_view());
  return absl::OkStatus();
}

absl::Status CpuPrefill::ReadPrefix(int32_t layer) {
  if (job_.num_cached == 0) return absl::OkStatus();
  const Timer timer(&output_.prefix_seconds);
  MutableLayerKvView dst = kv_view();
  dst.num_rows = job_.num_cached;
  return job_.io->ReadPrefix(layer, dst);
}

absl::Status CpuPrefill::ProjectQkv(const CpuLayerWeights& weights,
                                    Rows segment) {
  const Timer timer(&output_.linear_seconds);
  const ModelConfig& config = weights_.config();
  const DType dtype = weights_.dtype();
  const int64_t n = num_tokens();
  const int64_t q_size = weights_.q_size();
  const int64_t head_dim = config.head_dim;
  const int64_t q_row_bytes = q_size * element_bytes_;
  for (int64_t begin = segment.begin; begin < segment.end;
       begin += kChunkRows) {
    const int64_t rows = std::min(kChunkRows, segment.end - begin);
    OVERTURE_RETURN_IF_ERROR(CheckStop());
    kernels::RmsNormCpu(residual_row(begin), weights.attention_norm.data(),
                        config.rms_norm_eps, rows, config.hidden_size, dtype,
                        normed_.data());
    OVERTURE_RETURN_IF_ERROR(AsInternal(
        weights.qkv->Apply(normed_.data(), rows, qkv_.data(), DType::kF32)));

    const float* qkv = qkv_.As<float>();
    kernels::RopeParams params{
        .x = qkv,
        .stride_x_row = weights_.qkv_size(),
        .stride_x_head = head_dim,
        .out = q_.data() + (begin - segment.begin) * q_row_bytes,
        .stride_out_row = q_size,
        .stride_out_head = head_dim,
        .dtype = dtype,
        .rows = rows,
        .num_heads = config.num_q_heads,
        .head_dim = config.head_dim,
        .position_begin = begin};
    kernels::RopeCpu(weights_.rope(), params);
    // K and V land in the order in which they are stored.
    params.stride_out_row = head_dim;
    params.stride_out_head = n * head_dim;
    params.num_heads = config.num_kv_heads;
    params.x = qkv + q_size;
    params.out = k_.data() + begin * head_dim * element_bytes_;
    kernels::RopeCpu(weights_.rope(), params);
    params.x = qkv + q_size + weights_.kv_size();
    params.out = v_.data() + begin * head_dim * element_bytes_;
    kernels::CastHeadsCpu(params);
  }
  audit_.TakeQueries(segment.begin, segment.end, q_.data());
  if (votes()) {
    // The window may reach over a segment border: keep its rows aside.
    const int64_t window_begin = n - job_.view->window;
    const int64_t begin = std::max(segment.begin, window_begin);
    if (begin < segment.end) {
      std::memcpy(window_q_.data() + (begin - window_begin) * q_row_bytes,
                  q_.data() + (begin - segment.begin) * q_row_bytes,
                  (segment.end - begin) * q_row_bytes);
    }
  }
  return absl::OkStatus();
}

SegmentTensors CpuPrefill::TensorsOf(Rows rows, const std::byte* q) const {
  return {.begin = rows.begin,
          .end = rows.end,
          .dtype = weights_.dtype(),
          .q = q,
          .k = k_.data(),
          .v = v_.data(),
          .num_tokens = num_tokens()};
}

absl::Status CpuPrefill::Choose(Rows segment) {
  const Timer timer(&output_.selector_seconds);
  const bool is_last = segment.end == num_tokens();
  return selector_.Choose(layer_, TensorsOf(segment, q_.data()),
                          votes() && is_last ? &votes_ : nullptr);
}

absl::Status CpuPrefill::Attend(Rows segment, Rows piece) {
  const ModelConfig& config = weights_.config();
  CpuSelector::Plan plan;
  {
    const Timer timer(&output_.selector_seconds);
    OVERTURE_ASSIGN_OR_RETURN(plan, selector_.PlanOf(piece.begin, piece.end));
    const double causal =
        static_cast<double>(CausalPairs(piece.begin, piece.end));
    pairs_[layer_].causal += causal;
    pairs_[layer_].computed += causal * plan.density;
  }
  const Timer timer(&output_.attention_seconds);
  const int64_t q_offset =
      (piece.begin - segment.begin) * weights_.q_size() * element_bytes_;
  const kernels::SparseAttentionParams params{
      .dtype = weights_.dtype(),
      .q = q_.data() + q_offset,
      .k = k_.data(),
      .v = v_.data(),
      .o = o_.data(),
      .lse = audit_.LseOf(piece.begin, piece.end),
      .k_means = plan.k_means,
      .v_means = plan.v_means,
      .stride_q_row = weights_.q_size(),
      .stride_q_head = config.head_dim,
      .stride_kv_row = config.head_dim,
      .stride_kv_head = num_tokens() * config.head_dim,
      .stride_mean_row = config.head_dim,
      .stride_mean_head =
          num_tokens() / kernels::kMeanBlockKeys * config.head_dim,
      .stride_o_row = weights_.q_size(),
      .stride_o_head = config.head_dim,
      .num_q_heads = config.num_q_heads,
      .num_kv_heads = config.num_kv_heads,
      .head_dim = config.head_dim,
      .scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim)),
      .plan = &plan.tiles};
  OVERTURE_RETURN_IF_ERROR(
      AsInternal(attention_ == AttentionPrecision::kFp8
                     ? kernels::Fp8AttentionCpu(params)
                     : kernels::SparseAttentionCpu(params)));
  audit_.TakeLse(piece.begin, piece.end);
  return absl::OkStatus();
}

absl::Status CpuPrefill::ProjectAndMlp(const CpuLayerWeights& weights,
                                       Rows piece) {
  const Timer timer(&output_.linear_seconds);
  const ModelConfig& config = weights_.config();
  const DType dtype = weights_.dtype();
  const int64_t hidden = config.hidden_size;
  for (int64_t begin = piece.begin; begin < piece.end; begin += kChunkRows) {
    const int64_t rows = std::min(kChunkRows, piece.end - begin);
    float* residual = residual_row(begin);
    OVERTURE_RETURN_IF_ERROR(CheckStop());
    OVERTURE_RETURN_IF_ERROR(AsInternal(weights.o->Apply(
        o_.data() + (begin - piece.begin) * weights_.q_size() * element_bytes_,
        rows, hidden_.data(), DType::kF32)));
    kernels::AddCpu(residual, hidden_.As<float>(), rows * hidden);
    kernels::RmsNormCpu(residual, weights.mlp_norm.data(), config.rms_norm_eps,
                        rows, hidden, dtype, normed_.data());
    OVERTURE_RETURN_IF_ERROR(AsInternal(
        weights.gate_up->Apply(normed_.data(), rows, gate_up_.data(), dtype)));
    kernels::SwiGluCpu(gate_up_.data(), dtype, rows, config.intermediate_size,
                       dtype, act_.data());
    OVERTURE_RETURN_IF_ERROR(AsInternal(
        weights.down->Apply(act_.data(), rows, hidden_.data(), DType::kF32)));
    kernels::AddCpu(residual, hidden_.As<float>(), rows * hidden);
  }
  return absl::OkStatus();
}

absl::Status CpuPrefill::GatherView() {
  const Timer timer(&output_.selector_seconds);
  const ModelConfig& config = weights_.config();
  if (votes() && !votes_.done) {
    const int32_t window = job_.view->window;
    kernels::ProbeAttentionParams probe = ProbeOf(
        TensorsOf({num_tokens() - window, num_tokens()}, window_q_.data()),
        config, window);
    AddVotes(&votes_, &probe);
    OVERTURE_RETURN_IF_ERROR(AsInternal(kernels::ProbeAttentionCpu(probe)));
  }
  output_.view->AppendLayer(
      weights_.kv_layout(), kv_view(),
      votes() ? absl::MakeConstSpan(window_votes_) : absl::Span<const float>(),
      *job_.view);
  return absl::OkStatus();
}

absl::Status CpuPrefill::FinalLogits() {
  const Timer timer(&output_.linear_seconds);
  const ModelConfig& config = weights_.config();
  kernels::RmsNormCpu(residual_row(num_tokens() - 1),
                      weights_.output_norm().data(), config.rms_norm_eps, 1,
                      config.hidden_size, weights_.dtype(), normed_.data());
  output_.logits.resize(config.vocab_size);
  OVERTURE_RETURN_IF_ERROR(AsInternal(weights_.lm_head().Apply(
      normed_.data(), 1, output_.logits.data(), DType::kF32)));
  for (const float logit : output_.logits) {
    if (std::isfinite(logit)) continue;
    return absl::InternalError(
        "a logit is not finite: the model's weights are broken");
  }
  return absl::OkStatus();
}

}  // namespace overture::engine
