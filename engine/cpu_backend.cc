#include <memory>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/backend.h"
#include "engine/cpu_prefill.h"
#include "engine/cpu_weights.h"

namespace overture::engine {
namespace {

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(std::unique_ptr<const CpuWeights> weights)
      : weights_(std::move(weights)) {}

  const ModelConfig& config() const override { return weights_->config(); }
  const KvLayout& kv_layout() const override { return weights_->kv_layout(); }

  std::string numerics() const override {
    const absl::string_view dtype = Name(weights_->dtype());
    return absl::StrCat("weights=", WeightsName(weights_->linears(), dtype),
                        " compute=", dtype, " kv=", dtype);
  }

  std::string device_name() const override { return "cpu"; }

  int64_t WorkspaceBytes(int64_t num_tokens) const override {
    return CpuPrefill::WorkspaceBytes(*weights_, num_tokens);
  }

  absl::StatusOr<PrefillOutput> Prefill(const PrefillJob& job) override {
    OVERTURE_RETURN_IF_ERROR(Validate(job, config()));
    try {
      return CpuPrefill(*weights_, job).Run();
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "not enough memory for ", job.tokens.size(), " tokens, about ",
          WorkspaceBytes(job.tokens.size()), " bytes"));
    }
  }

  absl::Status Health() const override { return absl::OkStatus(); }

 private:
  std::unique_ptr<const CpuWeights> weights_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(
    const ModelFiles& files, ComputeDType dtype, LinearPrecision linears) {
  OVERTURE_ASSIGN_OR_RETURN(std::unique_ptr<const CpuWeights> weights,
                            CpuWeights::Create(files, dtype, linears));
  return std::make_unique<CpuBackend>(std::move(weights));
}

}  // namespace overture::engine
