#include "engine/cuda_backend.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda/device.h"
#include "base/cuda/device_buffer.h"
#include "base/cuda/stream.h"
#include "engine/backend.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/sparse_attention/device_plan.h"
#include "tests/base/cuda/axpy.h"
#include "tests/engine/backend_suite.h"
#include "tests/support/prefill_harness.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::LoadedTinyModel;
using ::overture::testing::RandomTokens;
using ::overture::testing::RecordedKv;
using ::overture::testing::RecordedPrefill;
using ::overture::testing::RecordingIo;
using ::overture::testing::RelativeRms;
using ::overture::testing::RunPrefill;
using ::overture::testing::StatusIs;
using ::overture::testing::TinyModelOptions;
using ::testing::HasSubstr;

// GPU and CPU round to bf16 at the same places and differ in the order of their
// fp32 sums alone, which turns a rounding here and there. Each lies within 0.03
// of the exact pass (derived in decoder_test.cc), and most of that is shared.
constexpr double kTolerance = 0.03;

TinyModelOptions Tiny(TinyModelOptions options = {}) {
  if (options.head_dim < 64) options.head_dim = 64;
  return options;
}

std::unique_ptr<Backend> OnGpu(const LoadedTinyModel& model) {
  auto backend = CreateCudaBackend(model.files(), 0);
  EXPECT_THAT(backend, ::overture::testing::IsOk());
  return *std::move(backend);
}

BackendCase OnHeadDim(int32_t head_dim) {
  return {
      .name = absl::StrCat("HeadDim", head_dim),
      .create =
          [](const ModelFiles& files) { return CreateCudaBackend(files, 0); },
      .head_dim = head_dim,
      .tile_rows = kernels::kGpuTileRows,
      // As the CPU back end's in bf16: the same roundings but for the order
      // of fp32 sums.
      .tolerance = kTolerance,
      .vote_tolerance = 0.1,
      // cuBLASLt chooses its kernel by the number of rows.
      .bitwise = false};
}

// Tolerances as the CPU back end's in FP8.
BackendCase InFp8() {
  BackendCase fp8 = OnHeadDim(128);
  fp8.name = "Fp8";
  fp8.create = [](const ModelFiles& files) {
    return CreateCudaBackend(files, 0, LinearPrecision::kFp8);
  };
  fp8.tolerance = 0.26;
  fp8.vote_tolerance = 0.78;
  return fp8;
}

TEST(CudaBackendTest, AttentionInFp8IsNearThatInBf16) {
  // Beyond a token block and a query tile, a prefix that ends within a key
  // tile; A-shape, whose last rows leave keys out.
  const LoadedTinyModel model(Tiny({.head_dim = 128}));
  const auto bf16 = OnGpu(model);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const auto fp8,
      CreateCudaBackend(model.files(), 0, LinearPrecision::kBF16,
                        AttentionPrecision::kFp8));
  EXPECT_EQ(fp8->numerics(),
            "weights=bf16 compute=cuda-bf16 kv=bf16 attention=e4m3");
  EXPECT_FALSE(fp8->attention_is_token_pure());
  EXPECT_GT(fp8->WorkspaceBytes(1000), bf16->WorkspaceBytes(1000));
  for (const auto kind :
       {SelectorSpec::Kind::kDense, SelectorSpec::Kind::kAShape}) {
    const SelectorSpec selector = {
        .kind = kind, .num_initial = 64, .num_local = 128};
    const std::vector<int32_t> tokens = RandomTokens(700, 320, 5);
    RecordingIo want_io(bf16->kv_layout(), nullptr);
    RecordingIo got_io(fp8->kv_layout(), nullptr);
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const PrefillOutput want,
        bf16->Prefill(
            {.tokens = tokens, .selector = selector, .io = &want_io}));
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const PrefillOutput got,
        fp8->Prefill({.tokens = tokens, .selector = selector, .io = &got_io}));
    // Outputs of attention are off by at most 2^-4 of themselves by codes of V,
    // as much by those of probabilities, and not more by those of Q and K,
    // whose errors are independent over 128 products; the residual stream
    // dilutes it.
    EXPECT_LT(RelativeRms(got.logits, want.logits), 0.19);
    EXPECT_GT(RelativeRms(got.logits, want.logits), 0.0);
  }
  EXPECT_THAT(
      fp8->Supports({.kind = SelectorSpec::Kind::kDynamic}),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("dense and a_sh")));
  OVERTURE_EXPECT_OK(bf16->Supports({.kind = SelectorSpec::Kind::kDynamic}));
  EXPECT_THAT(
      CreateCudaBackend(LoadedTinyModel(Tiny()).files(), 0,
                        LinearPrecision::kBF16, AttentionPrecision::kFp8),
      StatusIs(absl::StatusCode::kUnimplemented,
               HasSubstr("the model's head dim 64")));
}

INSTANTIATE_TEST_SUITE_P(Cuda, BackendSuite,
                         ::testing::Values(OnHeadDim(64), OnHeadDim(96),
                                           OnHeadDim(128), InFp8()),
                         NameOfCase);

// [kv_head][row][head_dim] of K, then of V, of one layer.
std::vector<float> Values(const RecordedKv& kv, int32_t layer) {
  std::vector<float> values;
  for (const bool is_v : {false, true}) {
    for (int32_t h = 0; h < kv.layout.num_kv_heads; ++h) {
      for (int64_t row = 0; row < kv.num_rows; ++row) {
        for (int32_t i = 0; i < kv.layout.head_dim; ++i) {
          values.push_back(kv.At(is_v, layer, h, row, i));
        }
      }
    }
  }
  return values;
}

