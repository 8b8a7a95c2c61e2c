#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <stop_token>
#include <vector>

#include "engine/backend.h"
#include "engine/decoder.h"
#include "gtest/gtest.h"
#include "tests/support/naive_llama.h"
#include "tests/support/prefill_harness.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::HarnessOptions;
using ::overture::testing::LoadedTinyModel;
using ::overture::testing::MaxDifference;
using ::overture::testing::NaiveForward;
using ::overture::testing::NaiveMask;
using ::overture::testing::NaivePair;
using ::overture::testing::RandomTokens;
using ::overture::testing::RecordedKv;
using ::overture::testing::RecordedPrefill;
using ::overture::testing::RecordingIo;
using ::overture::testing::RelativeRms;
using ::overture::testing::RunNaiveLlama;
using ::overture::testing::RunPrefill;
using ::overture::testing::StatusIs;
using ::overture::testing::TinyModelOptions;
using ::testing::HasSubstr;

// As in decoder_test.cc: fp32 against double on two layers, logits up to 8.
constexpr double kTolerance = 5e-4;

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

SelectorSpec VerticalSlash(int32_t vertical, int32_t slash, int64_t segment) {
  return {.kind = SelectorSpec::Kind::kVerticalSlash,
          .vertical_slash = {.vertical = vertical, .slash = slash},
          .segment_tokens = segment};
}

// ---------------------------------------------------------------------------
// Against the naive pass.

void ExpectEqualsNaive(const TinyModelOptions& options, int64_t count,
                       const SelectorSpec& selector = {},
                       const NaiveMask& mask = nullptr) {
  const LoadedTinyModel model(options);
  const std::vector<int32_t> tokens =
      RandomTokens(count, options.vocab_size, 11);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const NaiveForward naive,
                                RunNaiveLlama(model.files(), tokens, mask));
  const auto backend = NewBackend(model.files());
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const RecordedPrefill run,
      RunPrefill(*backend, tokens, {.selector = selector}));
  EXPECT_LT(MaxDifference(run.output.logits, naive.logits.back()), kTolerance);
  ASSERT_EQ(run.kv.num_rows, count);
  double worst = 0;
  for (int32_t layer = 0; layer < options.num_layers; ++layer) {
    for (int32_t h = 0; h < options.num_kv_heads; ++h) {
      for (int64_t row = 0; row < count; ++row) {
        for (int32_t i = 0; i < options.head_dim; ++i) {
          worst = std::max({worst,
                            std::abs(run.kv.At(false, layer, h, row, i) -
                                     naive.k[layer][h][row][i]),
                            std::abs(run.kv.At(true, layer, h, row, i) -
                                     naive.v[layer][h][row][i])});
        }
      }
    }
  }
  EXPECT_LT(worst, kTolerance);
}

TEST(CpuBackendTest, EqualsTheNaiveForwardPass) { ExpectEqualsNaive({}, 150); }

TEST(CpuBackendTest, RunsOneToken) { ExpectEqualsNaive({}, 1); }

TEST(CpuBackendTest, EqualsTheNaiveForwardPassWithQkvBias) {
  ExpectEqualsNaive({.architecture = "qwen2", .num_kv_heads = 1}, 65);
}

TEST(CpuBackendTest, EqualsTheNaiveForwardPassWithItsOwnHeadAndLlama3Rope) {
  TinyModelOptions options{.num_layers = 3, .tied_embeddings = false};
  options.rope_scaling = {.kind = RopeScaling::Kind::kLlama3,
                          .factor = 8,
                          .low_freq_factor = 1,
                          .high_freq_factor = 4,
                          .original_max_positions = 64};
  ExpectEqualsNaive(options, 100);
}

TEST(CpuBackendTest, EqualsTheNaiveForwardPassWithLinearRopeAndNoGroups) {
  TinyModelOptions options{.num_kv_heads = 4, .head_dim = 32};
  options.rope_scaling = {.kind = RopeScaling::Kind::kLinear, .factor = 4};
  ExpectEqualsNaive(options, 70);
}

TEST(CpuBackendTest, EqualsTheNaiveForwardPassOverSeveralChunks) {
  ExpectEqualsNaive({.num_layers = 2}, 700);  // chunks of 512 rows
}

TEST(CpuBackendTest, AShapeEqualsTheNaiveForwardPassUnderItsMask) {
  // Ragged edges come as whole tiles of 64: 64 initial keys, and for query
  // tile s the keys from the tile that holds s - 99.
  const SelectorSpec selector{
      .kind = SelectorSpec::Kind::kAShape, .num_initial = 64, .num_local = 100};
  ExpectEqualsNaive({}, 400, selector, [](const NaivePair& at) {
    const int64_t s = at.q / 64 * 64;
    return at.k < 64 || at.k >= (s - 99) / 64 * 64;
  });
}

