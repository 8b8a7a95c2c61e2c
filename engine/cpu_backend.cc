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
    return absl::StrCat("weights=", dtype, " compute=", dtype, " kv=", dtype);
  }

  std::string device_name() const override { return "cpu"; }

  int64_t WorkspaceBytes(int64_t num_tokens) const override {
    return CpuPrefill::WorkspaceBytes(*weights_, num_tokens);
  }

  absl::StatusOr<PrefillOutput> Prefill(const PrefillJob& job) override {
    OVERTURE_RETURN_IF_ERROR(CheckJob(job));
    try {
      return CpuPrefill(*weights_, job).Run();
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "not enough memory for ", job.tokens.size(), " tokens, about ",
          WorkspaceBytes(job.tokens.size()), " bytes"));
    }
  }

 private:
  absl::Status CheckJob(const PrefillJob& job) const {
    const int64_t n = static_cast<int64_t>(job.tokens.size());
    if (n == 0 || job.num_cached < 0 || job.num_cached >= n ||
        job.io == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("prefill of ", n, " tokens with ", job.num_cached,
                       " cached, io ", job.io != nullptr));
    }
    for (int64_t i = 0; i < n; ++i) {
      if (job.tokens[i] < 0 || job.tokens[i] >= config().vocab_size) {
        return absl::InvalidArgumentError(
            absl::StrCat("tokens[", i, "] is ", job.tokens[i],
                         ", must be in [0, ", config().vocab_size, ")"));
      }
    }
    OVERTURE_RETURN_IF_ERROR(Validate(job.selector));
    if (!job.view.has_value()) return absl::OkStatus();
    OVERTURE_RETURN_IF_ERROR(compress::Validate(*job.view));
    if (job.num_cached > 0 && job.view->window > n - job.num_cached) {
      return absl::InvalidArgumentError(
          absl::StrCat("view.window is ", job.view->window, ", only ",
                       n - job.num_cached, " tokens are new"));
    }
    return absl::OkStatus();
  }

  std::unique_ptr<const CpuWeights> weights_;
};

}  // namespace

int64_t ViewData::TotalBytes() const {
  int64_t bytes = 0;
  for (const std::vector<std::byte>& layer : layers) {
    bytes += static_cast<int64_t>(layer.size());
  }
  return bytes;
}

absl::StatusOr<std::unique_ptr<Backend>> CreateCpuBackend(
    const ModelFiles& files, ComputeDType dtype) {
  OVERTURE_ASSIGN_OR_RETURN(std::unique_ptr<const CpuWeights> weights,
                            CpuWeights::Create(files, dtype));
  return std::make_unique<CpuBackend>(std::move(weights));
}

}  // namespace overture::engine
