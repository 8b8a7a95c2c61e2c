#include "kernels/linear/linear_cpu.h"

#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "kernels/onednn/matmul.h"
#include "kernels/onednn/onednn.h"
#include "kernels/simd/scratch_buffer.h"

namespace overture::kernels {
namespace {

using dnnl::memory;
using onednn::MatMul;

// Every product has one of these row counts, so that prompts of any length
// share a few products. 64 runs as fast as more (64 x 192 x 576 in bf16: 2.07
// TFLOPS a core on AMX, 256 rows: 1.93); the others serve what is left over.
constexpr int64_t kBlockRows = 64;
constexpr int64_t kRestRows[] = {1, 4, 16, kBlockRows};

// Rows of one unit of work: they and a slice of the weights share an L2 cache.
constexpr int64_t kGroupRows = 8 * kBlockRows;

// Output features of one unit of work. The widest that divides them, so that
// units are equal; all run within 5% of each other.
int64_t SliceColumns(int64_t out_features) {
  for (int64_t width : {256, 192, 128}) {
    if (out_features % width == 0) return width;
  }
  return std::min<int64_t>(256, out_features);
}

std::vector<BFloat16> RoundAll(absl::Span<const float> values) {
  std::vector<BFloat16> rounded(values.size());
  const auto count = static_cast<int64_t>(values.size());
#pragma omp parallel for if (count > 65536)
  for (int64_t i = 0; i < count; ++i) rounded[i] = BFloat16(values[i]);
  return rounded;
}

// Packs [n, k] values of `dtype`. REQUIRES MaxThreads() == 1.
memory Pack(DType dtype, int64_t n, int64_t k, const void* values) {
  memory packed(onednn::PackedDesc(dtype, n, k), onednn::Engine());
  memory plain(
      memory::desc({k, n}, onednn::ToDnnl(dtype), memory::format_tag::ba),
      onednn::Engine(), const_cast<void*>(values));
  dnnl::stream& stream = onednn::ThreadStream();
  dnnl::reorder(plain, packed).execute(stream, plain, packed);
  stream.wait();
  return packed;
}

// The entries of kRestRows whose products give the same bits as kBlockRows do,
// on this CPU for this shape, found by trying them on random data: oneDNN picks
// kernels by row count (for a single row on AMX it takes AVX-512, which sums in
// another order), and its choice is not documented. kBlockRows is always there.
std::vector<int64_t> FindRestRows(DType dtype, int64_t n, int64_t k) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  const auto draw = [&](int64_t count) {
    std::vector<float> values(count);
    for (float& value : values) value = normal(random);
    return values;
  };
  const std::vector<float> x = draw(kBlockRows * k);
  const std::vector<float> w = draw(n * k);
  const bool bf16 = dtype == DType::kBF16;
  const std::vector<BFloat16> x_bf16 = RoundAll(x);
  const std::vector<BFloat16> w_bf16 = RoundAll(w);
  const auto* x_data = bf16 ? reinterpret_cast<const std::byte*>(x_bf16.data())
                            : reinterpret_cast<const std::byte*>(x.data());
  const void* w_data =
      bf16 ? static_cast<const void*>(w_bf16.data()) : w.data();
  const memory packed = Pack(dtype, n, k, w_data);

  // The whole block by products of `rows` rows.
  const auto run = [&](int64_t rows) {
    MatMul product(
        {.dtype = dtype, .m = rows, .n = n, .k = k, .packed_b = true});
    std::vector<float> y(kBlockRows * n);
    for (int64_t row = 0; row < kBlockRows; row += rows) {
      product.Run(x_data + row * k * SizeOf(dtype), packed.get_data_handle(),
                  y.data() + row * n);
    }
    return y;
  };
  const std::vector<float> expected = run(kBlockRows);
  std::vector<int64_t> same;
  for (int64_t rows : kRestRows) {
    if (rows == kBlockRows ||
        std::memcmp(run(rows).data(), expected.data(),
                    expected.size() * sizeof(float)) == 0) {
      same.push_back(rows);
    }
  }
  return same;
}

// FindRestRows, once per shape and process.
std::vector<int64_t> RestRows(DType dtype, int64_t n, int64_t k) {
  static absl::Mutex mutex(absl::kConstInit);
  using Key = std::tuple<DType, int64_t, int64_t>;
  static auto* const found = new std::map<Key, std::vector<int64_t>>();
  const Key key(dtype, n, k);
  absl::MutexLock lock(&mutex);
  auto it = found->find(key);
  if (it == found->end()) {
    it = found->emplace(key, FindRestRows(dtype, n, k)).first;
  }
  return it->second;
}

absl::Status CheckRows(int64_t rows) {
  if (rows >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("linear: rows is ", rows, ", must be >= 0"));
}

class OneDnnLinear final : public LinearCpu {
 public:
  OneDnnLinear(DType dtype, int64_t out_features, int64_t in_features,
               absl::Span<const float> bias)
      : dtype_(dtype),
        out_features_(out_features),
        in_features_(in_features),
        bias_(bias.begin(), bias.end()) {}