TEST(CpuBackendTest, EveryHeadKeepsWhatItsOwnSizesSay) {
  // Heads that keep everything among A-shape heads of different sizes, so that
  // the mask is known on paper: exact initial columns, and for query tile s the
  // keys from the tile that holds s - (num_local - 1).
  const auto initial = [](int32_t layer, int32_t head) {
    return 5 + 20 * head + 3 * layer;
  };
  const auto local = [](int32_t layer, int32_t head) {
    return 1 + 64 * ((head + 2 * layer) % 3);
  };
  const auto is_dense = [](int32_t layer, int32_t head) {
    return (layer + head) % 4 == 3;
  };
  const TinyModelOptions options{.num_layers = 3};
  HeadSizes::Table table(options.num_layers);
  for (int32_t layer = 0; layer < options.num_layers; ++layer) {
    for (int32_t head = 0; head < options.num_q_heads; ++head) {
      table[layer].push_back(
          is_dense(layer, head)
              ? kernels::VerticalSlashSize{.vertical = 1 << 20,
                                           .slash = 1 << 20}
              : kernels::StaticSize(initial(layer, head), local(layer, head)));
    }
  }
  SelectorSpec selector = VerticalSlash(1, 1, 256);
  OVERTURE_ASSERT_OK_AND_ASSIGN(selector.head_sizes, HeadSizes::Create(table));
  ExpectEqualsNaive(options, 400, selector, [&](const NaivePair& at) {
    const int64_t s = at.q / 64 * 64;
    const int64_t first =
        std::max<int64_t>(0, s - local(at.layer, at.q_head) + 1) / 64 * 64;
    return is_dense(at.layer, at.q_head) ||
           at.k < initial(at.layer, at.q_head) || at.k >= first;
  });
}

TEST(CpuBackendTest, SizesOfAnotherModelAreRefused) {
  const LoadedTinyModel model({.num_layers = 2});
  SelectorSpec selector = VerticalSlash(1, 1, 256);
  OVERTURE_ASSERT_OK_AND_ASSIGN(selector.head_sizes,
                                HeadSizes::Create({{{}, {}, {}, {}}}));
  EXPECT_THAT(
      RunPrefill(*NewBackend(model.files()), {1, 2, 3}, {.selector = selector}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("for 1 layers of 4 heads, the model has 2 of 4")));
}

TEST(CpuBackendTest, Bf16StaysWithinItsRounding) {
  // Derived in decoder_test.cc.
  const LoadedTinyModel model({});
  const std::vector<int32_t> tokens = RandomTokens(130, 320, 5);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const NaiveForward naive,
                                RunNaiveLlama(model.files(), tokens));
  const auto backend = NewBackend(model.files(), ComputeDType::kBF16);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill run,
                                RunPrefill(*backend, tokens));
  const double error = RelativeRms(run.output.logits, naive.logits.back());
  EXPECT_LT(error, 0.03);
  EXPECT_GT(error, 1e-4);
  EXPECT_EQ(run.kv.layout.dtype, DType::kBF16);
}

// ---------------------------------------------------------------------------
// Prefixes, decoding, purity; both dtypes.

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

TEST_P(CpuBackendDTypeTest, PrefixAndRestEqualOneGoBitForBit) {
  const std::vector<int32_t> tokens = RandomTokens(777, 320, 1);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill whole,
                                RunPrefill(*backend_, tokens));
  for (const int64_t num_cached : {1, 64, 256, 500, 776}) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const RecordedPrefill rest,
        RunPrefill(*backend_, tokens,
                   {.prefix = &whole.kv, .num_cached = num_cached}));
    EXPECT_EQ(rest.output.logits, whole.output.logits) << num_cached;
    ExpectSameKv(rest.kv, whole.kv, 777);
  }
}

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
  const SelectorSpec selector = VerticalSlash(40, 102, 512);
  std::vector<int32_t> a = RandomTokens(1024, 320, 3);
  std::vector<int32_t> ab = a;
  std::vector<int32_t> ac = a;
  const std::vector<int32_t> b = RandomTokens(300, 320, 4);
  const std::vector<int32_t> c = RandomTokens(513, 320, 5);
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
  ExpectSameKv(runs[0].kv, runs[1].kv, 1024);
  ExpectSameKv(runs[0].kv, runs[2].kv, 1024);
}

