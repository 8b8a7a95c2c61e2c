// LinearCpu with FP8 products: what the GPU computes with
// LinearPrecision::kFp8, from the same codes and scales, and so its oracle,
// down to the accuracy of whole models. Not faster than LinearCpu: codes are
// multiplied as bf16 or fp32, which both hold them exactly.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/linear/linear_cpu.h"

namespace overture::kernels {

// As LinearCpu::Create, but weights become e4m3 with a scale per output feature
// (of their bf16 roundings), and so does each row of x in Apply; the bias is
// rounded to bf16. x and y are of `dtype` as before.
absl::StatusOr<std::unique_ptr<LinearCpu>> CreateLinearFp8Cpu(
    DType dtype, int64_t out_features, int64_t in_features,
    absl::Span<const float> weight, absl::Span<const float> bias);

}  // namespace overture::kernels
