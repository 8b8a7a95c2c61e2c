#include "kernels/linear/linear.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"
#include "kernels/fp8/quantize_rows.h"

namespace overture::kernels {
namespace {

// What NVIDIA recommends for Hopper; split-K products need it.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
// Shapes whose choice is kept. A prompt adds one per linear layer, for its last
// chunk; past the limit all are chosen again, about 50 us each.
constexpr size_t kMaxChoices = 4096;
// Hopper's FP8 units add with 14 bits; otherwise every 128 products go to an
// fp32 sum, at 0.88 of the speed (0.96 for 14,336 terms). Over 4,096 terms the
// short sums are off by 1.3e-3 of the result, less than the 1.7e-3 of rounding
// it to bf16, and far less than the 0.037 of quantising; over 14,336 by 2.9e-3.
constexpr int64_t kFastAccumTerms = 4096;

absl::Status LtStatus(cublasStatus_t status, absl::string_view call) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text =
      absl::StrCat(call, ": cuBLAS status ", static_cast<int>(status));
  if (status == CUBLAS_STATUS_ALLOC_FAILED) {
    return absl::ResourceExhaustedError(text);
  }
  return absl::InternalError(text);
}

// The functions that we call, found in the library.
struct Library {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtMatmul) matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic;
  decltype(&cublasLtMatmulDescCreate) desc_create;
  decltype(&cublasLtMatmulDescDestroy) desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
};

absl::StatusOr<Library> OpenLibrary() {
  const std::string name = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  const std::string paths[] = {name, "/usr/local/cuda/lib64/" + name};
  // Never closed: its handles and the driver keep pointers into it.
  void* handle = nullptr;
  for (const std::string& path : paths) {
    handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (handle != nullptr) break;
  }
  if (handle == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, " is neither on the loader's path nor at ", paths[1],
                     ": ", dlerror()));
  }
  absl::Status status;
  const auto find = [&]<typename F>(const char* symbol, F* function) {
    *function = reinterpret_cast<F>(dlsym(handle, symbol));
    if (*function == nullptr) {
      status.Update(absl::FailedPreconditionError(
          absl::StrCat(name, " has no ", symbol)));
    }
  };
  Library lib;
  find("cublasLtCreate", &lib.create);
  find("cublasLtDestroy", &lib.destroy);
  find("cublasLtMatmul", &lib.matmul);
  find("cublasLtMatmulAlgoGetHeuristic", &lib.get_heuristic);
  find("cublasLtMatmulDescCreate", &lib.desc_create);
  find("cublasLtMatmulDescDestroy", &lib.desc_destroy);
  find("cublasLtMatmulDescSetAttribute", &lib.desc_set);
  find("cublasLtMatrixLayoutCreate", &lib.layout_create);
  find("cublasLtMatrixLayoutDestroy", &lib.layout_destroy);
  find("cublasLtMatmulPreferenceCreate", &lib.preference_create);
  find("cublasLtMatmulPreferenceDestroy", &lib.preference_destroy);
  find("cublasLtMatmulPreferenceSetAttribute", &lib.preference_set);
  OVERTURE_RETURN_IF_ERROR(status);
  return lib;
}

cudaDataType_t CudaType(DType dtype) {
  return dtype == DType::kF32 ? CUDA_R_32F : CUDA_R_16BF;
}

// A shape's descriptors and the algorithm chosen for it. Owner; destroyed
// through the library that made it.
struct Choice {
  explicit Choice(const Library& library) : lib(library) {}
  Choice(const Choice&) = delete;
  Choice& operator=(const Choice&) = delete;
  ~Choice() {
    for (cublasLtMatrixLayout_t layout : {w, x, y}) {
      if (layout != nullptr) lib.layout_destroy(layout);
    }
    if (desc != nullptr) lib.desc_destroy(desc);
  }

  const Library& lib;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t w = nullptr;
  cublasLtMatrixLayout_t x = nullptr;
  cublasLtMatrixLayout_t y = nullptr;
  cublasLtMatmulAlgo_t algo = {};
};

class Context final : public LinearContext {
 public:
  explicit Context(const Library& lib) : lib_(lib) {}
  ~Context() override {
    choices_.clear();
    if (handle_ != nullptr) lib_.destroy(handle_);
  }

  absl::Status Open() {
    OVERTURE_RETURN_IF_ERROR(LtStatus(lib_.create(&handle_), "cublasLtCreate"));
    OVERTURE_ASSIGN_OR_RETURN(workspace_,
                              DeviceBuffer<char>::Allocate(kWorkspaceBytes));
    return absl::OkStatus();
  }

  int64_t WorkspaceBytes() const override { return kWorkspaceBytes; }

