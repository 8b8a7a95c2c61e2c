#include "kernels/linear/linear_cpu.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "kernels/onednn/onednn.h"

namespace overture::kernels {
namespace {

using dnnl::memory;

// Rows are cut greedily into these and one exact rest below 16, so that
// prompts of any length share at most 20 products per weight; making one costs
// 20 us, or 300 us for the first of its shape in the process. Nothing is
// padded: at most 3 calls per size, each near its size's full rate.
constexpr int64_t kRowChunks[] = {4096, 1024, 256, 64, 16};

// The packed format is chosen for this many rows and kept for all. On AMX and
// AVX-512 oneDNN 2.6 chooses the same one for 1 to 1024 rows.
constexpr int64_t kPackRows = 1024;

int64_t NextChunk(int64_t rows) {
  for (int64_t chunk : kRowChunks) {
    if (rows >= chunk) return chunk;
  }
  return rows;
}

absl::Status CheckRows(int64_t rows) {
  if (rows >= 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("linear: rows is ", rows, ", must be >= 0"));
}

memory::desc RowMajor(int64_t rows, int64_t columns, DType dtype) {
  return memory::desc({rows, columns}, onednn::ToDnnl(dtype),
                      memory::format_tag::ab);
}

class OneDnnLinear final : public LinearCpu {
 public:
  OneDnnLinear(DType dtype, int64_t out_features, int64_t in_features,
               absl::Span<const float> bias)
      : dtype_(dtype),
        out_features_(out_features),
        in_features_(in_features),
        bias_(bias.begin(), bias.end()) {}

