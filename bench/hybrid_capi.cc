// One layer's attention with blocks chosen beside columns and distances, as the
// engine runs it, behind a C function for bench/hybrid_gpu.py.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/cuda/device_buffer.h"
#include "base/cuda/event.h"
#include "base/cuda/stream.h"
#include "base/status_macros.h"
#include "bench/attention_capi.h"
#include "kernels/block_means/block_means.h"
#include "kernels/probe_attention/probe_attention.h"
#include "kernels/selectors/block_scores_gpu.h"
#include "kernels/selectors/hybrid_gpu.h"
#include "kernels/sparse_attention/sparse_attention.h"

extern "C" {

struct OvertureHybridShape {
  int64_t num_tokens;
  int64_t segment;
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
};

// VerticalSlashSize and BlockRule of a head.
struct OvertureHybridHead {
  int32_t vertical;
  int32_t slash;
  int32_t forced_columns;
  int32_t forced_distances;
  float threshold;
  int32_t count;
  int32_t correct_means;
};

struct OvertureHybridTimes {
  double probe_ms;
  double choice_ms;  // of columns and distances
  double means_ms;
  double scores_ms;  // of blocks, choice included
  double plan_ms;
  double attention_ms;
  double pairs;        // computed (row, key) pairs, over all heads
  double plan_bytes;   // scratch of a choice, a slice's blocks and its plan
  int64_t slice_rows;  // whose plan is made at a time
};

}  // extern "C"

namespace overture {
namespace {

using kernels::BlockRule;
using kernels::VerticalSlashSize;

constexpr int64_t kBlock = kernels::kMeanBlockKeys;
constexpr int64_t kSuper = kernels::kBlocksPerSuperBlock;

struct Tensors {  // [heads, tokens, head_dim], contiguous bf16
  const std::byte* q;
  const std::byte* k;
  const std::byte* v;
  std::byte* o;
  // Per slice [heads, rows of the slice], one after the other.
  float* lse;
};

// A layer's buffers and its steps, each timed.
class Layer {
 public:
  Layer(const OvertureHybridShape& shape, const OvertureHybridHead* heads,
        const Tensors& tensors, OvertureHybridTimes* times)
      : shape_(shape), tensors_(tensors), times_(times) {
    for (int32_t h = 0; h < shape.num_q_heads; ++h) {
      const OvertureHybridHead& head = heads[h];
      sizes_.push_back({.vertical = head.vertical,
                        .slash = head.slash,
                        .forced_columns = head.forced_columns,
                        .forced_distances = head.forced_distances});
      rules_.push_back({.threshold = head.threshold,
                        .count = head.count,
                        .correct_means = head.correct_means != 0});
      probes_ = probes_ || !kernels::IsStatic(sizes_.back());
      scores_ = scores_ || rules_.back().IsOn();
      corrects_ = corrects_ || rules_.back().correct_means;
    }
  }

  absl::Status Run() {
    OVERTURE_RETURN_IF_ERROR(Allocate());
    OVERTURE_RETURN_IF_ERROR(Mark(nullptr));
    const int64_t n = shape_.num_tokens;
    for (int64_t begin = 0; begin < n; begin += shape_.segment) {
      OVERTURE_RETURN_IF_ERROR(
          RunSegment(begin, std::min(n, begin + shape_.segment)));
    }
    uint64_t pairs = 0;
    OVERTURE_RETURN_IF_ERROR(
        pairs_.CopyToHost(absl::MakeSpan(&pairs, 1), *stream_));
    OVERTURE_RETURN_IF_ERROR(stream_->Synchronize());
    times_->pairs = static_cast<double>(pairs);
    for (size_t i = 0; i + 1 < marks_.size(); ++i) {
      OVERTURE_ASSIGN_OR_RETURN(
          const float millis,
          ElapsedMillis(marks_[i].second, marks_[i + 1].second));
      *marks_[i + 1].first += millis;
    }
    return absl::OkStatus();
  }

