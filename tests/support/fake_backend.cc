#include "tests/support/fake_backend.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace overture::testing {

float FakeKv(int32_t token, int64_t position, int32_t layer, int32_t kv_head,
             bool is_v, int32_t dim) {
  // Small whole numbers and eighths: exact in fp32.
  return static_cast<float>(token + 1000 * (position % 1000)) +
         0.125f * static_cast<float>(layer) + 0.5f * (is_v ? 1.0f : 0.0f) -
         4.0f * static_cast<float>(kv_head) - 16.0f * static_cast<float>(dim);
}

int32_t FakeFirstToken(absl::Span<const int32_t> tokens, int64_t vocab_size) {
  const int64_t sum = std::accumulate(tokens.begin(), tokens.end(), int64_t{0});
  return static_cast<int32_t>(sum % vocab_size);
}

std::vector<int32_t> FakeViewPositions(int64_t num_tokens, int32_t capacity,
                                       int32_t kv_head) {
  const int64_t rows =
      std::max<int64_t>(1, std::min<int64_t>(num_tokens, capacity) - kv_head);
  std::vector<int32_t> positions(rows);
  std::iota(positions.begin(), positions.end(),
            static_cast<int32_t>(num_tokens - rows));
  return positions;
}

void Gate::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

void Gate::Open() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = false;
  }
  changed_.notify_all();
}

void Gate::Pass(std::stop_token stop) {
  std::unique_lock lock(mutex_);
  ++waiting_;
  changed_.notify_all();
  changed_.wait(lock, stop, [this] { return !closed_; });
  --waiting_;
  changed_.notify_all();
}

void Gate::AwaitArrival() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_ > 0; });
}

void Gate::AwaitNobody() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return waiting_ == 0; });
}

FakeBackend::FakeBackend(const Options& options) : options_(options) {
  config_.architecture = "llama";
  config_.name = "fake";
  config_.vocab_size = options.vocab_size;
  config_.num_layers = options.layout.num_layers;
  config_.num_q_heads = options.layout.num_kv_heads;
  config_.num_kv_heads = options.layout.num_kv_heads;
  config_.head_dim = options.layout.head_dim;
  config_.max_positions = options.max_positions;
  config_.eos_token_ids = {2};
}

absl::Status FakeBackend::Supports(const engine::SelectorSpec& selector) const {
  if (!options_.fp8_attention ||
      selector.kind != engine::SelectorSpec::Kind::kDynamic) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError("fake attention runs no vertical_slash");
}

absl::StatusOr<engine::PrefillOutput> FakeBackend::Prefill(
    const engine::PrefillJob& job) {
  const KvLayout& layout = options_.layout;
  const int64_t n = static_cast<int64_t>(job.tokens.size());
  const int64_t head_floats = n * layout.head_dim;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    if (layer == 1 && options_.gate != nullptr) options_.gate->Pass(job.stop);
    if (job.stop.stop_requested()) return absl::CancelledError("stopped");
    if (layer == 1 && options_.device_fault != nullptr &&
        *options_.device_fault) {
      lost_ = true;
      return absl::InternalError("the fake device met a bad address");
    }
    std::vector<float> kv(2 * layout.num_kv_heads * head_floats);
    auto* bytes = reinterpret_cast<std::byte*>(kv.data());
    MutableLayerKvView view{
        .k = bytes,
        .v = bytes + layout.num_kv_heads * layout.HeadBytes(n),
        .num_rows = n,
        .head_stride_bytes = layout.HeadBytes(n)};
    if (job.num_cached > 0) {
      OVERTURE_RETURN_IF_ERROR(job.io->ReadPrefix(layer, view));
    }
    for (int32_t head = 0; head < 2 * layout.num_kv_heads; ++head) {
      for (int64_t row = job.num_cached; row < n; ++row) {
        for (int32_t dim = 0; dim < layout.head_dim; ++dim) {
          kv[head * head_floats + row * layout.head_dim + dim] =
              FakeKv(job.tokens[row], row, layer, head % layout.num_kv_heads,
                     head >= layout.num_kv_heads, dim);
        }
      }
    }
    job.io->LayerDone(layer, view);
  }
  engine::PrefillOutput out;
  out.logits.assign(options_.vocab_size, 0.0f);
  out.logits[FakeFirstToken(job.tokens, options_.vocab_size)] = 8.0f;
  if (job.view.has_value()) {
    engine::ViewData& view = out.view.emplace();
    view.plan.logical_length = n;
    view.plan.positions.resize(layout.num_layers);
    view.layers.resize(layout.num_layers);
    for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
      std::vector<float> rows;
      for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
        const std::vector<int32_t> positions =
            FakeViewPositions(n, job.view->capacity, head);
        for (bool is_v : {false, true}) {
          for (int32_t position : positions) {
            for (int32_t dim = 0; dim < layout.head_dim; ++dim) {
              rows.push_back(FakeKv(job.tokens[position], position, layer, head,
                                    is_v, dim));
            }
          }
        }
        view.plan.positions[layer].push_back(positions);
      }
      view.layers[layer].resize(rows.size() * sizeof(float));
      std::memcpy(view.layers[layer].data(), rows.data(),
                  view.layers[layer].size());
    }
  }
  return out;
}

absl::Status FakeBackend::Health() const {
  if (!lost_) return absl::OkStatus();
  return absl::UnavailableError("the fake device is lost");
}

FakeModelFiles::FakeModelFiles(engine::ModelConfig config)
    : config_(std::move(config)) {
  digest_.bytes.fill(0x5a);
}

absl::Status FakeModelFiles::ReadTensor(engine::TensorRole, int32_t,
                                        absl::Span<float>) const {
  return absl::NotFoundError("a fake model has no tensors");
}
absl::Status FakeModelFiles::ReadRows(engine::TensorRole, int32_t, int64_t,
                                      absl::Span<float>) const {
  return absl::NotFoundError("a fake model has no tensors");
}
absl::StatusOr<engine::ModelFiles::Shape> FakeModelFiles::TensorShape(
    engine::TensorRole, int32_t) const {
  return absl::NotFoundError("a fake model has no tensors");
}

std::vector<int32_t> FakeTokenizer::Encode(absl::string_view text,
                                           const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  if (options.add_special_tokens) ids.push_back(256);
  for (char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

absl::StatusOr<std::string> FakeTokenizer::Decode(absl::Span<const int32_t> ids,
                                                  bool keep_special) const {
  std::string text;
  for (int32_t id : ids) {
    if (id < 0 || id > 256) {
      return absl::OutOfRangeError(absl::StrCat("id ", id, ", limit 257"));
    }
    if (id < 256) {
      text.push_back(static_cast<char>(id));
    } else if (keep_special) {
      text += "<s>";
    }
  }
  return text;
}

}  // namespace overture::testing
