#include "tests/e2e/reference.h"

#include <algorithm>
#include <cstddef>
#include <random>
#include <utility>

#include "base/status_macros.h"

namespace overture::testing {
namespace {

// Keeps every row of every layer, as a decoder takes them.
class KeepAll : public engine::PrefillIo {
 public:
  explicit KeepAll(const KvLayout& layout)
      : layout_(layout), layers_(static_cast<size_t>(layout.num_layers)) {}

  absl::Status ReadPrefix(int32_t, const MutableLayerKvView&) override {
    return absl::InternalError("nothing is cached");
  }
  void LayerDone(int32_t layer, const LayerKvView& kv) override {
    num_rows_ = kv.num_rows;
    layers_[layer].resize(layout_.LayerBytes(kv.num_rows));
    GatherRows(layout_, kv, 0, kv.num_rows, layers_[layer].data());
  }

  absl::Status AppendTo(engine::Decoder& decoder) const {
    const size_t bytes = layout_.HeadBytes(num_rows_);
    for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
      for (int32_t head = 0; head < layout_.num_kv_heads; ++head) {
        const absl::Span<const std::byte> all = layers_[layer];
        OVERTURE_RETURN_IF_ERROR(decoder.AppendRows(
            layer, head, layout_.dtype, all.subspan(head * bytes, bytes),
            all.subspan((layout_.num_kv_heads + head) * bytes, bytes)));
      }
    }
    return absl::OkStatus();
  }

 private:
  const KvLayout layout_;
  int64_t num_rows_ = 0;
  std::vector<std::vector<std::byte>> layers_;  // GatherRows' order
};

absl::Status AppendView(const KvLayout& layout, const engine::ViewData& view,
                        engine::Decoder& decoder) {
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    absl::Span<const std::byte> rest = view.layers[layer];
    for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
      const size_t bytes = layout.HeadBytes(
          static_cast<int64_t>(view.plan.positions[layer][head].size()));
      OVERTURE_RETURN_IF_ERROR(decoder.AppendRows(layer, head, layout.dtype,
                                                  rest.first(bytes),
                                                  rest.subspan(bytes, bytes)));
      rest.remove_prefix(2 * bytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Reference>> Reference::Load(
    const std::string& model, engine::ComputeDType dtype) {
  auto reference = std::unique_ptr<Reference>(new Reference());
  OVERTURE_ASSIGN_OR_RETURN(reference->files_, engine::LoadModelFiles(model));
  OVERTURE_ASSIGN_OR_RETURN(
      reference->backend_, engine::CreateCpuBackend(*reference->files_, dtype));
  OVERTURE_ASSIGN_OR_RETURN(reference->model_, engine::DecoderModel::Create(
                                                   *reference->files_, dtype));
  return reference;
}

absl::StatusOr<std::vector<int32_t>> Reference::Continue(
    absl::Span<const int32_t> prompt, const engine::SelectorSpec& selector,
    const std::optional<compress::SnapKvOptions>& view, int64_t max_tokens) {
  const KvLayout& layout = backend_->kv_layout();
  KeepAll io(layout);
  OVERTURE_ASSIGN_OR_RETURN(
      engine::PrefillOutput output,
      backend_->Prefill(
          {.tokens = prompt, .selector = selector, .view = view, .io = &io}));
  OVERTURE_ASSIGN_OR_RETURN(
      auto decoder,
      engine::Decoder::Create(model_, static_cast<int64_t>(prompt.size())));
  if (view.has_value()) {
    OVERTURE_RETURN_IF_ERROR(AppendView(layout, *output.view, *decoder));
  } else {
    OVERTURE_RETURN_IF_ERROR(io.AppendTo(*decoder));
  }
  std::vector<int32_t> answer;
  int32_t token = engine::Argmax(output.logits);
  const std::vector<int32_t>& eos = files_->config().eos_token_ids;
  while (std::find(eos.begin(), eos.end(), token) == eos.end()) {
    answer.push_back(token);
    if (static_cast<int64_t>(answer.size()) == max_tokens) break;
    OVERTURE_ASSIGN_OR_RETURN(absl::Span<const float> logits,
                              decoder->Step(token));
    token = engine::Argmax(logits);
  }
  return answer;
}

std::vector<int32_t> Reference::RandomPrompt(int64_t num_tokens,
                                             uint32_t seed) const {
  const std::vector<int32_t>& eos = files_->config().eos_token_ids;
  std::mt19937 random(seed);
  std::vector<int32_t> prompt;
  while (static_cast<int64_t>(prompt.size()) < num_tokens) {
    const auto id = static_cast<int32_t>(
        random() % static_cast<uint32_t>(files_->config().vocab_size));
    if (std::find(eos.begin(), eos.end(), id) == eos.end()) {
      prompt.push_back(id);
    }
  }
  return prompt;
}

}  // namespace overture::testing