  absl::Status Run(const Product& p, const Stream& stream) override {
    OVERTURE_ASSIGN_OR_RETURN(const Choice* choice, Choose(p));
    OVERTURE_RETURN_IF_ERROR(SetPointers(p, choice->desc));
    const float alpha = 1.0f;
    const float beta = p.accumulate ? 1.0f : 0.0f;
    return LtStatus(
        lib_.matmul(handle_, choice->desc, &alpha, p.w, choice->w, p.x,
                    choice->x, &beta, p.y, choice->y, p.y, choice->y,
                    &choice->algo, workspace_.data(), kWorkspaceBytes,
                    stream.get()),
        absl::StrCat("cublasLtMatmul of ", p.n, " x ", p.m, " x ", p.k));
  }

 private:
  using Key = std::tuple<int64_t, int64_t, int64_t, DType, bool, bool, bool>;

  template <typename T>
  absl::Status Set(cublasLtMatmulDesc_t desc,
                   cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return LtStatus(lib_.desc_set(desc, attribute, &value, sizeof(value)),
                    absl::StrCat("matmul attribute ", attribute));
  }

  // Those that change from one product of a shape to the next.
  absl::Status SetPointers(const Product& p, cublasLtMatmulDesc_t desc) {
    if (p.bias != nullptr) {
      OVERTURE_RETURN_IF_ERROR(
          Set(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias));
    }
    if (p.w_scales == nullptr) return absl::OkStatus();
    OVERTURE_RETURN_IF_ERROR(
        Set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.w_scales));
    return Set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.x_scales);
  }

  absl::StatusOr<const Choice*> Choose(const Product& p) {
    const Key key = {p.m,
                     p.n,
                     p.k,
                     p.y_dtype,
                     p.accumulate,
                     p.bias != nullptr,
                     p.w_scales != nullptr};
    const auto found = choices_.find(key);
    if (found != choices_.end()) return found->second.get();
    if (choices_.size() >= kMaxChoices) choices_.clear();
    auto choice = std::make_unique<Choice>(lib_);
    OVERTURE_RETURN_IF_ERROR(Describe(p, choice.get()));
    cublasLtMatmulPreference_t preference = nullptr;
    OVERTURE_RETURN_IF_ERROR(
        LtStatus(lib_.preference_create(&preference), "preference"));
    const size_t workspace = kWorkspaceBytes;
    cublasLtMatmulHeuristicResult_t result = {};
    int count = 0;
    absl::Status status =
        LtStatus(lib_.preference_set(preference,
                                     CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                     &workspace, sizeof(workspace)),
                 "workspace preference");
    if (status.ok()) {
      status =
          LtStatus(lib_.get_heuristic(handle_, choice->desc, choice->w,
                                      choice->x, choice->y, choice->y,
                                      preference, 1, &result, &count),
                   absl::StrCat("algorithm for ", p.n, " x ", p.m, " x ", p.k));
    }
    lib_.preference_destroy(preference);
    OVERTURE_RETURN_IF_ERROR(status);
    if (count == 0) {
      return absl::UnimplementedError(
          absl::StrCat("cuBLASLt has no algorithm for a product of ", p.n,
                       " x ", p.m, " x ", p.k));
    }
    choice->algo = result.algo;
    return (choices_[key] = std::move(choice)).get();
  }

  // The library counts columns first: our row-major y is its [m, n], W is its
  // [k, m] transposed, x its [k, n].
  absl::Status Describe(const Product& p, Choice* choice) {
    OVERTURE_RETURN_IF_ERROR(LtStatus(
        lib_.desc_create(&choice->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "matmul descriptor"));
    OVERTURE_RETURN_IF_ERROR(
        Set(choice->desc, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T));
    if (p.bias != nullptr) {
      OVERTURE_RETURN_IF_ERROR(Set(choice->desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                   CUBLASLT_EPILOGUE_BIAS));
    }
    cudaDataType_t input = CUDA_R_16BF;
    if (p.w_scales != nullptr) {
      input = CUDA_R_8F_E4M3;
      for (const auto attribute : {CUBLASLT_MATMUL_DESC_A_SCALE_MODE,
                                   CUBLASLT_MATMUL_DESC_B_SCALE_MODE}) {
        OVERTURE_RETURN_IF_ERROR(
            Set(choice->desc, attribute,
                int32_t{CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F}));
      }
      OVERTURE_RETURN_IF_ERROR(
          Set(choice->desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM,
              static_cast<int8_t>(p.k <= kFastAccumTerms)));
    }
    // The library must know which are there when it chooses.
    OVERTURE_RETURN_IF_ERROR(SetPointers(p, choice->desc));
    OVERTURE_RETURN_IF_ERROR(
        LtStatus(lib_.layout_create(&choice->w, input, p.k, p.m, p.k), "W"));
    OVERTURE_RETURN_IF_ERROR(
        LtStatus(lib_.layout_create(&choice->x, input, p.k, p.n, p.k), "x"));
    return LtStatus(
        lib_.layout_create(&choice->y, CudaType(p.y_dtype), p.m, p.n, p.m),
        "y");
  }

  const Library lib_;
  cublasLtHandle_t handle_ = nullptr;
  DeviceBuffer<char> workspace_;
  std::map<Key, std::unique_ptr<Choice>> choices_;
};

