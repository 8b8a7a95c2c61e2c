#include "tests/e2e/reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <utility>

#include "absl/strings/str_format.h"
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
    const std::string& model, engine::DeviceChoice device) {
  constexpr auto kF32 = engine::ComputeDType::kF32;
  auto reference = std::unique_ptr<Reference>(new Reference());
  OVERTURE_ASSIGN_OR_RETURN(reference->files_, engine::LoadModelFiles(model));
  OVERTURE_ASSIGN_OR_RETURN(reference->backend_,
                            engine::CreateCpuBackend(*reference->files_, kF32));
  if (device == engine::DeviceChoice::kCuda) {
    OVERTURE_ASSIGN_OR_RETURN(
        reference->gpu_, engine::CreateBackend(*reference->files_, device,
                                               engine::ComputeDType::kAuto));
  }
  OVERTURE_ASSIGN_OR_RETURN(reference->model_, engine::DecoderModel::Create(
                                                   *reference->files_, kF32));
  return reference;
}

absl::StatusOr<Reference::Prefilled> Reference::Prefill(
    const Question& question) {
  const bool is_dense =
      question.selector.kind == engine::SelectorSpec::Kind::kDense &&
      !question.view.has_value();
  engine::Backend& backend = gpu_ != nullptr && !is_dense ? *gpu_ : *backend_;
  const KvLayout& layout = backend.kv_layout();
  KeepAll io(layout);
  OVERTURE_ASSIGN_OR_RETURN(engine::PrefillOutput output,
                            backend.Prefill({.tokens = question.prompt,
                                             .selector = question.selector,
                                             .view = question.view,
                                             .io = &io}));
  Prefilled prefilled{.logits = std::move(output.logits), .decoder = nullptr};
  OVERTURE_ASSIGN_OR_RETURN(
      prefilled.decoder,
      engine::Decoder::Create(model_,
                              static_cast<int64_t>(question.prompt.size())));
  if (question.view.has_value()) {
    OVERTURE_RETURN_IF_ERROR(
        AppendView(layout, *output.view, *prefilled.decoder));
  } else {
    OVERTURE_RETURN_IF_ERROR(io.AppendTo(*prefilled.decoder));
  }
  return prefilled;
}

bool Reference::IsEos(int32_t token) const {
  const std::vector<int32_t>& eos = files_->config().eos_token_ids;
  return std::find(eos.begin(), eos.end(), token) != eos.end();
}

absl::StatusOr<std::vector<int32_t>> Reference::Answer(
    const Question& question) {
  OVERTURE_ASSIGN_OR_RETURN(Prefilled prefilled, Prefill(question));
  std::vector<int32_t> answer;
  int32_t token = engine::Argmax(prefilled.logits);
  while (!IsEos(token)) {
    answer.push_back(token);
    if (static_cast<int64_t>(answer.size()) == question.max_tokens) break;
    OVERTURE_ASSIGN_OR_RETURN(absl::Span<const float> logits,
                              prefilled.decoder->Step(token));
    token = engine::Argmax(logits);
  }
  return answer;
}

absl::Status Reference::Check(const Question& question,
                              absl::Span<const int32_t> answer) {
  OVERTURE_ASSIGN_OR_RETURN(Prefilled prefilled, Prefill(question));
  absl::Span<const float> logits = prefilled.logits;
  const int64_t count = static_cast<int64_t>(answer.size());
  if (count > question.max_tokens) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "answer has %d tokens, limit %d", count, question.max_tokens));
  }
  for (int64_t i = 0; i < question.max_tokens; ++i) {
    const int32_t best = engine::Argmax(logits);
    // A shorter answer was ended by an EOS.
    const int32_t token = i < count ? answer[i] : BestEos(logits);
    if (token < 0 || (i < count && IsEos(token))) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "answer[%d] of %d is no token of an answer", i, count));
    }
    double squares = 0;
    for (const float logit : logits) squares += double{logit} * logit;
    const double rms = std::sqrt(squares / static_cast<double>(logits.size()));
    const double behind = (logits[best] - logits[token]) / rms;
    if (token != best && (gpu_ == nullptr || behind > kGpuTolerance)) {
      return absl::FailedPreconditionError(
          absl::StrFormat("answer[%d] of %d is %d, %.3f rms behind %d", i,
                          count, token, behind, best));
    }
    if (i >= count || i + 1 == question.max_tokens) break;
    OVERTURE_ASSIGN_OR_RETURN(logits, prefilled.decoder->Step(token));
  }
  return absl::OkStatus();
}

int32_t Reference::BestEos(absl::Span<const float> logits) const {
  int32_t best = -1;
  for (const int32_t eos : files_->config().eos_token_ids) {
    if (best < 0 || logits[eos] > logits[best]) best = eos;
  }
  return best;
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