 private:
  bool is_hybrid() const { return scores_ || corrects_; }

  template <typename T>
  static absl::Status Take(int64_t count, DeviceBuffer<T>* buffer) {
    OVERTURE_ASSIGN_OR_RETURN(*buffer, DeviceBuffer<T>::Allocate(count));
    return absl::OkStatus();
  }

  absl::Status Allocate() {
    OVERTURE_ASSIGN_OR_RETURN(Stream stream, Stream::Create());
    stream_.emplace(std::move(stream));
    const int64_t n = shape_.num_tokens;
    const int64_t heads = shape_.num_q_heads;
    const int64_t segment = std::min(n, shape_.segment);
    OVERTURE_RETURN_IF_ERROR(Take(n * heads, &columns_));
    OVERTURE_RETURN_IF_ERROR(Take(n * heads, &diagonals_));
    OVERTURE_RETURN_IF_ERROR(Take(
        kernels::ProbeScratchBytes(n, shape_.num_q_heads), &probe_scratch_));
    OVERTURE_RETURN_IF_ERROR(
        Take(kernels::VerticalSlashChoiceBytes(n, sizes_), &choice_scratch_));
    slice_rows_ = is_hybrid()
                      ? kernels::HybridPlanRows(segment, n, sizes_, corrects_)
                      : segment;
    OVERTURE_RETURN_IF_ERROR(
        Take(is_hybrid()
                 ? kernels::HybridPlanBytes(slice_rows_, n, sizes_, corrects_)
                 : kernels::VerticalSlashPlanBytes(segment, n, sizes_),
             &plan_scratch_));
    const int64_t words = kernels::BlockWords((n - 1) / kBlock);
    OVERTURE_RETURN_IF_ERROR(
        Take(heads * (slice_rows_ / kBlock + 1) * words, &bits_));
    const int64_t means =
        shape_.num_kv_heads * (n / kBlock + 1) * shape_.head_dim;
    OVERTURE_RETURN_IF_ERROR(Take(means, &k_means_));
    OVERTURE_RETURN_IF_ERROR(Take(means, &v_means_));
    OVERTURE_RETURN_IF_ERROR(Take(means / kSuper + means, &super_means_));
    OVERTURE_RETURN_IF_ERROR(Take(1, &pairs_));
    const uint64_t zero = 0;
    times_->slice_rows = slice_rows_;
    times_->plan_bytes =
        static_cast<double>(choice_scratch_.bytes() + plan_scratch_.bytes() +
                            (scores_ ? bits_.bytes() : 0));
    return pairs_.CopyFromHost(absl::MakeConstSpan(&zero, 1), *stream_);
  }

  // What was launched since the last mark counts as `phase`.
  absl::Status Mark(double* phase) {
    OVERTURE_ASSIGN_OR_RETURN(Event event, Event::Create(Event::Timing::kOn));
    OVERTURE_RETURN_IF_ERROR(event.Record(*stream_));
    marks_.emplace_back(phase, std::move(event));
    return absl::OkStatus();
  }

  absl::Status RunSegment(int64_t begin, int64_t end) {
    if (probes_) OVERTURE_RETURN_IF_ERROR(Probe(begin, end));
    OVERTURE_ASSIGN_OR_RETURN(
        const kernels::VerticalSlashChoice choice,
        kernels::LaunchVerticalSlashChoice(
            {.column_sums = columns_.data(),
             .diagonal_sums = diagonals_.data(),
             .sizes = sizes_,
             .kv_len = end},
            choice_scratch_.data(), choice_scratch_.bytes(), stream_->get()));
    OVERTURE_RETURN_IF_ERROR(Mark(&times_->choice_ms));
    if (is_hybrid()) OVERTURE_RETURN_IF_ERROR(Means(begin, end));
    for (int64_t first = begin; first < end; first += slice_rows_) {
      OVERTURE_RETURN_IF_ERROR(
          RunSlice(choice, first, std::min(end, first + slice_rows_)));
    }
    return absl::OkStatus();
  }