TEST_P(CpuBackendDTypeTest, WholeSegmentsFromTheCacheChangeNothing) {
  const SelectorSpec selector = VerticalSlash(40, 102, 512);
  const std::vector<int32_t> tokens = RandomTokens(1300, 320, 6);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const RecordedPrefill whole,
      RunPrefill(*backend_, tokens, {.selector = selector}));
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const RecordedPrefill rest,
      RunPrefill(
          *backend_, tokens,
          {.selector = selector, .prefix = &whole.kv, .num_cached = 1024}));
  EXPECT_EQ(rest.output.logits, whole.output.logits);
  ExpectSameKv(rest.kv, whole.kv, 1300);
}

TEST_P(CpuBackendDTypeTest, VerticalSlashWithHugeBudgetsIsDense) {
  const std::vector<int32_t> tokens = RandomTokens(900, 320, 7);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill dense,
                                RunPrefill(*backend_, tokens));
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const RecordedPrefill sparse,
      RunPrefill(*backend_, tokens,
                 {.selector = VerticalSlash(1 << 20, 1 << 20, 512)}));
  // The same keys, perhaps in another order.
  const bool is_f32 = GetParam() == ComputeDType::kF32;
  EXPECT_LT(RelativeRms(sparse.output.logits, dense.output.logits),
            is_f32 ? 1e-5 : 0.02);
  EXPECT_NEAR(sparse.output.density, 1.0, 0.01);
  EXPECT_NEAR(dense.output.density, 1.0, 0.01);
}

INSTANTIATE_TEST_SUITE_P(DTypes, CpuBackendDTypeTest,
                         ::testing::Values(ComputeDType::kF32,
                                           ComputeDType::kBF16),
                         [](const auto& info) {
                           return info.param == ComputeDType::kF32 ? "F32"
                                                                   : "BF16";
                         });

// ---------------------------------------------------------------------------
// Views.

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

TEST_F(CpuBackendViewTest, KeepsTheWindowAndTheRowsOfItsPositions) {
  const std::vector<int32_t> tokens = RandomTokens(600, 320, 9);
  // A window of 100 is wider than the probe; of 32 it is voted in the same
  // pass when a selector probes. All cross the border at 512 but the last.
  for (const int32_t window : {100, 32}) {
    for (const bool sparse : {false, true}) {
      HarnessOptions options{.view = {{.window = window, .capacity = 150}}};
      if (sparse) options.selector = VerticalSlash(60, 200, 512);
      OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill run,
                                    RunPrefill(*backend_, tokens, options));
      const ViewData& view = *run.output.view;
      EXPECT_EQ(view.plan.logical_length, 600);
      for (int32_t layer = 0; layer < 2; ++layer) {
        const auto* row =
            reinterpret_cast<const float*>(view.layers[layer].data());
        for (int32_t h = 0; h < 2; ++h) {
          const std::vector<int32_t>& kept = view.plan.positions[layer][h];
          ASSERT_EQ(kept.size(), 150u);
          EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
          for (int32_t i = 0; i < window; ++i) {
            EXPECT_EQ(kept[150 - window + i], 600 - window + i);
          }
          for (const bool is_v : {false, true}) {
            for (const int32_t position : kept) {
              EXPECT_EQ(row[3], run.kv.At(is_v, layer, h, position, 3));
              row += 16;
            }
          }
        }
      }
    }
  }
}

TEST_F(CpuBackendViewTest, KeepsWhatTheWindowAttendsTo) {
  constexpr int32_t kWindow = 32;
  constexpr int32_t kCapacity = 60;
  constexpr int64_t kCount = 160;
  const std::vector<int32_t> tokens = RandomTokens(kCount, 320, 10);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const RecordedPrefill run,
      RunPrefill(*backend_, tokens,
                 {.view = {{.window = kWindow,
                            .capacity = kCapacity,
                            .pooling = compress::Pooling::kMax,
                            .pooling_width = 1}}}));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const NaiveForward naive,
                                RunNaiveLlama(model_.files(), tokens));
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (int32_t h = 0; h < 2; ++h) {
      std::vector<double> votes(kCount);
      for (int32_t q_head = 2 * h; q_head < 2 * h + 2; ++q_head) {
        for (int64_t q = kCount - kWindow; q < kCount; ++q) {
          std::vector<double> weights;
          double sum = 0;
          for (int64_t k = 0; k <= q; ++k) {
            double dot = 0;
            for (int i = 0; i < 16; ++i) {
              dot += naive.q[layer][q_head][q][i] * naive.k[layer][h][k][i];
            }
            weights.push_back(std::exp(dot / 4));  // sqrt(head_dim)
            sum += weights.back();
          }
          for (int64_t k = 0; k <= q; ++k) votes[k] += weights[k] / sum / 2;
        }
      }
      std::vector<double> old(votes.begin(), votes.end() - kWindow);
      std::sort(old.rbegin(), old.rend());
      const double least = old[kCapacity - kWindow - 1];
      const std::vector<int32_t>& kept =
          run.output.view->plan.positions[layer][h];
      ASSERT_EQ(kept.size(), static_cast<size_t>(kCapacity));
      for (int32_t i = 0; i < kCapacity - kWindow; ++i) {
        // fp32 may swap two votes that are this close.
        EXPECT_GE(votes[kept[i]], least * (1 - 1e-4)) << kept[i];
      }
    }
  }
}