absl::Status BadSize(absl::string_view name, int64_t value,
                     absl::string_view limit) {
  return absl::InvalidArgumentError(
      absl::StrCat("linear: ", name, " is ", value, ", must be ", limit));
}

// Copies, in the stream's order.
template <typename T>
absl::StatusOr<DeviceBuffer<std::byte>> ToDevice(absl::Span<const T> values,
                                                 const Stream& stream) {
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  OVERTURE_ASSIGN_OR_RETURN(auto buffer,
                            DeviceBuffer<std::byte>::Allocate(bytes));
  OVERTURE_RETURN_IF_ERROR(
      buffer.CopyFromHost({reinterpret_cast<const std::byte*>(values.data()),
                           static_cast<size_t>(bytes)},
                          stream));
  return buffer;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LinearContext>> LinearContext::Create() {
  OVERTURE_ASSIGN_OR_RETURN(const Library library, OpenLibrary());
  auto context = std::make_unique<Context>(library);
  OVERTURE_RETURN_IF_ERROR(context->Open());
  return context;
}

absl::StatusOr<std::unique_ptr<Linear>> Linear::Create(
    LinearContext* context, LinearPrecision precision, int64_t out_features,
    int64_t in_features, DeviceBuffer<BFloat16> weight,
    absl::Span<const float> bias, const Stream& stream) {
  const bool fp8 = precision == LinearPrecision::kFp8;
  if (out_features < 1 || out_features % 8 != 0) {
    return BadSize("out_features", out_features, "a positive multiple of 8");
  }
  const int64_t unit = fp8 ? 16 : 8;
  if (in_features < 1 || in_features % unit != 0) {
    return BadSize("in_features", in_features,
                   absl::StrCat("a positive multiple of ", unit));
  }
  const int64_t count = out_features * in_features;
  if (weight.size() != count) {
    return BadSize("weight.size()", weight.size(), absl::StrCat(count));
  }
  if (!bias.empty() && static_cast<int64_t>(bias.size()) != out_features) {
    return BadSize("bias.size()", bias.size(), absl::StrCat(out_features));
  }
  std::unique_ptr<Linear> linear(new Linear());
  linear->context_ = context;
  linear->out_features_ = out_features;
  linear->in_features_ = in_features;
  if (fp8) {
    OVERTURE_ASSIGN_OR_RETURN(linear->codes_,
                              DeviceBuffer<E4M3>::Allocate(count));
    OVERTURE_ASSIGN_OR_RETURN(linear->scales_,
                              DeviceBuffer<float>::Allocate(out_features));
    OVERTURE_RETURN_IF_ERROR(
        LaunchQuantizeRows({.x = weight.data(),
                            .codes = linear->codes_.data(),
                            .scales = linear->scales_.data(),
                            .rows = out_features,
                            .columns = in_features},
                           stream.get()));
  } else {
    linear->weight_ = std::move(weight);
  }
  if (!bias.empty() && fp8) {
    std::vector<BFloat16> rounded(out_features);
    std::transform(bias.begin(), bias.end(), rounded.begin(),
                   [](float value) { return BFloat16(value); });
    OVERTURE_ASSIGN_OR_RETURN(linear->bias_,
                              ToDevice(absl::MakeConstSpan(rounded), stream));
  } else if (!bias.empty()) {
    OVERTURE_ASSIGN_OR_RETURN(linear->bias_, ToDevice(bias, stream));
  }
  OVERTURE_RETURN_IF_ERROR(stream.Synchronize());
  return linear;
}

absl::Status Linear::Apply(const LinearInput& x, int64_t rows, void* y,
                           DType y_dtype, bool accumulate,
                           const Stream& stream) const {
  if (rows < 1) return BadSize("rows", rows, ">= 1");
  if (y_dtype != DType::kF32 && y_dtype != DType::kBF16) {
    return BadSize("y_dtype", static_cast<int64_t>(y_dtype), "kF32 or kBF16");
  }
  if (y_dtype != DType::kF32 && (accumulate || bias_.size() > 0)) {
    return BadSize("y_dtype", static_cast<int64_t>(y_dtype),
                   "kF32 with a bias or accumulate");
  }
  if ((x.scales != nullptr) != (scales_.size() > 0)) {
    return absl::InvalidArgumentError(
        "linear: x must have scales exactly if the weights are e4m3");
  }
  const bool fp8 = scales_.size() > 0;
  return context_->Run(
      {.w = fp8 ? static_cast<const void*>(codes_.data()) : weight_.data(),
       .x = x.values,
       .w_scales = scales_.data(),
       .x_scales = x.scales,
       .bias = bias_.data(),
       .y = y,
       .y_dtype = y_dtype,
       .m = out_features_,
       .n = rows,
       .k = in_features_,
       .accumulate = accumulate},
      stream);
}

}  // namespace overture::kernels
