#include "engine/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/cuda/device.h"
#include "base/cuda/device_buffer.h"
#include "base/cuda/status.h"
#include "base/cuda/stream.h"
#include "base/status_macros.h"
#include "engine/cuda_prefill.h"
#include "engine/cuda_selector.h"
#include "engine/cuda_weights.h"
#include "engine/cuda_workspace.h"
#include "kernels/probe_attention/probe_attention.h"
#include "kernels/selectors/block_scores_gpu.h"
#include "kernels/sparse_attention/sparse_attention.h"

namespace overture::engine {
namespace {

class CudaBackend final : public Backend {
 public:
  CudaBackend(DeviceInfo device, kernels::AttentionKernel attention,
              AttentionPrecision precision, Stream compute, Stream copies,
              std::unique_ptr<const CudaWeights> weights)
      : device_(std::move(device)),
        attention_(attention),
        precision_(precision),
        compute_(std::move(compute)),
        copies_(std::move(copies)),
        weights_(std::move(weights)) {}

  const ModelConfig& config() const override { return weights_->config(); }
  const KvLayout& kv_layout() const override { return weights_->kv_layout(); }

  // The CPU and the two attention kernels each sum in an order of their own, so
  // KV is kept apart.
  std::string numerics() const override {
    return absl::StrCat(
        "weights=", WeightsName(weights_->linears(), "bf16"), " compute=",
        attention_ == kernels::AttentionKernel::kSm90 ? "cuda" : "cuda-sm80",
        "-bf16 kv=bf16", fp8_attention() ? " attention=e4m3" : "");
  }

  absl::Status Supports(const SelectorSpec& selector) const override {
    OVERTURE_RETURN_IF_ERROR(CudaSelector::Supports(selector));
    if (AnyHead(selector,
                [](const auto& size) { return size.blocks.IsOn(); })) {
      OVERTURE_RETURN_IF_CUDA_ERROR(cudaSetDevice(device_.index));
      OVERTURE_RETURN_IF_ERROR(kernels::SupportsBlockScores(
          config().num_q_heads, config().head_dim));
    }
    return CheckSelector(selector, precision_);
  }

  // Scales are those of 64 keys.
  bool attention_is_token_pure() const override { return !fp8_attention(); }

  std::string device_name() const override {
    return absl::StrCat("cuda:", device_.index, " (", device_.name, ")");
  }

  int64_t WorkspaceBytes(int64_t num_tokens) const override {
    if (num_tokens < 1) return 0;
    return Plan({.num_tokens = num_tokens,
                 .num_new = num_tokens,
                 .selector = CudaSelector::MostMemory(config(), num_tokens),
                 .audit = CudaRowAudit::MostMemory(config(), num_tokens)})
        .device_bytes();
  }

  absl::StatusOr<PrefillOutput> Prefill(const PrefillJob& job) override {
    OVERTURE_RETURN_IF_ERROR(Validate(job, config()));
    OVERTURE_RETURN_IF_ERROR(Supports(job.selector));
    absl::StatusOr<PrefillOutput> output = Run(job);
    if (!output.ok()) CheckDevice();
    return output;
  }

  absl::Status Health() const override {
    const std::lock_guard lock(mutex_);
    return health_;
  }

 private:
  absl::StatusOr<PrefillOutput> Run(const PrefillJob& job) {
    // The device is a setting of the thread.
    OVERTURE_RETURN_IF_CUDA_ERROR(cudaSetDevice(device_.index));
    const CudaWorkspacePlan plan = Plan(CudaPrefill::ShapeOf(job, config()));
    OVERTURE_RETURN_IF_ERROR(Reserve(plan));
    try {
      return CudaPrefill({.weights = *weights_,
                          .attention = precision_,
                          .compute = compute_,
                          .copies = copies_,
                          .plan = plan,
                          .device = arena_.data(),
                          .pinned = pinned_.data()},
                         job)
          .Run();
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "not enough host memory for ", job.tokens.size(), " tokens"));
    }
  }

  // Nothing is in flight after a prefill, failed or not: what this call reports
  // has destroyed the context, and every later call would report it, too.
  void CheckDevice() {
    const cudaError_t error = cudaDeviceSynchronize();
    if (error == cudaSuccess) return;
    const std::lock_guard lock(mutex_);
    if (!health_.ok()) return;
    health_ = absl::UnavailableError(absl::StrCat(
        device_name(),
        " is lost: ", CudaStatus(error, "waiting for it").message()));
  }