  absl::Status PackWeights(absl::Span<const float> weight) {
    // The rounding is ours (nearest even) on every CPU, and the packing a copy.
    std::vector<BFloat16> rounded;
    const auto* source = reinterpret_cast<const std::byte*>(weight.data());
    if (dtype_ == DType::kBF16) {
      rounded = RoundAll(weight);
      source = reinterpret_cast<const std::byte*>(rounded.data());
    }
    const onednn::SingleThreaded single;
    return onednn::Guard("packing linear weights", [&]() -> absl::Status {
      const int64_t columns = SliceColumns(out_features_);
      for (int64_t begin = 0; begin < out_features_; begin += columns) {
        const int64_t width = std::min(columns, out_features_ - begin);
        slices_.push_back(
            {.begin = begin,
             .width = width,
             .rest_rows = RestRows(dtype_, width, in_features_),
             .weights = Pack(dtype_, width, in_features_,
                             source + begin * in_features_ * SizeOf(dtype_))});
      }
      return absl::OkStatus();
    });
  }

  int64_t in_features() const override { return in_features_; }
  int64_t out_features() const override { return out_features_; }

  absl::Status Apply(const void* x, int64_t rows, void* y,
                     DType y_dtype) const override {
    OVERTURE_RETURN_IF_ERROR(CheckRows(rows));
    if (y_dtype != DType::kF32 && y_dtype != dtype_) {
      return absl::InvalidArgumentError(
          absl::StrCat("linear: y_dtype is ", Name(y_dtype),
                       ", must be f32 or ", Name(dtype_)));
    }
    const auto num_slices = static_cast<int64_t>(slices_.size());
    const int64_t num_items = (rows + kGroupRows - 1) / kGroupRows * num_slices;
    absl::Mutex mutex;
    absl::Status first_error;  // guarded by mutex
#pragma omp parallel if (num_items > 1)
    {
      const onednn::SingleThreaded single;
#pragma omp for schedule(dynamic, 1)
      for (int64_t item = 0; item < num_items; ++item) {
        const int64_t row_begin = item / num_slices * kGroupRows;
        const absl::Status status = onednn::Guard("linear", [&] {
          ApplySlice(slices_[item % num_slices],
                     static_cast<const std::byte*>(x), row_begin,
                     std::min(row_begin + kGroupRows, rows),
                     static_cast<std::byte*>(y), y_dtype);
          return absl::OkStatus();
        });
        if (!status.ok()) {
          absl::MutexLock lock(&mutex);
          first_error.Update(status);
        }
      }
    }
    return first_error;
  }

 private:
  struct Slice {
    int64_t begin = 0;  // first output feature
    int64_t width = 0;
    std::vector<int64_t> rest_rows;  // ascending, the last is kBlockRows
    memory weights;
  };

  MatMul& ProductFor(const Slice& slice, int64_t rows, DType y_dtype) const {
    return MatMul::ForThread({.dtype = dtype_,
                              .m = rows,
                              .n = slice.width,
                              .k = in_features_,
                              .c_dtype = y_dtype,
                              .packed_b = true,
                              .has_bias = !bias_.empty()});
  }

  // Blocks are multiplied into a dense buffer, because oneDNN cannot write a
  // slice of y's rows; copying costs 5% (K = 1536) to 10% (K = 576).
  void ApplySlice(const Slice& slice, const std::byte* x, int64_t row_begin,
                  int64_t row_end, std::byte* y, DType y_dtype) const {
    thread_local ScratchBuffer x_buffer;
    thread_local ScratchBuffer y_buffer;
    const int64_t x_row_bytes = in_features_ * SizeOf(dtype_);
    const int64_t y_row_bytes = out_features_ * SizeOf(y_dtype);
    const int64_t slice_bytes = slice.width * SizeOf(y_dtype);
    const float* bias = bias_.empty() ? nullptr : bias_.data() + slice.begin;
    for (int64_t row = row_begin; row < row_end;) {
      const int64_t rows = std::min(kBlockRows, row_end - row);
      const int64_t padded = *std::lower_bound(slice.rest_rows.begin(),
                                               slice.rest_rows.end(), rows);
      const std::byte* x_rows = x + row * x_row_bytes;
      if (padded > rows) {
        auto* copy = x_buffer.Reserve<std::byte>(padded * x_row_bytes);
        std::memcpy(copy, x_rows, rows * x_row_bytes);
        std::memset(copy + rows * x_row_bytes, 0,
                    (padded - rows) * x_row_bytes);
        x_rows = copy;
      }
      auto* y_rows = y_buffer.Reserve<std::byte>(padded * slice_bytes);
      ProductFor(slice, padded, y_dtype)
          .Run(x_rows, slice.weights.get_data_handle(), y_rows, bias);
      std::byte* out = y + row * y_row_bytes + slice.begin * SizeOf(y_dtype);
      for (int64_t r = 0; r < rows; ++r) {
        std::memcpy(out + r * y_row_bytes, y_rows + r * slice_bytes,
                    slice_bytes);
      }
      row += rows;
    }
  }

