#include "kernels/linear/linear_fp8_cpu.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/fp8/quantize_rows_cpu.h"

namespace overture::kernels {
namespace {

constexpr int64_t kMaxRows = 512;  // bounds the copies in Apply

std::vector<BFloat16> ToBf16(const float* values, int64_t count) {
  std::vector<BFloat16> rounded(count);
#pragma omp parallel for if (count > 65536)
  for (int64_t i = 0; i < count; ++i) rounded[i] = BFloat16(values[i]);
  return rounded;
}

class LinearFp8Cpu final : public LinearCpu {
 public:
  LinearFp8Cpu(DType dtype, std::unique_ptr<LinearCpu> codes, DType codes_dtype,
               std::vector<float> scales, absl::Span<const float> bias)
      : dtype_(dtype),
        codes_(std::move(codes)),
        codes_dtype_(codes_dtype),
        scales_(std::move(scales)),
        bias_(bias.begin(), bias.end()) {
    for (float& value : bias_) value = float(BFloat16(value));
  }

  int64_t in_features() const override { return codes_->in_features(); }
  int64_t out_features() const override { return codes_->out_features(); }

  absl::Status Apply(const void* x, int64_t rows, void* y,
                     DType y_dtype) const override {
    if (rows < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("linear: rows is ", rows, ", must be >= 0"));
    }
    if (y_dtype != DType::kF32 && y_dtype != dtype_) {
      return absl::InvalidArgumentError(
          absl::StrCat("linear: y_dtype is ", Name(y_dtype),
                       ", must be f32 or ", Name(dtype_)));
    }
    const auto* x_bytes = static_cast<const std::byte*>(x);
    auto* y_bytes = static_cast<std::byte*>(y);
    for (int64_t begin = 0; begin < rows; begin += kMaxRows) {
      OVERTURE_RETURN_IF_ERROR(ApplyRows(
          x_bytes + begin * in_features() * SizeOf(dtype_),
          std::min(kMaxRows, rows - begin),
          y_bytes + begin * out_features() * SizeOf(y_dtype), y_dtype));
    }
    return absl::OkStatus();
  }

 private:
  absl::Status ApplyRows(const void* x, int64_t rows, void* y,
                         DType y_dtype) const {
    const int64_t x_count = rows * in_features();
    std::vector<BFloat16> rounded;
    const auto* x_bf16 = static_cast<const BFloat16*>(x);
    if (dtype_ == DType::kF32) {
      rounded = ToBf16(static_cast<const float*>(x), x_count);
      x_bf16 = rounded.data();
    }
    std::vector<E4M3> codes(x_count);
    std::vector<float> x_scales(rows);
    QuantizeRowsCpu(x_bf16, rows, in_features(), codes.data(), x_scales.data());
    std::vector<float> sums(rows * out_features());
    OVERTURE_RETURN_IF_ERROR(MultiplyCodes(codes, rows, sums.data()));
#pragma omp parallel for if (rows * out_features() > 32768)
    for (int64_t r = 0; r < rows; ++r) {
      float* row = sums.data() + r * out_features();
      for (int64_t i = 0; i < out_features(); ++i) {
        row[i] = row[i] * (x_scales[r] * scales_[i]) +
                 (bias_.empty() ? 0.0f : bias_[i]);
      }
    }
    if (y_dtype == DType::kF32) {
      std::copy(sums.begin(), sums.end(), static_cast<float*>(y));
    } else {
      std::transform(sums.begin(), sums.end(), static_cast<BFloat16*>(y),
                     [](float value) { return BFloat16(value); });
    }
    return absl::OkStatus();
  }

  absl::Status MultiplyCodes(const std::vector<E4M3>& codes, int64_t rows,
                             float* sums) const {
    const auto decode = [&]<typename T>(T) {
      std::vector<T> values(codes.size());
      std::transform(codes.begin(), codes.end(), values.begin(),
                     [](E4M3 code) { return T(static_cast<float>(code)); });
      return codes_->Apply(values.data(), rows, sums, DType::kF32);
    };
    return codes_dtype_ == DType::kF32 ? decode(float()) : decode(BFloat16());
  }

  const DType dtype_;
  const std::unique_ptr<LinearCpu> codes_;  // of the weights
  const DType codes_dtype_;
  const std::vector<float> scales_;  // [out_features]
  std::vector<float> bias_;          // empty or [out_features]
};

}  // namespace

absl::StatusOr<std::unique_ptr<LinearCpu>> CreateLinearFp8Cpu(
    DType dtype, int64_t out_features, int64_t in_features,
    absl::Span<const float> weight, absl::Span<const float> bias) {
  const DType codes_dtype = CpuHasBf16() ? DType::kBF16 : DType::kF32;
  // Checks the arguments before anything reads them.
  OVERTURE_RETURN_IF_ERROR(LinearCpu::Validate(dtype, out_features, in_features,
                                               weight.size(), bias.size()));
  const auto count = static_cast<int64_t>(weight.size());
  std::vector<E4M3> codes(count);
  std::vector<float> scales(out_features);
  QuantizeRowsCpu(ToBf16(weight.data(), count).data(), out_features,
                  in_features, codes.data(), scales.data());
  std::vector<float> values(count);
  std::transform(codes.begin(), codes.end(), values.begin(),
                 [](E4M3 code) { return static_cast<float>(code); });
  OVERTURE_ASSIGN_OR_RETURN(
      std::unique_ptr<LinearCpu> product,
      LinearCpu::Create(codes_dtype, out_features, in_features, values, {}));
  return std::make_unique<LinearFp8Cpu>(dtype, std::move(product), codes_dtype,
                                        std::move(scales), bias);
}

}  // namespace overture::kernels
