#include <memory>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/backend.h"
#include "engine/cpu_prefill.h"
#include "engine/cpu_selector.h"
#include "engine/cpu_weights.h"

namespace overture::engine {
namespace {

class CpuBackend final : public Backend {
 public:
  CpuBackend(std::unique_ptr<const CpuWeights> weights,
             AttentionPrecision attention)
      : weights_(std::move(weights)), attention_(attention) {}

  const ModelConfig& config() const override { return weights_->config(); }
  const KvLayout& kv_layout() const override { return weights_->kv_layout(); }

  std::string numerics() const override {
    const absl::string_view dtype = Name(weights_->dtype());
    return absl::StrCat("weights=", WeightsName(weights_->linears(), dtype),
                        " compute=", dtype, " kv=", dtype,
                        fp8_attention() ? " attention=e4m3" : "");
  }

  absl::Status Supports(const SelectorSpec& selector) const override {
    OVERTURE_RETURN_IF_ERROR(CpuSelector::Supports(selector));
    return CheckSelector(selector, attention_);
  }

  // Scales are those of 64 keys.
  bool attention_is_token_pure() const override { return !fp8_attention(); }

  std::string device_name() const override { return "cpu"; }

  int64_t WorkspaceBytes(int64_t num_tokens) const override {
    return CpuPrefill::WorkspaceBytes(*weights_, attention_, num_tokens);
  }

  absl::StatusOr<PrefillOutput> Prefill(const PrefillJob& job) override {
    OVERTURE_RETURN_IF_ERROR(Validate(job, config()));
    OVERTURE_RETURN_IF_ERROR(Supports(job.selector));
    try {
      return CpuPrefill(*weights_, attention_, job).Run();
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "not enough memory for ", job.tokens.size(), " tokens, about ",
          WorkspaceBytes(job.tokens.size()), " bytes"));
    }
  }

  absl::Status Health() const override { return absl::OkStatus(); }

 private:
  bool fp8_attention() const { return attention_ == AttentionPrecision::kFp8; }

  const std::unique_ptr<const CpuWeights> weights_;
  const AttentionPrecision attention_;
};

absl::Status CheckFp8Attention(const ModelConfig& config, DType dtype) {
  if (dtype != DType::kBF16) {
    return absl::UnimplementedError(absl::StrCat(
        "attention is fp8, which takes KV in bf16; dtype is ", Name(dtype)));
  }
  if (config.head_dim % 32 != 0 || config.head_dim > 128) {
    return absl::UnimplementedError(
        absl::StrCat("attention is fp8, which takes head dim 32, 64, 96 or "
                     "128; the model's is ",
                     config.head_dim));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(
    const ModelFiles& files, ComputeDType dtype, LinearPrecision linears,
    AttentionPrecision attention) {
  if (attention == AttentionPrecision::kFp8) {
    OVERTURE_RETURN_IF_ERROR(CheckFp8Attention(files.config(), Resolve(dtype)));
  }
  OVERTURE_ASSIGN_OR_RETURN(std::unique_ptr<const CpuWeights> weights,
                            CpuWeights::Create(files, dtype, linears));
  return std::make_unique<CpuBackend>(std::move(weights), attention);
}

}  // namespace overture::engine