void ExpectEqualsCpuOverSeveralChunks(LinearPrecision linears,
                                      double tolerance) {
  // Chunks of 8,192 rows: too many for the naive pass. A short prompt before
  // and after, so that kept buffers grow and are used again.
  const LoadedTinyModel model(Tiny());
  auto gpu = CreateCudaBackend(model.files(), 0, linears);
  OVERTURE_ASSERT_OK(gpu.status());
  auto cpu = CreateCpuBackend(model.files(), ComputeDType::kBF16, linears);
  OVERTURE_ASSERT_OK(cpu.status());
  for (const int64_t count : {129, 8300, 64}) {
    SCOPED_TRACE(count);
    const std::vector<int32_t> tokens = RandomTokens(count, 320, 11);
    OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill got,
                                  RunPrefill(**gpu, tokens));
    OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill want,
                                  RunPrefill(**cpu, tokens));
    EXPECT_LT(RelativeRms(got.output.logits, want.output.logits), tolerance);
    for (int32_t layer = 0; layer < 2; ++layer) {
      EXPECT_LT(RelativeRms(Values(got.kv, layer), Values(want.kv, layer)),
                tolerance)
          << "layer " << layer;
    }
  }
}

TEST(CudaBackendTest, EqualsTheCpuBackEndOverSeveralChunks) {
  ExpectEqualsCpuOverSeveralChunks(LinearPrecision::kBF16, kTolerance);
}

TEST(CudaBackendTest, EqualsTheCpuBackEndOverSeveralChunksInFp8) {
  // A value that rounds to another bf16 on the other side, 2^-8 away, has one
  // chance in 32 to get another code, 2^-3 away, so the two sides differ by a
  // share of the noise of quantising: less than all of it, 0.105 for the eight
  // products of two layers (derived in cpu_backend_test.cc).
  ExpectEqualsCpuOverSeveralChunks(LinearPrecision::kFp8, 0.105);
}

// In a process of its own, since the device is lost to the one that traps.
void TrapInTheMiddleAndReport() {
  const LoadedTinyModel model(Tiny({.num_layers = 6}));
  const auto backend = OnGpu(model);
  const auto stream = Stream::Create();
  if (!stream.ok() || !backend->Health().ok()) std::_Exit(2);
  const std::vector<int32_t> tokens = RandomTokens(300, 320, 3);
  int32_t last = -1;
  RecordingIo io(backend->kv_layout(), nullptr);
  io.on_layer = [&](int32_t layer) {
    last = layer;
    if (layer == 1 &&
        (!testing::LaunchTrap(*stream).ok() || stream->Synchronize().ok())) {
      std::_Exit(3);
    }
  };
  const absl::Status status =
      backend->Prefill({.tokens = tokens, .io = &io}).status();
  std::fprintf(stderr, "prefill: %s\nhealth: %s\n", status.ToString().c_str(),
               backend->Health().ToString().c_str());
  // The layer at work may be known to be right when the trap comes, none after.
  std::_Exit(last <= 2 ? 0 : 4);
}
TEST(CudaBackendDeathTest, ATrapFailsThePrefillAndTheHealth) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(TrapInTheMiddleAndReport(), ::testing::ExitedWithCode(0),
              "prefill: INTERNAL: .*\nhealth: UNAVAILABLE: cuda:0 .* is lost");
}

TEST(CudaBackendTest, RefusesWhatDoesNotFitBeforeItStarts) {
  const LoadedTinyModel model(Tiny());
  const auto backend = OnGpu(model);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const DeviceMemory memory, GetDeviceMemory());
  constexpr int64_t kLeft = int64_t{64} << 20;
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto hog, DeviceBuffer<char>::Allocate(memory.free_bytes - kLeft));
  int64_t count = 1000;
  while (backend->WorkspaceBytes(count) < 4 * kLeft) count *= 2;
  const std::vector<int32_t> tokens = RandomTokens(count, 320, 15);
  EXPECT_THAT(RunPrefill(*backend, tokens),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("bytes of device memory")));
  hog = {};
  OVERTURE_EXPECT_OK(
      RunPrefill(*backend, absl::MakeConstSpan(tokens).first(100)).status());
}

TEST(CudaBackendTest, NamesTheShapeThatItCannotRun) {
  const LoadedTinyModel model(TinyModelOptions{});
  EXPECT_THAT(
      CreateCudaBackend(model.files(), 0),
      StatusIs(absl::StatusCode::kUnimplemented,
               HasSubstr("head_dim 64, 96 or 128, this model's is 16")));
  const LoadedTinyModel many(Tiny({.num_q_heads = 130}));
  EXPECT_THAT(
      CreateCudaBackend(many.files(), 0),
      StatusIs(absl::StatusCode::kUnimplemented,
               HasSubstr("at most 128 query heads, this model has 130")));
  EXPECT_THAT(CreateCudaBackend(model.files(), 99),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(CudaBackendTest, SaysWhatItComputesWith) {
  const LoadedTinyModel model(Tiny());
  const auto backend = OnGpu(model);
  EXPECT_EQ(backend->numerics(), "weights=bf16 compute=cuda-bf16 kv=bf16");
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const auto fp8,
      CreateCudaBackend(model.files(), 0, LinearPrecision::kFp8));
  EXPECT_EQ(fp8->numerics(), "weights=e4m3 compute=cuda-bf16 kv=bf16");
  EXPECT_THAT(backend->device_name(), ::testing::StartsWith("cuda:0"));
  EXPECT_EQ(backend->kv_layout().dtype, DType::kBF16);
  EXPECT_LT(backend->WorkspaceBytes(1000), backend->WorkspaceBytes(2000));
}

}  // namespace
}  // namespace overture::engine
