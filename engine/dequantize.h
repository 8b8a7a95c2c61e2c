// Weights on disk to fp32, one row or many blocks at a time.
// Thread-safe: no state.
// Source: ggml-org/ggml src/ggml-quants.c, `dequantize_row_*`; equal to it up
// to the last bit of one fused or unfused multiply-add.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "engine/tensor_type.h"

namespace overture::engine {

// Writes dst.size() elements decoded from `src`, which needs no alignment.
// INVALID_ARGUMENT unless dst.size() is a whole number of blocks, `src` has
// exactly their bytes, and the type is supported.
absl::Status Dequantize(TensorType type, absl::string_view src,
                        absl::Span<float> dst);

// The same rounded to bf16: a plain copy of what is bf16.
absl::Status Dequantize(TensorType type, absl::string_view src,
                        absl::Span<BFloat16> dst);

}  // namespace overture::engine
