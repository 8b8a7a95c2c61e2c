#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "engine/backend.h"
#include "engine/decoder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/backend_suite.h"
#include "tests/support/prefill_harness.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::LoadedTinyModel;
using ::overture::testing::RandomTokens;
using ::overture::testing::RecordedKv;
using ::overture::testing::RecordedPrefill;
using ::overture::testing::RelativeRms;
using ::overture::testing::RunPrefill;
using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

std::unique_ptr<Backend> NewBackend(const ModelFiles& files,
                                    ComputeDType dtype = ComputeDType::kF32) {
  auto backend = CreateCpuBackend(files, dtype);
  EXPECT_THAT(backend, ::overture::testing::IsOk());
  return *std::move(backend);
}

absl::Span<const std::byte> HeadRows(const RecordedKv& kv, int32_t layer,
                                     int32_t index) {
  const int64_t bytes = kv.layout.HeadBytes(kv.num_rows);
  return {kv.layers[layer].data() + index * bytes, static_cast<size_t>(bytes)};
}

// A decoder that holds all of `kv`.
std::unique_ptr<Decoder> DecoderOver(const ModelFiles& files,
                                     ComputeDType dtype, const RecordedKv& kv) {
  auto model = DecoderModel::Create(files, dtype);
  EXPECT_THAT(model, ::overture::testing::IsOk());
  auto decoder = Decoder::Create(*model, kv.num_rows);
  EXPECT_THAT(decoder, ::overture::testing::IsOk());
  const int32_t heads = kv.layout.num_kv_heads;
  for (int32_t layer = 0; layer < kv.layout.num_layers; ++layer) {
    for (int32_t h = 0; h < heads; ++h) {
      const auto k = HeadRows(kv, layer, h);
      const auto v = HeadRows(kv, layer, heads + h);
      OVERTURE_EXPECT_OK(
          (*decoder)->AppendRows(layer, h, kv.layout.dtype, k, v));
    }
  }
  return *std::move(decoder);
}

absl::StatusOr<std::unique_ptr<Backend>> NewFp8Attention(
    const ModelFiles& files) {
  return CreateCpuBackend(files, ComputeDType::kBF16, LinearPrecision::kBF16,
                          AttentionPrecision::kFp8);
}

INSTANTIATE_TEST_SUITE_P(
    Cpu, BackendSuite,
    ::testing::Values(
        // fp32 against double on two or three layers: 2^-24 a product, times
        // scores near 10 in sharp attention and the layers, is some 1e-5.
        BackendCase{.name = "F32",
                    .create =
                        [](const ModelFiles& files) {
                          return CreateCpuBackend(files, ComputeDType::kF32);
                        },
                    .head_dim = 16,
                    .tile_rows = 64,
                    .tolerance = 1e-4,
                    .vote_tolerance = 1e-4,
                    .bitwise = true},
        // Derived in decoder_test.cc; a vote is a sum of weights that are each
        // off by up to three times the 3% of one layer's scores.
        BackendCase{.name = "BF16",
                    .create =
                        [](const ModelFiles& files) {
                          return CreateCpuBackend(files, ComputeDType::kBF16);
                        },
                    .head_dim = 16,
                    .tile_rows = 64,
                    .tolerance = 0.03,
                    .vote_tolerance = 0.1,
                    .bitwise = true},
        // A product of e4m3 values is off by 0.037 of its size: steps of 2^-3
        // of a value, evenly spread over a binade, make 0.026 rms for each
        // side. The twelve of three layers make 0.13; twice that for attention,
        // which amplifies what reaches it through Q and K.
        BackendCase{.name = "Fp8",
                    .create =
                        [](const ModelFiles& files) {
                          return CreateCpuBackend(files, ComputeDType::kF32,
                                                  LinearPrecision::kFp8);
                        },
                    .head_dim = 16,
                    .tile_rows = 64,
                    .tolerance = 0.26,
                    .vote_tolerance = 0.78,
                    .bitwise = true},
        // Products are off by 0.037 here, too, and sums of them, scores, by as
        // much of their spread, some 4 in this sharp attention: weights then
        // are off by 0.15, which the 0.026 of V leaves as it is. Three layers
        // make 0.26. Votes as above.
        BackendCase{.name = "Fp8Attention",
                    .create = NewFp8Attention,
                    .head_dim = 64,
                    .tile_rows = 64,
                    .tolerance = 0.26,
                    .vote_tolerance = 0.78,
                    .bitwise = true,
                    .columns = false}),
    NameOfCase);