  CudaWorkspacePlan Plan(CudaWorkspaceShape shape) const {
    shape.quantizes = weights_->linears() == LinearPrecision::kFp8;
    shape.fp8_attention = fp8_attention();
    return PlanCudaWorkspace(
        config(), shape,
        kernels::ProbeScratchBytes(shape.num_tokens, config().num_q_heads));
  }

  // Grows the buffers, which stay for the prefills that follow.
  absl::Status Reserve(const CudaWorkspacePlan& plan) {
    OVERTURE_ASSIGN_OR_RETURN(const DeviceMemory memory, GetDeviceMemory());
    const int64_t available = memory.free_bytes + arena_.bytes();
    if (plan.device_bytes() > available) {
      return absl::ResourceExhaustedError(
          absl::StrCat("the prefill needs ", plan.device_bytes(),
                       " bytes of device memory, ", available, " of ",
                       memory.total_bytes, " are free"));
    }
    // A kept arena may crowd out the plans of a longer segment.
    const bool crowded = memory.free_bytes < plan.plan_bytes;
    if (arena_.bytes() < plan.arena_bytes || crowded) {
      arena_ = {};  // first, so that both never exist at once
      OVERTURE_ASSIGN_OR_RETURN(
          arena_, DeviceBuffer<std::byte>::Allocate(plan.arena_bytes));
    }
    if (pinned_.bytes() < plan.pinned_bytes) {
      pinned_ = {};
      OVERTURE_ASSIGN_OR_RETURN(
          pinned_, PinnedBuffer<std::byte>::Allocate(plan.pinned_bytes));
    }
    return absl::OkStatus();
  }

  bool fp8_attention() const { return precision_ == AttentionPrecision::kFp8; }

  const DeviceInfo device_;
  const kernels::AttentionKernel attention_;
  const AttentionPrecision precision_;
  const Stream compute_;
  const Stream copies_;
  const std::unique_ptr<const CudaWeights> weights_;
  DeviceBuffer<std::byte> arena_;
  PinnedBuffer<std::byte> pinned_;
  mutable std::mutex mutex_;
  absl::Status health_;  // guarded by mutex_
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> CreateCudaBackend(
    const ModelFiles& files, int32_t device_index, LinearPrecision linears,
    AttentionPrecision precision) {
  OVERTURE_ASSIGN_OR_RETURN(const int32_t count, CountDevices());
  if (count == 0) {
    return absl::FailedPreconditionError("there is no CUDA device or driver");
  }
  OVERTURE_ASSIGN_OR_RETURN(DeviceInfo device, GetDeviceInfo(device_index));
  OVERTURE_ASSIGN_OR_RETURN(
      const kernels::AttentionKernel attention,
      kernels::AttentionKernelFor(device.capability_major,
                                  device.capability_minor));
  // What cuBLASLt multiplies with a scale a row.
  if (linears == LinearPrecision::kFp8 && device.capability_major != 9) {
    return absl::UnimplementedError(
        absl::StrCat("linears are fp8, which takes compute capability 9.0, ",
                     "device ", device_index, " is ", ToString(device)));
  }
  if (precision == AttentionPrecision::kFp8 &&
      (attention != kernels::AttentionKernel::kSm90 ||
       files.config().head_dim != 128)) {
    return absl::UnimplementedError(absl::StrCat(
        "attention is fp8, which takes compute capability 9.0 and head dim "
        "128; device ",
        device_index, " is ", ToString(device), ", the model's head dim ",
        files.config().head_dim));
  }
  OVERTURE_RETURN_IF_CUDA_ERROR(cudaSetDevice(device_index));
  OVERTURE_ASSIGN_OR_RETURN(Stream compute, Stream::Create());
  OVERTURE_ASSIGN_OR_RETURN(Stream copies, Stream::Create());
  OVERTURE_ASSIGN_OR_RETURN(std::unique_ptr<const CudaWeights> weights,
                            CudaWeights::Create(files, linears, compute));
  return std::make_unique<CudaBackend>(std::move(device), attention, precision,
                                       std::move(compute), std::move(copies),
                                       std::move(weights));
}

}  // namespace overture::engine
