// Which back end runs a model: the choice of the programs' --device flag. Where
// the library is built without the CUDA parts, kCuda is refused and kAuto is
// kCpu.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/backend.h"
#include "engine/model_files.h"

namespace overture::engine {

enum class DeviceChoice : uint8_t { kAuto, kCpu, kCuda };

// "auto", "cpu" or "cuda"; INVALID_ARGUMENT names the text and these.
absl::StatusOr<DeviceChoice> ParseDeviceChoice(absl::string_view text);

using kernels::ParseAttentionPrecision;
using kernels::ParseLinearPrecision;

// kAuto takes the first GPU if there is one that runs this model in `dtype`,
// and the CPU otherwise: with a line in the log if a GPU is there. What is
// wrong with the model's files is an error in any case. kCuda computes in bf16
// only: INVALID_ARGUMENT with ComputeDType::kF32. Other errors as
// CreateCudaBackend and CreateCpuBackend.
absl::StatusOr<std::unique_ptr<Backend>> CreateBackend(
    const ModelFiles& files, DeviceChoice device, ComputeDType dtype,
    LinearPrecision linears = LinearPrecision::kBF16,
    AttentionPrecision attention = AttentionPrecision::kBF16);

}  // namespace overture::engine
