#include "clients/model_tool/local_model.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/create_backend.h"
#include "engine/tokenizer.h"

namespace overture::clients {

void ModelFlags::AddTo(FlagParser& flags) {
  flags.Add("model", &model, "A .gguf file or Hugging Face folder. Needed.");
  flags.Add("device", &device, "auto, cpu or cuda.");
}

absl::StatusOr<LocalModel> LocalModel::Load(const ModelFlags& flags) {
  if (flags.model.empty()) {
    return absl::InvalidArgumentError("--model is needed");
  }
  OVERTURE_ASSIGN_OR_RETURN(const engine::DeviceChoice device,
                            engine::ParseDeviceChoice(flags.device));
  LocalModel model;
  OVERTURE_ASSIGN_OR_RETURN(model.files_, engine::LoadModelFiles(flags.model));
  model.path_ = flags.model;
  OVERTURE_ASSIGN_OR_RETURN(model.backend_,
                            engine::CreateBackend(*model.files_, device,
                                                  engine::ComputeDType::kAuto));
  return model;
}

absl::StatusOr<std::vector<int32_t>> LocalModel::Tokens(
    const PromptFlags::Prompt& prompt) const {
  std::vector<int32_t> tokens = prompt.ids;
  if (prompt.is_text) {
    OVERTURE_ASSIGN_OR_RETURN(
        const std::unique_ptr<engine::Tokenizer> tokenizer,
        engine::Tokenizer::Load(path_));
    tokens = tokenizer->Encode(prompt.text, {.add_special_tokens = true});
  }
  const int64_t most = backend_->config().max_positions;
  if (tokens.empty() || static_cast<int64_t>(tokens.size()) > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the prompt has ", tokens.size(), " tokens, must be 1 .. ", most));
  }
  return tokens;
}

}  // namespace overture::clients