  const DType dtype_;
  const int64_t out_features_;
  const int64_t in_features_;
  const std::vector<float> bias_;
  std::vector<Slice> slices_;
};

// bf16 in and out around an f32 product, for CPUs without bf16 hardware.
class WidenedLinear final : public LinearCpu {
 public:
  explicit WidenedLinear(std::unique_ptr<LinearCpu> f32)
      : f32_(std::move(f32)) {}

  int64_t in_features() const override { return f32_->in_features(); }
  int64_t out_features() const override { return f32_->out_features(); }

  absl::Status Apply(const void* x, int64_t rows, void* y,
                     DType y_dtype) const override {
    OVERTURE_RETURN_IF_ERROR(CheckRows(rows));
    if (y_dtype == DType::kF16) {
      return absl::InvalidArgumentError(
          "linear: y_dtype is f16, must be f32 or bf16");
    }
    const auto* x_bf16 = static_cast<const BFloat16*>(x);
    std::vector<float> x_f32(std::min(rows, kMaxRows) * in_features());
    std::vector<float> y_f32;
    if (y_dtype == DType::kBF16) {
      y_f32.resize(std::min(rows, kMaxRows) * out_features());
    }
    for (int64_t begin = 0; begin < rows; begin += kMaxRows) {
      const int64_t count = std::min(rows - begin, kMaxRows);
      const BFloat16* x_rows = x_bf16 + begin * in_features();
      const int64_t x_count = count * in_features();
      for (int64_t i = 0; i < x_count; ++i) x_f32[i] = float(x_rows[i]);
      if (y_dtype == DType::kF32) {
        OVERTURE_RETURN_IF_ERROR(f32_->Apply(
            x_f32.data(), count,
            static_cast<float*>(y) + begin * out_features(), DType::kF32));
        continue;
      }
      OVERTURE_RETURN_IF_ERROR(
          f32_->Apply(x_f32.data(), count, y_f32.data(), DType::kF32));
      BFloat16* y_rows = static_cast<BFloat16*>(y) + begin * out_features();
      const int64_t y_count = count * out_features();
      for (int64_t i = 0; i < y_count; ++i) y_rows[i] = BFloat16(y_f32[i]);
    }
    return absl::OkStatus();
  }

 private:
  static constexpr int64_t kMaxRows = 1024;  // bounds the two copies

  const std::unique_ptr<LinearCpu> f32_;
};

}  // namespace

bool CpuHasBf16() {
  static const bool has = [] {
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    const auto bf16 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
    return (isa & bf16) == bf16;  // a later ISA's bits include an earlier's
  }();
  return has;
}

absl::Status LinearCpu::Validate(DType dtype, int64_t out_features,
                                 int64_t in_features, size_t weight_size,
                                 size_t bias_size) {
  if (dtype != DType::kF32 && dtype != DType::kBF16) {
    return absl::InvalidArgumentError(absl::StrCat(
        "linear: dtype is ", Name(dtype), ", must be f32 or bf16"));
  }
  constexpr int64_t kLimit = std::numeric_limits<int32_t>::max();
  if (out_features < 1 || out_features > kLimit || in_features < 1 ||
      in_features > kLimit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "linear: out_features is ", out_features, " and in_features is ",
        in_features, ", each must be in [1, ", kLimit, "]"));
  }
  if (weight_size != static_cast<size_t>(out_features * in_features)) {
    return absl::InvalidArgumentError(
        absl::StrCat("linear: weight has ", weight_size, " values, must have ",
                     out_features, " x ", in_features));
  }
  if (bias_size != 0 && bias_size != static_cast<size_t>(out_features)) {
    return absl::InvalidArgumentError(
        absl::StrCat("linear: bias has ", bias_size, " values, must have 0 or ",
                     out_features));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<LinearCpu>> LinearCpu::Create(
    DType dtype, int64_t out_features, int64_t in_features,
    absl::Span<const float> weight, absl::Span<const float> bias) {
  OVERTURE_RETURN_IF_ERROR(
      Validate(dtype, out_features, in_features, weight.size(), bias.size()));
  const bool widen = dtype == DType::kBF16 && !CpuHasBf16();
  std::vector<float> rounded;
  if (widen) {
    rounded.resize(weight.size());
    std::transform(weight.begin(), weight.end(), rounded.begin(),
                   [](float w) { return float(BFloat16(w)); });
    weight = rounded;
  }
  auto linear = std::make_unique<OneDnnLinear>(widen ? DType::kF32 : dtype,
                                               out_features, in_features, bias);
  OVERTURE_RETURN_IF_ERROR(linear->PackWeights(weight));
  if (widen) return std::make_unique<WidenedLinear>(std::move(linear));
  return linear;
}

}  // namespace overture::kernels
