#include "tests/support/prefill_harness.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace overture::testing {
namespace {

template <typename A, typename B>
double MaxDifferenceOf(absl::Span<const A> a, absl::Span<const B> b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double max = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double difference =
        std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i]));
    if (!(difference <= max)) max = difference;
    if (std::isnan(difference)) return std::numeric_limits<double>::infinity();
  }
  return max;
}

template <typename A, typename B>
double RelativeRmsOf(absl::Span<const A> a, absl::Span<const B> b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double squares = 0;
  double reference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]);
    const double y = static_cast<double>(b[i]);
    squares += (x - y) * (x - y);
    reference += y * y;
  }
  const double ratio = std::sqrt(squares / reference);
  return std::isnan(ratio) ? std::numeric_limits<double>::infinity() : ratio;
}

}  // namespace

LoadedTinyModel::LoadedTinyModel(const TinyModelOptions& options) {
  const std::string folder = dir_.Join("model");
  const absl::Status written = TinyModel(options).WriteHuggingFace(folder);
  OVERTURE_CHECK(written.ok());
  auto files = engine::LoadModelFiles(folder);
  OVERTURE_CHECK(files.ok());
  files_ = *std::move(files);
}

float RecordedKv::At(bool is_v, int32_t layer, int32_t kv_head, int64_t row,
                     int32_t i) const {
  const int64_t head = (is_v ? layout.num_kv_heads : 0) + kv_head;
  const std::byte* src = layers[layer].data() +
                         layout.HeadBytes(num_rows) * head +
                         layout.HeadBytes(row) + i * SizeOf(layout.dtype);
  if (layout.dtype == DType::kF32) {
    float value;
    std::memcpy(&value, src, sizeof value);
    return value;
  }
  BFloat16 value;
  std::memcpy(&value, src, sizeof value);
  return static_cast<float>(value);
}

std::vector<std::byte> RecordedKv::Rows(int32_t layer, int64_t rows) const {
  const std::byte* k = layers[layer].data();
  const LayerKvView view{
      .k = k,
      .v = k + layout.num_kv_heads * layout.HeadBytes(num_rows),
      .num_rows = num_rows,
      .head_stride_bytes = layout.HeadBytes(num_rows)};
  std::vector<std::byte> bytes(layout.LayerBytes(rows));
  GatherRows(layout, view, 0, rows, bytes.data());
  return bytes;
}

absl::Status RecordingIo::ReadPrefix(int32_t layer,
                                     const MutableLayerKvView& dst) {
  OVERTURE_CHECK(prefix_ != nullptr);
  const std::vector<std::byte> rows = prefix_->Rows(layer, dst.num_rows);
  ScatterRows(kv.layout, rows.data(), 0, dst.num_rows, dst);
  return absl::OkStatus();
}

void RecordingIo::LayerDone(int32_t layer, const LayerKvView& view) {
  OVERTURE_CHECK(layer == static_cast<int32_t>(kv.layers.size()));
  kv.num_rows = view.num_rows;
  std::vector<std::byte> bytes(kv.layout.LayerBytes(view.num_rows));
  GatherRows(kv.layout, view, 0, view.num_rows, bytes.data());
  kv.layers.push_back(std::move(bytes));
  if (on_layer) on_layer(layer);
}

absl::StatusOr<RecordedPrefill> RunPrefill(engine::Backend& backend,
                                           absl::Span<const int32_t> tokens,
                                           const HarnessOptions& options) {
  RecordingIo io(backend.kv_layout(), options.prefix);
  OVERTURE_ASSIGN_OR_RETURN(
      engine::PrefillOutput output,
      backend.Prefill(engine::PrefillJob{.tokens = tokens,
                                         .num_cached = options.num_cached,
                                         .selector = options.selector,
                                         .view = options.view,
                                         .audit_rows = options.audit_rows,
                                         .observer = options.observer,
                                         .io = &io}));
  return RecordedPrefill{std::move(output), std::move(io.kv)};
}

std::vector<int32_t> RandomTokens(int64_t count, int64_t vocab_size,
                                  uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> tokens(count);
  for (int32_t& token : tokens) {
    token = static_cast<int32_t>(random() % vocab_size);
  }
  return tokens;
}

double MaxDifference(absl::Span<const float> a, absl::Span<const float> b) {
  return MaxDifferenceOf(a, b);
}
double MaxDifference(absl::Span<const float> a, absl::Span<const double> b) {
  return MaxDifferenceOf(a, b);
}
double RelativeRms(absl::Span<const float> a, absl::Span<const double> b) {
  return RelativeRmsOf(a, b);
}
double RelativeRms(absl::Span<const float> a, absl::Span<const float> b) {
  return RelativeRmsOf(a, b);
}

}  // namespace overture::testing
