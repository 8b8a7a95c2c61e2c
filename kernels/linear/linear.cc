#include "kernels/linear/linear.h"

#include <cublasLt.h>
#include <dlfcn.h>

#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/cuda/status.h"
#include "base/status_macros.h"

namespace overture::kernels {
namespace {

// What NVIDIA recommends for Hopper; split-K products need it.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
// Shapes whose choice is kept. A prompt adds one per linear layer, for its last
// chunk; past the limit all are chosen again, about 50 us each.
constexpr size_t kMaxChoices = 4096;

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
    if (p.bias != nullptr) {
      OVERTURE_RETURN_IF_ERROR(LtStatus(
          lib_.desc_set(choice->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                        &p.bias, sizeof(p.bias)),
          "bias pointer"));
    }
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
  using Key = std::tuple<int64_t, int64_t, int64_t, DType, bool, bool>;

  absl::StatusOr<const Choice*> Choose(const Product& p) {
    const Key key = {p.m, p.n, p.k, p.y_dtype, p.accumulate, p.bias != nullptr};
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
    const cublasOperation_t transpose = CUBLAS_OP_T;
    OVERTURE_RETURN_IF_ERROR(
        LtStatus(lib_.desc_set(choice->desc, CUBLASLT_MATMUL_DESC_TRANSA,
                               &transpose, sizeof(transpose)),
                 "transpose"));
    if (p.bias != nullptr) {
      const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
      OVERTURE_RETURN_IF_ERROR(
          LtStatus(lib_.desc_set(choice->desc, CUBLASLT_MATMUL_DESC_EPILOGUE,
                                 &epilogue, sizeof(epilogue)),
                   "epilogue"));
      // The library must know the pointer is there when it chooses.
      OVERTURE_RETURN_IF_ERROR(LtStatus(
          lib_.desc_set(choice->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                        &p.bias, sizeof(p.bias)),
          "bias pointer"));
    }
    OVERTURE_RETURN_IF_ERROR(LtStatus(
        lib_.layout_create(&choice->w, CUDA_R_16BF, p.k, p.m, p.k), "W"));
    OVERTURE_RETURN_IF_ERROR(LtStatus(
        lib_.layout_create(&choice->x, CUDA_R_16BF, p.k, p.n, p.k), "x"));
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

}  // namespace

absl::StatusOr<std::unique_ptr<LinearContext>> LinearContext::Create() {
  OVERTURE_ASSIGN_OR_RETURN(const Library library, OpenLibrary());
  auto context = std::make_unique<Context>(library);
  OVERTURE_RETURN_IF_ERROR(context->Open());
  return context;
}

absl::StatusOr<std::unique_ptr<Linear>> Linear::Create(
    LinearContext* context, int64_t out_features, int64_t in_features,
    absl::Span<const float> weight, absl::Span<const float> bias,
    const Stream& stream) {
  constexpr absl::string_view kFeatures = "a positive multiple of 8";
  if (out_features < 1 || out_features % 8 != 0) {
    return BadSize("out_features", out_features, kFeatures);
  }
  if (in_features < 1 || in_features % 8 != 0) {
    return BadSize("in_features", in_features, kFeatures);
  }
  const int64_t count = out_features * in_features;
  if (static_cast<int64_t>(weight.size()) != count) {
    return BadSize("weight.size()", weight.size(), absl::StrCat(count));
  }
  if (!bias.empty() && static_cast<int64_t>(bias.size()) != out_features) {
    return BadSize("bias.size()", bias.size(), absl::StrCat(out_features));
  }
  std::unique_ptr<Linear> linear(new Linear());
  linear->context_ = context;
  linear->out_features_ = out_features;
  linear->in_features_ = in_features;
  std::vector<BFloat16> rounded(count);
#pragma omp parallel for
  for (int64_t i = 0; i < count; ++i) rounded[i] = BFloat16(weight[i]);
  OVERTURE_ASSIGN_OR_RETURN(linear->weight_,
                            DeviceBuffer<BFloat16>::Allocate(count));
  OVERTURE_RETURN_IF_ERROR(
      linear->weight_.CopyFromHost(absl::MakeConstSpan(rounded), stream));
  if (!bias.empty()) {
    OVERTURE_ASSIGN_OR_RETURN(linear->bias_,
                              DeviceBuffer<float>::Allocate(out_features));
    OVERTURE_RETURN_IF_ERROR(linear->bias_.CopyFromHost(bias, stream));
  }
  OVERTURE_RETURN_IF_ERROR(stream.Synchronize());
  return linear;
}

absl::Status Linear::Apply(const void* x, int64_t rows, void* y, DType y_dtype,
                           bool accumulate, const Stream& stream) const {
  if (rows < 1) return BadSize("rows", rows, ">= 1");
  if (y_dtype != DType::kF32 && y_dtype != DType::kBF16) {
    return BadSize("y_dtype", static_cast<int64_t>(y_dtype), "kF32 or kBF16");
  }
  if (y_dtype != DType::kF32 && (accumulate || bias_.size() > 0)) {
    return BadSize("y_dtype", static_cast<int64_t>(y_dtype),
                   "kF32 with a bias or accumulate");
  }
  return context_->Run({.w = weight_.data(),
                        .x = x,
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