// ---------------------------------------------------------------------------
// What only this back end promises.

class CpuBackendDTypeTest : public ::testing::TestWithParam<ComputeDType> {
 protected:
  CpuBackendDTypeTest()
      : model_({.num_layers = 3}),
        backend_(NewBackend(model_.files(), GetParam())) {}

  // Bitwise.
  void ExpectSameKv(const RecordedKv& a, const RecordedKv& b, int64_t rows) {
    ASSERT_EQ(a.layers.size(), b.layers.size());
    for (size_t layer = 0; layer < a.layers.size(); ++layer) {
      EXPECT_TRUE(a.Rows(layer, rows) == b.Rows(layer, rows))
          << "layer " << layer;
    }
  }

  LoadedTinyModel model_;
  std::unique_ptr<Backend> backend_;
};

TEST_P(CpuBackendDTypeTest, DecodeStepEqualsPrefillOfOneTokenMore) {
  const std::vector<int32_t> tokens = RandomTokens(300, 320, 2);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill longer,
                                RunPrefill(*backend_, tokens));
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const RecordedPrefill shorter,
      RunPrefill(*backend_, absl::MakeConstSpan(tokens).first(299)));
  const auto decoder = DecoderOver(model_.files(), GetParam(), shorter.kv);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const absl::Span<const float> logits,
                                decoder->Step(tokens[299]));
  // The same roundings but for attention weights, which the kernel rounds to
  // the compute dtype and the decoder keeps in fp32.
  const bool is_f32 = GetParam() == ComputeDType::kF32;
  EXPECT_LT(RelativeRms(logits, longer.output.logits), is_f32 ? 1e-5 : 0.02);
}

TEST_P(CpuBackendDTypeTest, SegmentKvDependsOnNothingAfterIt) {
  // Eight segments of 256 and one of 1,024.
  const SelectorSpec selector = VerticalSlash(40, 102, 256);
  constexpr int64_t kShared = 3072;
  std::vector<int32_t> a = RandomTokens(kShared, 320, 3);
  std::vector<int32_t> ab = a;
  std::vector<int32_t> ac = a;
  const std::vector<int32_t> b = RandomTokens(300, 320, 4);
  const std::vector<int32_t> c = RandomTokens(1025, 320, 5);
  ab.insert(ab.end(), b.begin(), b.end());
  ac.insert(ac.end(), c.begin(), c.end());
  std::vector<RecordedPrefill> runs;
  for (const std::vector<int32_t>& tokens : {a, ab, ac}) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        RecordedPrefill run,
        RunPrefill(*backend_, tokens, {.selector = selector}));
    runs.push_back(std::move(run));
  }
  EXPECT_LT(runs[0].output.density, 0.9);
  ExpectSameKv(runs[0].kv, runs[1].kv, kShared);
  ExpectSameKv(runs[0].kv, runs[2].kv, kShared);
}

INSTANTIATE_TEST_SUITE_P(DTypes, CpuBackendDTypeTest,
                         ::testing::Values(ComputeDType::kF32,
                                           ComputeDType::kBF16),
                         [](const auto& info) {
                           return info.param == ComputeDType::kF32 ? "F32"
                                                                   : "BF16";
                         });

class CpuBackendViewTest : public ::testing::Test {
 protected:
  CpuBackendViewTest()
      : model_({.num_layers = 2}), backend_(NewBackend(model_.files())) {}