  absl::Status Pack(absl::Span<const float> weight) {
    return onednn::Guard("packing linear weights", [&]() -> absl::Status {
      const memory::dims dims = {in_features_, out_features_};
      const memory::data_type type = onednn::ToDnnl(dtype_);
      const dnnl::matmul::primitive_desc any =
          Describe(kPackRows, memory::desc(dims, type, memory::format_tag::any),
                   DType::kF32);
      packed_ = memory(any.weights_desc(), onednn::Engine());
      // Through plain bf16 where the dtype asks for it: the rounding is then
      // ours (nearest even) on every CPU, and the packing a plain copy.
      std::vector<BFloat16> rounded;
      void* source = const_cast<float*>(weight.data());
      if (dtype_ == DType::kBF16) {
        rounded.resize(weight.size());
        const int64_t count = static_cast<int64_t>(weight.size());
#pragma omp parallel for
        for (int64_t i = 0; i < count; ++i) rounded[i] = BFloat16(weight[i]);
        source = rounded.data();
      }
      memory plain(memory::desc(dims, type, memory::format_tag::ba),
                   onednn::Engine(), source);
      dnnl::stream& stream = onednn::ThreadStream();
      dnnl::reorder(plain, packed_).execute(stream, plain, packed_);
      stream.wait();
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
    auto* x_bytes = static_cast<const std::byte*>(x);
    auto* y_bytes = static_cast<std::byte*>(y);
    return onednn::Guard("linear", [&]() -> absl::Status {
      while (rows > 0) {
        const int64_t chunk = NextChunk(rows);
        OVERTURE_RETURN_IF_ERROR(ApplyChunk(x_bytes, chunk, y_bytes, y_dtype));
        x_bytes += chunk * in_features_ * SizeOf(dtype_);
        y_bytes += chunk * out_features_ * SizeOf(y_dtype);
        rows -= chunk;
      }
      return absl::OkStatus();
    });
  }

 private:
  struct Product {
    dnnl::matmul primitive;
    memory::desc scratch;
  };

  dnnl::matmul::primitive_desc Describe(int64_t rows,
                                        const memory::desc& weights,
                                        DType y_dtype) const {
    // The scratchpad is ours, because oneDNN's own is not safe for one
    // primitive on several threads.
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const memory::desc x = RowMajor(rows, in_features_, dtype_);
    const memory::desc y = RowMajor(rows, out_features_, y_dtype);
    const auto desc =
        bias_.empty()
            ? dnnl::matmul::desc(x, weights, y)
            : dnnl::matmul::desc(x, weights,
                                 RowMajor(1, out_features_, DType::kF32), y);
    return dnnl::matmul::primitive_desc(desc, attr, onednn::Engine());
  }

  absl::StatusOr<const Product*> GetProduct(int64_t rows, DType y_dtype) const {
    const auto key = std::make_tuple(rows, y_dtype, onednn::MaxThreads());
    absl::MutexLock lock(&mutex_);
    auto it = products_.find(key);
    if (it == products_.end()) {
      const dnnl::matmul::primitive_desc pd =
          Describe(rows, packed_.get_desc(), y_dtype);
      const absl::string_view name = pd.impl_info_str();
      if (absl::StartsWith(name, "ref")) {
        return absl::InternalError(
            absl::StrCat("linear: oneDNN has only its scalar reference (", name,
                         ") for ", rows, " x ", out_features_, " x ",
                         in_features_, " in ", Name(dtype_)));
      }
      it = products_
               .emplace(key, Product{.primitive = dnnl::matmul(pd),
                                     .scratch = pd.scratchpad_desc()})
               .first;
    }
    return &it->second;  // a map's nodes stay where they are
  }

  absl::Status ApplyChunk(const std::byte* x, int64_t rows, std::byte* y,
                          DType y_dtype) const {
    OVERTURE_ASSIGN_OR_RETURN(const Product* product,
                              GetProduct(rows, y_dtype));
    const dnnl::engine& engine = onednn::Engine();
    std::unordered_map<int, memory> args = {
        {DNNL_ARG_SRC, memory(RowMajor(rows, in_features_, dtype_), engine,
                              const_cast<std::byte*>(x))},
        {DNNL_ARG_WEIGHTS, packed_},
        {DNNL_ARG_DST,
         memory(RowMajor(rows, out_features_, y_dtype), engine, y)},
        {DNNL_ARG_SCRATCHPAD,
         memory(product->scratch, engine,
                onednn::ThreadScratch(product->scratch.get_size()))}};
    if (!bias_.empty()) {
      args.emplace(DNNL_ARG_BIAS,
                   memory(RowMajor(1, out_features_, DType::kF32), engine,
                          const_cast<float*>(bias_.data())));
    }
    dnnl::stream& stream = onednn::ThreadStream();
    product->primitive.execute(stream, args);
    stream.wait();
    return absl::OkStatus();
  }

  const DType dtype_;
  const int64_t out_features_;
  const int64_t in_features_;
  const std::vector<float> bias_;
  memory packed_;
  mutable absl::Mutex mutex_;
  // By rows, y's dtype and threads.
  mutable std::map<std::tuple<int64_t, DType, int>, Product> products_
      ABSL_GUARDED_BY(mutex_);
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

absl::Status CheckArguments(DType dtype, int64_t out_features,
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

}  // namespace

bool CpuHasBf16() {
  static const bool has = [] {
    const auto isa = static_cast<unsigned>(dnnl::get_effective_cpu_isa());
    const auto bf16 = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
    return (isa & bf16) == bf16;  // a later ISA's bits include an earlier's
  }();
  return has;
}

absl::StatusOr<std::unique_ptr<LinearCpu>> LinearCpu::Create(
    DType dtype, int64_t out_features, int64_t in_features,
    absl::Span<const float> weight, absl::Span<const float> bias) {
  OVERTURE_RETURN_IF_ERROR(CheckArguments(dtype, out_features, in_features,
                                          weight.size(), bias.size()));
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
  OVERTURE_RETURN_IF_ERROR(linear->Pack(weight));
  if (widen) return std::make_unique<WidenedLinear>(std::move(linear));
  return linear;
}

}  // namespace overture::kernels
