// A model that a program runs in its own process, its prompts, and the flags
// that name it. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "clients/tool/common_flags.h"
#include "clients/tool/flags.h"
#include "engine/backend.h"
#include "engine/model_files.h"

namespace overture::clients {

// --model, --device.
struct ModelFlags {
  std::string model;
  std::string device = "auto";

  void AddTo(FlagParser& flags);
};

class LocalModel {
 public:
  // INVALID_ARGUMENT naming the flag; errors of the loaders.
  static absl::StatusOr<LocalModel> Load(const ModelFlags& flags);

  const engine::ModelFiles& files() const { return *files_; }
  engine::Backend& backend() const { return *backend_; }
  // A prompt's ids, a text's by the model's tokenizer with what that adds at
  // the start. INVALID_ARGUMENT for none, one outside the vocabulary, or more
  // than the model's positions; the tokenizer's errors.
  absl::StatusOr<std::vector<int32_t>> Tokens(
      const PromptFlags::Prompt& prompt) const;

 private:
  LocalModel() = default;

  std::string path_;
  std::unique_ptr<engine::ModelFiles> files_;
  std::unique_ptr<engine::Backend> backend_;
};

// For prefills without a prefix whose KV nobody keeps.
class ProgressIo final : public engine::PrefillIo {
 public:
  // `on_layer` gets how many layers are done.
  explicit ProgressIo(std::function<void(int32_t)> on_layer)
      : on_layer_(std::move(on_layer)) {}

  absl::Status ReadPrefix(int32_t, const MutableLayerKvView&) override {
    return absl::InternalError("no prefix here");
  }
  void LayerDone(int32_t layer, const LayerKvView&) override {
    on_layer_(layer + 1);
  }

 private:
  std::function<void(int32_t)> on_layer_;
};

}  // namespace overture::clients