  std::unique_ptr<Decoder> DecoderOverView(const ViewData& view) {
    auto model = DecoderModel::Create(model_.files(), ComputeDType::kF32);
    EXPECT_THAT(model, ::overture::testing::IsOk());
    auto decoder = Decoder::Create(*model, view.plan.logical_length);
    EXPECT_THAT(decoder, ::overture::testing::IsOk());
    const KvLayout& layout = backend_->kv_layout();
    for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
      const std::byte* src = view.layers[layer].data();
      for (int32_t h = 0; h < layout.num_kv_heads; ++h) {
        const int64_t bytes = layout.HeadBytes(
            static_cast<int64_t>(view.plan.positions[layer][h].size()));
        OVERTURE_EXPECT_OK((*decoder)->AppendRows(
            layer, h, layout.dtype, absl::MakeConstSpan(src, bytes),
            absl::MakeConstSpan(src + bytes, bytes)));
        src += 2 * bytes;
      }
    }
    return *std::move(decoder);
  }

  LoadedTinyModel model_;
  std::unique_ptr<Backend> backend_;
};

TEST_F(CpuBackendViewTest, FullCapacityDecodesLikeFullKv) {
  const std::vector<int32_t> tokens = RandomTokens(200, 320, 8);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const RecordedPrefill run,
      RunPrefill(*backend_, tokens, {.view = {{.capacity = 200}}}));
  ASSERT_TRUE(run.output.view.has_value());
  EXPECT_EQ(run.output.view->TotalBytes(),
            backend_->kv_layout().TotalBytes(200));
  const auto from_view = DecoderOverView(*run.output.view);
  const auto from_kv = DecoderOver(model_.files(), ComputeDType::kF32, run.kv);
  for (const int32_t token : {5, 6, 7}) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(const absl::Span<const float> a,
                                  from_view->Step(token));
    OVERTURE_ASSERT_OK_AND_ASSIGN(const absl::Span<const float> b,
                                  from_kv->Step(token));
    EXPECT_TRUE(a == b);
  }
}

TEST(CpuBackendFactsTest, SaysWhatItComputesWith) {
  const LoadedTinyModel model({});
  const auto f32 = NewBackend(model.files());
  EXPECT_EQ(f32->numerics(), "weights=f32 compute=f32 kv=f32");
  EXPECT_EQ(f32->device_name(), "cpu");
  EXPECT_EQ(f32->kv_layout(), (KvLayout{.num_layers = 2,
                                        .num_kv_heads = 2,
                                        .head_dim = 16,
                                        .dtype = DType::kF32}));
  const auto bf16 = NewBackend(model.files(), ComputeDType::kBF16);
  EXPECT_EQ(bf16->numerics(), "weights=bf16 compute=bf16 kv=bf16");
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const auto fp8, CreateCpuBackend(model.files(), ComputeDType::kF32,
                                       LinearPrecision::kFp8));
  EXPECT_EQ(fp8->numerics(), "weights=e4m3 compute=f32 kv=f32");
  // At least the residual stream and one layer's KV, and growing.
  EXPECT_GE(f32->WorkspaceBytes(1000), 1000 * (64 * 4 + 2 * 2 * 16 * 4));
  EXPECT_LT(f32->WorkspaceBytes(1000), f32->WorkspaceBytes(2000));
  EXPECT_LT(bf16->WorkspaceBytes(1000), f32->WorkspaceBytes(1000));
}

