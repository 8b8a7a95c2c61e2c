// What tests of the layer loop share: a tiny random model on disk, a PrefillIo
// that keeps every layer's KV and can serve it as a prefix, and comparisons.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/kv_layout.h"
#include "engine/backend.h"
#include "engine/model_files.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace overture::testing {

// A tiny model, written as a Hugging Face folder and loaded.
class LoadedTinyModel {
 public:
  explicit LoadedTinyModel(const TinyModelOptions& options);
  const engine::ModelFiles& files() const { return *files_; }

 private:
  TempDir dir_;
  std::unique_ptr<engine::ModelFiles> files_;
};

// KV of a whole prompt.
struct RecordedKv {
  KvLayout layout;
  int64_t num_rows = 0;
  std::vector<std::vector<std::byte>> layers;  // in the layout's order

  // Element of K (or V) as float.
  float At(bool is_v, int32_t layer, int32_t kv_head, int64_t row,
           int32_t i) const;
  // Bytes of rows [0, rows) of one layer.
  std::vector<std::byte> Rows(int32_t layer, int64_t rows) const;
};

class RecordingIo final : public engine::PrefillIo {
 public:
  RecordingIo(const KvLayout& layout, const RecordedKv* prefix)
      : prefix_(prefix) {
    kv.layout = layout;
  }
  absl::Status ReadPrefix(int32_t layer,
                          const MutableLayerKvView& dst) override;
  void LayerDone(int32_t layer, const LayerKvView& view) override;

  RecordedKv kv;
  // Called after a layer is recorded.
  std::function<void(int32_t layer)> on_layer;

 private:
  const RecordedKv* prefix_;
};

struct RecordedPrefill {
  engine::PrefillOutput output;
  RecordedKv kv;
};

struct HarnessOptions {
  engine::SelectorSpec selector;
  std::optional<compress::SnapKvOptions> view;
  // Serves the first num_cached rows.
  const RecordedKv* prefix = nullptr;
  int64_t num_cached = 0;
  int32_t audit_rows = 0;
  engine::RowObserver* observer = nullptr;
};

absl::StatusOr<RecordedPrefill> RunPrefill(engine::Backend& backend,
                                           absl::Span<const int32_t> tokens,
                                           const HarnessOptions& options = {});

// `count` ids below `vocab_size`, the same for equal arguments.
std::vector<int32_t> RandomTokens(int64_t count, int64_t vocab_size,
                                  uint32_t seed);

// Largest absolute difference; infinity if sizes differ or a value is NaN.
double MaxDifference(absl::Span<const float> a, absl::Span<const float> b);
double MaxDifference(absl::Span<const float> a, absl::Span<const double> b);
// Root mean square of a - b over that of b; infinity as above.
double RelativeRms(absl::Span<const float> a, absl::Span<const double> b);
double RelativeRms(absl::Span<const float> a, absl::Span<const float> b);

}  // namespace overture::testing