  absl::Status Probe(int64_t begin, int64_t end) {
    const int64_t dim = shape_.head_dim;
    const int64_t n = shape_.num_tokens;
    const int64_t rows = std::min<int64_t>(kernels::kProbeRows, end - begin);
    OVERTURE_RETURN_IF_ERROR(kernels::LaunchProbeAttention(
        {.q = tensors_.q + (end - rows) * dim * 2,
         .k = tensors_.k,
         .stride_q_row = dim,
         .stride_q_head = n * dim,
         .stride_k_row = dim,
         .stride_k_head = n * dim,
         .num_q_heads = shape_.num_q_heads,
         .num_kv_heads = shape_.num_kv_heads,
         .head_dim = shape_.head_dim,
         .num_rows = static_cast<int32_t>(rows),
         .kv_len = end,
         .scale = scale(),
         .column_sums = columns_.data(),
         .diagonal_sums = diagonals_.data()},
        probe_scratch_.data(), probe_scratch_.bytes(), stream_->get()));
    return Mark(&times_->probe_ms);
  }

  int64_t num_blocks() const { return shape_.num_tokens / kBlock + 1; }
  int64_t num_supers() const { return num_blocks() / kSuper + 1; }

  absl::Status Means(int64_t begin, int64_t end) {
    const int64_t dim = shape_.head_dim;
    kernels::BlockMeansParams means = {.rows = tensors_.k,
                                       .means = k_means_.data(),
                                       .stride_row = dim,
                                       .stride_head = shape_.num_tokens * dim,
                                       .stride_mean_row = dim,
                                       .stride_mean_head = num_blocks() * dim,
                                       .num_heads = shape_.num_kv_heads,
                                       .head_dim = shape_.head_dim,
                                       .block_begin = begin / kBlock,
                                       .block_end = end / kBlock};
    OVERTURE_RETURN_IF_ERROR(kernels::LaunchBlockMeans(means, stream_->get()));
    if (corrects_) {
      means.rows = tensors_.v;
      means.means = v_means_.data();
      OVERTURE_RETURN_IF_ERROR(
          kernels::LaunchBlockMeans(means, stream_->get()));
    }
    OVERTURE_RETURN_IF_ERROR(
        kernels::LaunchBlockMeans({.rows = k_means_.data(),
                                   .means = super_means_.data(),
                                   .stride_row = dim,
                                   .stride_head = num_blocks() * dim,
                                   .stride_mean_row = dim,
                                   .stride_mean_head = num_supers() * dim,
                                   .num_heads = shape_.num_kv_heads,
                                   .head_dim = shape_.head_dim,
                                   .block_rows = kSuper,
                                   .block_begin = begin / kBlock / kSuper,
                                   .block_end = end / kBlock / kSuper},
                                  stream_->get()));
    return Mark(&times_->means_ms);
  }

