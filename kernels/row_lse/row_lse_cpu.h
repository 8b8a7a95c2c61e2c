// row_lse_params.h on the CPU: the back end there and the oracle of the GPU
// kernel. Keys are taken in runs, spread over OpenMP threads and merged in
// order: the result does not depend on the number of threads.
//
// Thread-safe; borrows all pointers until it returns. INVALID_ARGUMENT as
// CheckRowLse, RESOURCE_EXHAUSTED without memory for (rows, runs).
#pragma once

#include "absl/status/status.h"
#include "kernels/row_lse/row_lse_params.h"

namespace overture::kernels {

absl::Status RowLseCpu(const RowLseParams& params);

}  // namespace overture::kernels