TEST_F(CpuBackendViewTest, WindowMustBeComputedAnew) {
  const std::vector<int32_t> tokens = RandomTokens(100, 320, 12);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill whole,
                                RunPrefill(*backend_, tokens));
  EXPECT_THAT(RunPrefill(*backend_, tokens,
                         {.view = {{.window = 32, .capacity = 64}},
                          .prefix = &whole.kv,
                          .num_cached = 80}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("view.window is 32, only 20")));
}

// ---------------------------------------------------------------------------
// Stopping and refusing.

TEST(CpuBackendStopTest, NoLayerFinishesAfterTheOneThatAskedToStop) {
  const LoadedTinyModel model({.num_layers = 6});
  const auto backend = NewBackend(model.files());
  const std::vector<int32_t> tokens = RandomTokens(100, 320, 13);
  for (const int32_t stop_in : {0, 3}) {
    std::stop_source stop;
    int32_t last = -1;
    RecordingIo io(backend->kv_layout(), nullptr);
    io.on_layer = [&](int32_t layer) {
      last = layer;
      if (layer == stop_in) stop.request_stop();
    };
    EXPECT_THAT(backend->Prefill(
                    {.tokens = tokens, .io = &io, .stop = stop.get_token()}),
                StatusIs(absl::StatusCode::kCancelled, HasSubstr("layer")));
    EXPECT_EQ(last, stop_in);
  }
}

TEST(CpuBackendStopTest, PrefixErrorsComeBackAsTheyAre) {
  class BrokenIo final : public PrefillIo {
   public:
    absl::Status ReadPrefix(int32_t layer, const MutableLayerKvView&) override {
      return layer == 1 ? absl::DataLossError("broken") : absl::OkStatus();
    }
    void LayerDone(int32_t layer, const LayerKvView&) override { last = layer; }
    int32_t last = -1;
  };
  const LoadedTinyModel model({});
  const auto backend = NewBackend(model.files());
  const std::vector<int32_t> tokens = RandomTokens(100, 320, 14);
  BrokenIo io;
  EXPECT_THAT(backend->Prefill({.tokens = tokens, .num_cached = 64, .io = &io}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("broken")));
  EXPECT_EQ(io.last, 0);
}

TEST(CpuBackendStopTest, RefusesTokensOutsideTheVocabulary) {
  const LoadedTinyModel model({});
  const auto backend = NewBackend(model.files());
  EXPECT_THAT(RunPrefill(*backend, std::vector<int32_t>{1, 2, 320}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("tokens[2] is 320")));
  EXPECT_THAT(RunPrefill(*backend, std::vector<int32_t>{}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

// The same model with a NaN in its last norm.
class NanFiles final : public ModelFiles {
 public:
  explicit NanFiles(const ModelFiles& files) : files_(files) {}
  const ModelConfig& config() const override { return files_.config(); }
  const Sha256Digest& weights_digest() const override {
    return files_.weights_digest();
  }
  absl::Status ReadTensor(TensorRole role, int32_t layer,
                          absl::Span<float> dst) const override {
    const absl::Status status = files_.ReadTensor(role, layer, dst);
    if (role == TensorRole::kOutputNorm) dst[3] = NAN;
    return status;
  }
  absl::Status ReadRows(TensorRole role, int32_t layer, int64_t row_begin,
                        absl::Span<float> dst) const override {
    return files_.ReadRows(role, layer, row_begin, dst);
  }
  absl::StatusOr<Shape> TensorShape(TensorRole role,
                                    int32_t layer) const override {
    return files_.TensorShape(role, layer);
  }

 private:
  const ModelFiles& files_;
};

TEST(CpuBackendStopTest, LogitsThatAreNotFiniteAreNoAnswer) {
  const LoadedTinyModel model({});
  const auto backend = NewBackend(NanFiles(model.files()));
  EXPECT_THAT(RunPrefill(*backend, std::vector<int32_t>{1, 2, 3}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("not finite")));
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
  // At least the residual stream and one layer's KV, and growing.
  EXPECT_GE(f32->WorkspaceBytes(1000), 1000 * (64 * 4 + 2 * 2 * 16 * 4));
  EXPECT_LT(f32->WorkspaceBytes(1000), f32->WorkspaceBytes(2000));
  EXPECT_LT(bf16->WorkspaceBytes(1000), f32->WorkspaceBytes(1000));
}

}  // namespace
}  // namespace overture::engine
