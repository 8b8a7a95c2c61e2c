// The GPU linear layers and the small kernels between them behind C functions,
// for bench/linear_gpu.py, which times them beside PyTorch's in one process.
// Pointers are device pointers unless said otherwise. Every function returns 0
// or null on failure, with the reason on standard error.
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "base/status_macros.h"
#include "kernels/fp8/quantize_rows.h"
#include "kernels/linear/linear.h"
#include "kernels/transformer_ops/transformer_ops.h"

namespace {

using ::overture::BFloat16;
using ::overture::DeviceBuffer;
using ::overture::DType;
using ::overture::Stream;
using ::overture::kernels::Linear;
using ::overture::kernels::LinearContext;
using ::overture::kernels::LinearPrecision;

int Report(const absl::Status& status) {
  if (status.ok()) return 1;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  return 0;
}

// All work of this library runs on one stream of its own.
struct Bench {
  Stream stream;
  std::unique_ptr<LinearContext> context;
};

Bench* TheBench() {
  static std::optional<Bench> bench;
  if (bench.has_value()) return &*bench;
  absl::StatusOr<Stream> stream = Stream::Create();
  if (!Report(stream.status())) return nullptr;
  absl::StatusOr<std::unique_ptr<LinearContext>> context =
      LinearContext::Create();
  if (!Report(context.status())) return nullptr;
  bench.emplace(Bench{*std::move(stream), *std::move(context)});
  return &*bench;
}

}  // namespace

extern "C" {

// The stream of everything below, a cudaStream_t.
void* OvertureStream() {
  Bench* bench = TheBench();
  return bench == nullptr ? nullptr : bench->stream.get();
}

// `weight`: bf16 [out_features, in_features]; copied.
Linear* OvertureLinear(int64_t out_features, int64_t in_features, int fp8,
                       const void* weight) {
  Bench* bench = TheBench();
  if (bench == nullptr) return nullptr;
  absl::StatusOr<DeviceBuffer<BFloat16>> copy =
      DeviceBuffer<BFloat16>::Allocate(out_features * in_features);
  if (!Report(copy.status())) return nullptr;
  cudaMemcpyAsync(copy->data(), weight, copy->bytes(), cudaMemcpyDeviceToDevice,
                  bench->stream.get());
  absl::StatusOr<std::unique_ptr<Linear>> linear = Linear::Create(
      bench->context.get(),
      fp8 ? LinearPrecision::kFp8 : LinearPrecision::kBF16, out_features,
      in_features, *std::move(copy), {}, bench->stream);
  return Report(linear.status()) ? linear->release() : nullptr;
}

void OvertureLinearFree(Linear* linear) { delete linear; }

int OvertureLinearApply(const Linear* linear, const void* x,
                        const float* x_scales, int64_t rows, void* y,
                        int y_is_f32, int accumulate) {
  return Report(linear->Apply({x, x_scales}, rows, y,
                              y_is_f32 ? DType::kF32 : DType::kBF16,
                              accumulate != 0, TheBench()->stream));
}

int OvertureQuantizeRows(const void* x, void* codes, float* scales,
                         int64_t rows, int64_t columns) {
  return Report(overture::kernels::LaunchQuantizeRows({.x = x,
                                                       .codes = codes,
                                                       .scales = scales,
                                                       .rows = rows,
                                                       .columns = columns},
                                                      OvertureStream()));
}

int OvertureRmsNorm(const float* x, const float* weight, void* out,
                    float* out_scales, int64_t rows, int64_t columns) {
  return Report(overture::kernels::LaunchRmsNorm({.x = x,
                                                  .weight = weight,
                                                  .out = out,
                                                  .out_scales = out_scales,
                                                  .eps = 1e-5,
                                                  .rows = rows,
                                                  .columns = columns},
                                                 OvertureStream()));
}

int OvertureSwiGlu(const void* gate_up, void* out, float* out_scales,
                   int64_t rows, int64_t columns) {
  return Report(overture::kernels::LaunchSwiGlu({.gate_up = gate_up,
                                                 .out = out,
                                                 .out_scales = out_scales,
                                                 .rows = rows,
                                                 .columns = columns},
                                                OvertureStream()));
}

// k and v are [num_kv_heads, rows, head_dim].
int OvertureRopeKv(const float* qkv, const double* inv_freq, void* q, void* k,
                   void* v, int64_t rows, int64_t position_begin,
                   int num_q_heads, int num_kv_heads, int head_dim) {
  return Report(
      overture::kernels::LaunchRopeKv({.qkv = qkv,
                                       .inv_freq = inv_freq,
                                       .q = q,
                                       .k = k,
                                       .v = v,
                                       .stride_kv_head = rows * head_dim,
                                       .rows = rows,
                                       .position_begin = position_begin,
                                       .num_q_heads = num_q_heads,
                                       .num_kv_heads = num_kv_heads,
                                       .head_dim = head_dim},
                                      OvertureStream()));
}

}  // extern "C"