TEST(CpuBackendFp8AttentionTest, SaysWhatItIsAndRuns) {
  const LoadedTinyModel model({.head_dim = 64});
  const auto bf16 = NewBackend(model.files(), ComputeDType::kBF16);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto fp8, NewFp8Attention(model.files()));
  EXPECT_EQ(fp8->numerics(),
            "weights=bf16 compute=bf16 kv=bf16 attention=e4m3");
  EXPECT_TRUE(bf16->attention_is_token_pure());
  EXPECT_FALSE(fp8->attention_is_token_pure());
  EXPECT_GT(fp8->WorkspaceBytes(1000), bf16->WorkspaceBytes(1000));
  const std::vector<int32_t> tokens = RandomTokens(700, 320, 5);
  const SelectorSpec columns = VerticalSlash(40, 102, 512);
  for (const absl::Status& status :
       {fp8->Supports(columns),
        RunPrefill(*fp8, tokens, {.selector = columns}).status()}) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kUnimplemented,
                                 HasSubstr("dense and a_shape")));
  }
  OVERTURE_EXPECT_OK(bf16->Supports(columns));
  EXPECT_THAT(
      CreateCpuBackend(model.files(), ComputeDType::kF32,
                       LinearPrecision::kBF16, AttentionPrecision::kFp8),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("dtype is f32")));
  EXPECT_THAT(NewFp8Attention(LoadedTinyModel({}).files()),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("the model's is 16")));
}

TEST(CpuBackendFp8AttentionTest, IsNearBf16ForEveryHeadDim) {
  // Attention is almost uniform: with scores that spread by 1, weights are off
  // by 0.036, V by 0.026, together 0.044; half as much again for chance. What
  // goes past attention dilutes it.
  constexpr double kTolerance = 0.066;
  const std::vector<int32_t> tokens = RandomTokens(700, 320, 5);
  for (const int32_t head_dim : {32, 64, 96, 128}) {
    const LoadedTinyModel model({.head_dim = head_dim, .qk_gain = 1});
    const auto bf16 = NewBackend(model.files(), ComputeDType::kBF16);
    OVERTURE_ASSERT_OK_AND_ASSIGN(const auto fp8,
                                  NewFp8Attention(model.files()));
    for (const auto kind :
         {SelectorSpec::Kind::kDense, SelectorSpec::Kind::kAShape}) {
      SCOPED_TRACE(head_dim);
      const SelectorSpec selector = {
          .kind = kind, .num_initial = 64, .num_local = 128};
      OVERTURE_ASSERT_OK_AND_ASSIGN(
          const RecordedPrefill want,
          RunPrefill(*bf16, tokens, {.selector = selector}));
      OVERTURE_ASSERT_OK_AND_ASSIGN(
          const RecordedPrefill got,
          RunPrefill(*fp8, tokens, {.selector = selector}));
      const double error = RelativeRms(got.output.logits, want.output.logits);
      EXPECT_LT(error, kTolerance);
      EXPECT_GT(error, 0.0);
    }
  }
}

TEST(CpuBackendFp8AttentionTest, WholeBlocksOfAnotherPromptGiveTheSameBits) {
  // The mean is that of the first 256 keys, scales are those of 64.
  const LoadedTinyModel model({.num_layers = 3, .head_dim = 64});
  OVERTURE_ASSERT_OK_AND_ASSIGN(const auto fp8, NewFp8Attention(model.files()));
  const std::vector<int32_t> tokens = RandomTokens(1300, 320, 6);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill whole,
                                RunPrefill(*fp8, tokens));
  for (const int64_t num_cached : {256, 1024}) {
    SCOPED_TRACE(num_cached);
    // What is stored of a prompt that shares these tokens and no more.
    std::vector<int32_t> other = RandomTokens(num_cached + 100, 320, 7);
    std::copy_n(tokens.begin(), num_cached, other.begin());
    OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill prefix,
                                  RunPrefill(*fp8, other));
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const RecordedPrefill rest,
        RunPrefill(*fp8, tokens,
                   {.prefix = &prefix.kv, .num_cached = num_cached}));
    EXPECT_EQ(rest.output.logits, whole.output.logits);
    EXPECT_TRUE(rest.kv.layers == whole.kv.layers);
  }
}

}  // namespace
}  // namespace overture::engine