  absl::Status RunSlice(const kernels::VerticalSlashChoice& choice,
                        int64_t begin, int64_t end) {
    const int64_t dim = shape_.head_dim;
    const int64_t n = shape_.num_tokens;
    if (scores_) {
      OVERTURE_RETURN_IF_ERROR(kernels::LaunchBlockScores(
          {.q = tensors_.q + begin * dim * 2,
           .k_means = k_means_.data(),
           .super_means = super_means_.data(),
           .stride_q_row = dim,
           .stride_q_head = n * dim,
           .stride_mean_row = dim,
           .stride_mean_head = num_blocks() * dim,
           .stride_super_row = dim,
           .stride_super_head = num_supers() * dim,
           .num_q_heads = shape_.num_q_heads,
           .num_kv_heads = shape_.num_kv_heads,
           .head_dim = shape_.head_dim,
           .scale = scale(),
           .q_begin = begin,
           .q_len = end - begin},
          rules_, bits_.data(), nullptr, stream_->get()));
      OVERTURE_RETURN_IF_ERROR(Mark(&times_->scores_ms));
    }
    OVERTURE_ASSIGN_OR_RETURN(const kernels::DeviceTilePlan plan,
                              MakePlan(choice, begin, end));
    OVERTURE_RETURN_IF_ERROR(Mark(&times_->plan_ms));
    OVERTURE_RETURN_IF_ERROR(kernels::LaunchSparseAttention(
        {.q = tensors_.q + begin * dim * 2,
         .k = tensors_.k,
         .v = tensors_.v,
         .o = tensors_.o + begin * dim * 2,
         .lse = tensors_.lse + begin * shape_.num_q_heads,
         .k_means = k_means_.data(),
         .v_means = v_means_.data(),
         .stride_q_row = dim,
         .stride_q_head = n * dim,
         .stride_kv_row = dim,
         .stride_kv_head = n * dim,
         .stride_mean_row = dim,
         .stride_mean_head = num_blocks() * dim,
         .stride_o_row = dim,
         .stride_o_head = n * dim,
         .num_q_heads = shape_.num_q_heads,
         .num_kv_heads = shape_.num_kv_heads,
         .head_dim = shape_.head_dim,
         .scale = scale()},
        plan, stream_->get()));
    return Mark(&times_->attention_ms);
  }

  absl::StatusOr<kernels::DeviceTilePlan> MakePlan(
      const kernels::VerticalSlashChoice& choice, int64_t begin, int64_t end) {
    if (!is_hybrid()) {
      return kernels::LaunchVerticalSlashPlan(
          choice,
          {.q_begin = begin, .q_len = end - begin, .pairs = pairs_.data()},
          plan_scratch_.data(), plan_scratch_.bytes(), stream_->get());
    }
    return kernels::LaunchHybridPlan(
        choice,
        {.q_begin = begin,
         .q_len = end - begin,
         .blocks = scores_ ? bits_.data() : nullptr,
         .rules = rules_,
         .pairs = pairs_.data()},
        plan_scratch_.data(), plan_scratch_.bytes(), stream_->get());
  }

  float scale() const {
    return 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
  }

  const OvertureHybridShape shape_;
  const Tensors tensors_;
  OvertureHybridTimes* const times_;
  std::vector<VerticalSlashSize> sizes_;
  std::vector<BlockRule> rules_;
  bool probes_ = false;
  bool scores_ = false;
  bool corrects_ = false;
  int64_t slice_rows_ = 0;

  std::optional<Stream> stream_;
  DeviceBuffer<float> columns_, diagonals_;
  DeviceBuffer<std::byte> probe_scratch_, choice_scratch_, plan_scratch_;
  DeviceBuffer<uint32_t> bits_;
  DeviceBuffer<uint16_t> k_means_, v_means_, super_means_;
  DeviceBuffer<uint64_t> pairs_;
  std::vector<std::pair<double*, Event>> marks_;
};

}  // namespace
}  // namespace overture

extern "C" {

// All segments of a layer. The tensors are [heads, tokens, head_dim] bf16 on
// the device, ready; `lse` is [num_q_heads * tokens], for each slice of
// slice_rows rows, which begin anew with every segment, [num_q_heads, its
// rows]. 0 when done, or 1 with the reason on standard error.
int OvertureHybridLayer(const OvertureHybridShape* shape,
                        const OvertureHybridHead* heads, const void* q,
                        const void* k, const void* v, void* o, float* lse,
                        OvertureHybridTimes* times) {
  *times = {};
  return Report(
      overture::Layer(
          *shape, heads,
          {static_cast<const std::byte*>(q), static_cast<const std::byte*>(k),
           static_cast<const std::byte*>(v), static_cast<std::byte*>(o), lse},
          times)
          .Run());
}

}  // extern "C"
