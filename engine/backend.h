// The seam between the layer loop's owner (Engine) and what computes it: one
// implementation per kind of device. A back end owns the model's weights in its
// own form and runs whole prefills, layer-major: for each layer over all new
// tokens norm, QKV, RoPE, prefix KV, selector per segment, attention, output
// projection, MLP in token chunks.
//
// Thread rule: one Prefill at a time per back end (the scheduler's job); all
// callbacks come from the calling thread. Health may be asked from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/kv_layout.h"
#include "compress/view.h"
#include "engine/model_files.h"
#include "engine/row_audit.h"
#include "engine/selector_spec.h"
#include "kernels/precision.h"

namespace overture::engine {

// Rows of a view, gathered. Owner.
struct ViewData {
  compress::ViewPlan plan;
  // Per layer: for each KV head its K rows, then its V rows, [rows][head_dim]
  // of the layout's dtype.
  std::vector<std::vector<std::byte>> layers;
  int64_t TotalBytes() const;

  // Chooses the rows of the next layer from `kv`, all rows of the prompt, and
  // copies them: by SnapKvPositions of `votes`, [num_kv_heads, kv.num_rows], or
  // every row if `votes` is empty.
  void AppendLayer(const KvLayout& layout, const LayerKvView& kv,
                   absl::Span<const float> votes,
                   const compress::SnapKvOptions& options);
};

// Where a prefill's KV comes from and goes to.
class PrefillIo {
 public:
  virtual ~PrefillIo() = default;
  // Fills rows [0, num_cached) of `layer`. Called once per layer, before it is
  // computed. An error ends the prefill with it (DATA_LOSS: the caller starts
  // again without the prefix).
  virtual absl::Status ReadPrefix(int32_t layer,
                                  const MutableLayerKvView& dst) = 0;
  // `kv` holds rows [0, tokens.size()) of a finished layer, valid during the
  // call.
  virtual void LayerDone(int32_t layer, const LayerKvView& kv) = 0;
};

struct PrefillJob {
  absl::Span<const int32_t> tokens;  // the whole prompt, validated
  int64_t num_cached = 0;            // < tokens.size()
  SelectorSpec selector;
  std::optional<compress::SnapKvOptions> view;  // window <= new tokens, or the
                                                // whole prompt is new
  // Rows of each layer whose kept mass is measured (row_audit.h), at most
  // kMaxAuditRows; 0: none.
  int32_t audit_rows = 0;
  RowObserver* observer = nullptr;  // may be null
  PrefillIo* io = nullptr;          // not null
  std::stop_token stop;             // honoured within one layer
};

// INVALID_ARGUMENT naming what no back end can run. Every one calls it.
absl::Status Validate(const PrefillJob& job, const ModelConfig& config);

// True if the view leaves some tokens out, so that votes are needed.
bool NeedsVotes(const PrefillJob& job);

struct PrefillOutput {
  std::vector<float> logits;  // [vocab] after the last token
  std::optional<ViewData> view;
  double density = 1.0;  // mean over layers and heads, new rows
  // The same of each layer alone; of the last one a back end may compute the
  // last row only.
  std::vector<double> layer_density;
  std::vector<AuditedLayer> audit;  // by layer; empty without audit_rows
  double selector_seconds = 0;
  double attention_seconds = 0;
  double linear_seconds = 0;
  double audit_seconds = 0;   // of the rows' own kernels and the observer
  double prefix_seconds = 0;  // in ReadPrefix
};

// (Row, key) pairs of one layer, mean over heads.
struct AttendedPairs {
  double computed = 0;
  double causal = 0;
};

// Sets both densities of `output`; where no row was computed it is 1.
void SetDensity(absl::Span<const AttendedPairs> layers, PrefillOutput* output);

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const ModelConfig& config() const = 0;
  virtual const KvLayout& kv_layout() const = 0;
  // "weights=bf16 compute=bf16 kv=bf16": part of a cache root.
  virtual std::string numerics() const = 0;
  virtual std::string device_name() const = 0;  // "cpu"
  // Bytes of memory a prefill of this length needs beyond the weights; used
  // for admission.
  virtual int64_t WorkspaceBytes(int64_t num_tokens) const = 0;
  // UNIMPLEMENTED naming what this back end's attention does not run; of every
  // request, before it is queued. REQUIRES Validate(selector, config()).ok().
  virtual absl::Status Supports(const SelectorSpec& /*selector*/) const {
    return absl::OkStatus();
  }
  // Whether the attention of a token reads nothing of later ones where the
  // selector chooses none: false if it does within the token's block.
  virtual bool attention_is_token_pure() const { return true; }
  // CANCELLED when stopped; otherwise errors of io, or INTERNAL.
  virtual absl::StatusOr<PrefillOutput> Prefill(const PrefillJob& job) = 0;
  // UNAVAILABLE with the reason once the device is lost to this process: from
  // the end of the prefill that met it, for good. OK until then.
  virtual absl::Status Health() const = 0;
};

using kernels::AttentionPrecision;
using kernels::LinearPrecision;

// What Backend::Supports says of a selector under that attention:
// UNIMPLEMENTED for single columns in FP8, which has none.
absl::Status CheckSelector(const SelectorSpec& selector,
                           AttentionPrecision attention);
// Kernels report sizes that do not fit as INVALID_ARGUMENT; inside a back end
// that is our own bug, not the caller's.
absl::Status AsInternal(const absl::Status& status);

// For numerics(): e4m3, or `dtype` where products are not in FP8.
absl::string_view WeightsName(LinearPrecision linears, absl::string_view dtype);

enum class ComputeDType : uint8_t { kAuto, kBF16, kF32 };

// kAuto: bf16 where the CPU multiplies it in hardware, else f32. KV is kept in
// the compute dtype, so what is stored is exactly what attention read.
//
// What is in FP8 is simulated, slower than the rest. Attention has the GPU's
// codes of Q, K and V and its limits (bf16 KV, no single columns), and does not
// round probabilities: kernels/fp8_attention/fp8_attention_cpu.h.
// UNIMPLEMENTED names a compute dtype or head dim that it does not take.
absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(
    const ModelFiles& files, ComputeDType dtype,
    LinearPrecision linears = LinearPrecision::kBF16,
    AttentionPrecision attention = AttentionPrecision::kBF16);

}  // namespace overture::engine
