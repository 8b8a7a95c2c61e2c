#include "tests/engine/backend_suite.h"

#include <algorithm>
#include <cmath>
#include <stop_token>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "tests/support/naive_llama.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {

using ::overture::testing::HarnessOptions;
using ::overture::testing::IsOk;
using ::overture::testing::LoadedTinyModel;
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

namespace {

// [kv_head][row][head_dim] of K or V of one layer.
std::vector<float> Values(const RecordedKv& kv, bool is_v, int32_t layer) {
  std::vector<float> values;
  for (int32_t h = 0; h < kv.layout.num_kv_heads; ++h) {
    for (int64_t row = 0; row < kv.num_rows; ++row) {
      for (int32_t i = 0; i < kv.layout.head_dim; ++i) {
        values.push_back(kv.At(is_v, layer, h, row, i));
      }
    }
  }
  return values;
}

std::vector<double> Values(const NaiveForward& naive, bool is_v,
                           int32_t layer) {
  std::vector<double> values;
  for (const auto& head : (is_v ? naive.v : naive.k)[layer]) {
    for (const auto& row : head) {
      values.insert(values.end(), row.begin(), row.end());
    }
  }
  return values;
}

// The share of causal pairs that `mask` leaves, over all rows but in the last
// layer, where one row is all that is asked for.
double DensityUnder(const NaiveMask& mask, const TinyModelOptions& options,
                    int64_t count) {
  int64_t kept = 0;
  int64_t causal = 0;
  for (int32_t layer = 0; layer < options.num_layers; ++layer) {
    const bool is_last = layer + 1 == options.num_layers;
    for (int32_t head = 0; head < options.num_q_heads; ++head) {
      for (int64_t q = is_last ? count - 1 : 0; q < count; ++q) {
        causal += q + 1;
        for (int64_t k = 0; k <= q; ++k) {
          kept += mask == nullptr || mask({layer, head, q, k});
        }
      }
    }
  }
  return static_cast<double>(kept) / static_cast<double>(causal);
}

}  // namespace

SelectorSpec VerticalSlash(int32_t vertical, int32_t slash, int64_t segment) {
  return {.kind = SelectorSpec::Kind::kDynamic,
          .vertical_slash = {.vertical = vertical, .slash = slash},
          .segment_tokens = segment};
}

SelectorSpec Hybrid(int32_t vertical, int32_t slash, float threshold,
                    int64_t segment) {
  SelectorSpec spec = VerticalSlash(vertical, slash, segment);
  spec.vertical_slash.blocks = {.threshold = threshold, .correct_means = true};
  return spec;
}

TinyModelOptions BackendSuite::Tiny(TinyModelOptions options) {
  options.head_dim = GetParam().head_dim;
  return options;
}

std::unique_ptr<Backend> BackendSuite::NewBackend(const ModelFiles& files) {
  auto backend = GetParam().create(files);
  EXPECT_THAT(backend, IsOk());
  return *std::move(backend);
}

bool BackendSuite::Runs(const SelectorSpec& selector) {
  return GetParam().columns || selector.kind != SelectorSpec::Kind::kDynamic;
}

void BackendSuite::ExpectEqualsNaive(const TinyModelOptions& options,
                                     int64_t count,
                                     const SelectorSpec& selector,
                                     const NaiveMask& mask) {
  SCOPED_TRACE(count);
  const LoadedTinyModel model(Tiny(options));
  const std::vector<int32_t> tokens =
      RandomTokens(count, options.vocab_size, 11);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const NaiveForward naive,
                                RunNaiveLlama(model.files(), tokens, mask));
  const auto backend = NewBackend(model.files());
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const RecordedPrefill run,
      RunPrefill(*backend, tokens, {.selector = selector}));
  const double tolerance = GetParam().tolerance;
  EXPECT_LT(RelativeRms(run.output.logits, naive.logits.back()), tolerance);
  EXPECT_NEAR(run.output.density, DensityUnder(mask, options, count), 1e-9);
  ASSERT_EQ(run.kv.num_rows, count);
  for (int32_t layer = 0; layer < options.num_layers; ++layer) {
    for (const bool is_v : {false, true}) {
      EXPECT_LT(
          RelativeRms(Values(run.kv, is_v, layer), Values(naive, is_v, layer)),
          tolerance)
          << (is_v ? "V" : "K") << " of layer " << layer;
    }
  }
}

void BackendSuite::ExpectSame(const RecordedPrefill& got,
                              const RecordedPrefill& want) {
  ASSERT_EQ(got.kv.layout, want.kv.layout);
  ASSERT_EQ(got.kv.num_rows, want.kv.num_rows);
  if (GetParam().bitwise) {
    EXPECT_EQ(got.output.logits, want.output.logits);
    EXPECT_TRUE(got.kv.layers == want.kv.layers);
    return;
  }
  const double tolerance = GetParam().tolerance;
  EXPECT_LT(RelativeRms(got.output.logits, want.output.logits), tolerance);
  for (int32_t layer = 0; layer < want.kv.layout.num_layers; ++layer) {
    for (const bool is_v : {false, true}) {
      EXPECT_LT(RelativeRms(Values(got.kv, is_v, layer),
                            Values(want.kv, is_v, layer)),
                tolerance)
          << (is_v ? "V" : "K") << " of layer " << layer;
    }
  }
}

// ---------------------------------------------------------------------------
// Against the naive pass.

TEST_P(BackendSuite, EqualsTheNaiveForwardPass) {
  // One token, a ragged and a whole tile, and several of everything.
  for (const int64_t count : {1, 64, 150, 700}) ExpectEqualsNaive({}, count);
}

TEST_P(BackendSuite, EqualsTheNaiveForwardPassWithQkvBias) {
  ExpectEqualsNaive({.architecture = "qwen2", .num_kv_heads = 1}, 65);
}

TEST_P(BackendSuite, EqualsTheNaiveForwardPassWithItsOwnHeadAndLlama3Rope) {
  TinyModelOptions options{.num_layers = 3, .tied_embeddings = false};
  options.rope_scaling = {.kind = RopeScaling::Kind::kLlama3,
                          .factor = 8,
                          .low_freq_factor = 1,
                          .high_freq_factor = 4,
                          .original_max_positions = 64};
  ExpectEqualsNaive(options, 100);
}

TEST_P(BackendSuite, EqualsTheNaiveForwardPassWithLinearRopeAndNoGroups) {
  TinyModelOptions options{.num_kv_heads = 4};
  options.rope_scaling = {.kind = RopeScaling::Kind::kLinear, .factor = 4};
  ExpectEqualsNaive(options, 70);
}

TEST_P(BackendSuite, AShapeEqualsTheNaiveForwardPassUnderItsMask) {
  // Ragged edges come as whole tiles: 64 initial keys, and for the query tile
  // at s the keys from the tile of 64 that holds s - 99.
  const SelectorSpec selector{
      .kind = SelectorSpec::Kind::kAShape, .num_initial = 64, .num_local = 100};
  const int64_t tile_rows = GetParam().tile_rows;
  ExpectEqualsNaive({}, 500, selector, [=](const NaivePair& at) {
    const int64_t s = at.q / tile_rows * tile_rows;
    return at.k < 64 || at.k >= (s - 99) / 64 * 64;
  });
}

TEST_P(BackendSuite, EveryHeadKeepsWhatItsOwnSizesSay) {
  if (!GetParam().columns) GTEST_SKIP() << "no vertical-slash";
  // Heads that keep everything among A-shape heads of different sizes, so that
  // the mask is known on paper: exact initial columns, and for the query tile
  // at s the keys from the tile of 64 that holds s - (num_local - 1).
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
  const int64_t tile_rows = GetParam().tile_rows;
  ExpectEqualsNaive(options, 500, selector, [&](const NaivePair& at) {
    const int64_t s = at.q / tile_rows * tile_rows;
    const int64_t first =
        std::max<int64_t>(0, s - local(at.layer, at.q_head) + 1) / 64 * 64;
    return is_dense(at.layer, at.q_head) ||
           at.k < initial(at.layer, at.q_head) || at.k >= first;
  });
}

// ---------------------------------------------------------------------------
// Against itself.

TEST_P(BackendSuite, EqualPromptsGiveEqualBits) {
  const LoadedTinyModel model(Tiny());
  const auto backend = NewBackend(model.files());
  const std::vector<int32_t> tokens = RandomTokens(1000, 320, 9);
  for (const SelectorSpec& selector :
       {SelectorSpec(), VerticalSlash(40, 102, 512),
        Hybrid(40, 102, 0.5f, 512)}) {
    if (!Runs(selector)) continue;
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const RecordedPrefill first,
        RunPrefill(*backend, tokens, {.selector = selector}));
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const RecordedPrefill second,
        RunPrefill(*backend, tokens, {.selector = selector}));
    EXPECT_EQ(first.output.logits, second.output.logits);
    EXPECT_TRUE(first.kv.layers == second.kv.layers);
  }
}

TEST_P(BackendSuite, APrefixAndTheRestGiveWhatOneGoGives) {
  const LoadedTinyModel model(Tiny({.num_layers = 3}));
  const auto backend = NewBackend(model.files());
  const std::vector<int32_t> tokens = RandomTokens(1300, 320, 6);
  struct Part {
    SelectorSpec selector;
    std::vector<int64_t> num_cached;  // whole segments, if there are any
  };
  // Where bits differ a choice may flip, unless nearly everything is chosen.
  const int32_t vertical = GetParam().bitwise ? 40 : 1000;
  const int32_t slash = GetParam().bitwise ? 102 : 1000;
  const float threshold = GetParam().bitwise ? 0.9f : 1e-6f;
  for (const auto& [selector, counts] :
       {Part{{}, {1, 64, 500, 1024, 1299}},
        Part{VerticalSlash(vertical, slash, 512), {512, 1024}},
        Part{Hybrid(vertical, slash, threshold, 512), {512, 1024}}}) {
    if (!Runs(selector)) continue;
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const RecordedPrefill whole,
        RunPrefill(*backend, tokens, {.selector = selector}));
    for (const int64_t num_cached : counts) {
      SCOPED_TRACE(num_cached);
      OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill rest,
                                    RunPrefill(*backend, tokens,
                                               {.selector = selector,
                                                .prefix = &whole.kv,
                                                .num_cached = num_cached}));
      ExpectSame(rest, whole);
      for (int32_t layer = 0; layer < 3; ++layer) {
        EXPECT_TRUE(rest.kv.Rows(layer, num_cached) ==
                    whole.kv.Rows(layer, num_cached));
      }
    }
  }
}

TEST_P(BackendSuite, VerticalSlashWithHugeBudgetsIsDense) {
  if (!GetParam().columns) GTEST_SKIP() << "no vertical-slash";
  const LoadedTinyModel model(Tiny());
  const auto backend = NewBackend(model.files());
  const std::vector<int32_t> tokens = RandomTokens(2600, 320, 7);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill dense,
                                RunPrefill(*backend, tokens));
  // Segments of 256 and 512 and a part of one of 1,024.
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const RecordedPrefill sparse,
      RunPrefill(*backend, tokens,
                 {.selector = VerticalSlash(1 << 20, 1 << 20, 256)}));
  // The same keys, perhaps in another order.
  EXPECT_LT(RelativeRms(sparse.output.logits, dense.output.logits),
            GetParam().tolerance);
  EXPECT_NEAR(sparse.output.density, 1.0, 0.01);
  EXPECT_NEAR(dense.output.density, 1.0, 0.01);
}

TEST_P(BackendSuite, KeepingEveryBlockIsDense) {
  SelectorSpec selector = Hybrid(1, 1, 1e-30f, 256);
  // Little else but each row's own key.
  const kernels::BlockRule every = selector.vertical_slash.blocks;
  selector.vertical_slash = kernels::StaticSize(1, 1);
  selector.vertical_slash.blocks = every;
  if (!Runs(selector)) GTEST_SKIP() << "no blocks";
  const LoadedTinyModel model(Tiny());
  const auto backend = NewBackend(model.files());
  const std::vector<int32_t> tokens = RandomTokens(1500, 320, 7);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill dense,
                                RunPrefill(*backend, tokens));
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const RecordedPrefill blocks,
      RunPrefill(*backend, tokens, {.selector = selector}));
  // The same keys, perhaps in another order.
  EXPECT_LT(RelativeRms(blocks.output.logits, dense.output.logits),
            GetParam().tolerance);
  EXPECT_NEAR(blocks.output.density, 1.0, 1e-9);

  // The best alone are fewer.
  selector.vertical_slash.blocks = {.count = 2};
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const RecordedPrefill best,
      RunPrefill(*backend, tokens, {.selector = selector}));
  EXPECT_LT(best.output.density, 0.6);
}

TEST_P(BackendSuite, SmallBudgetsComputeLess) {
  if (!GetParam().columns) GTEST_SKIP() << "no vertical-slash";
  const LoadedTinyModel model(Tiny({.qk_gain = 1}));
  const auto backend = NewBackend(model.files());
  const std::vector<int32_t> tokens = RandomTokens(4000, 320, 7);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const RecordedPrefill sparse,
      RunPrefill(*backend, tokens, {.selector = VerticalSlash(40, 102, 2048)}));
  EXPECT_LT(sparse.output.density, 0.5);
  EXPECT_GT(sparse.output.density, 0.0);
  // The last layer computes one row, next to nothing beside the first.
  ASSERT_EQ(sparse.output.layer_density.size(), 2);
  EXPECT_NEAR(sparse.output.layer_density[0], sparse.output.density, 1e-3);
  EXPECT_GT(sparse.output.layer_density[1], 0.0);
}

// ---------------------------------------------------------------------------
// Views.

TEST_P(BackendSuite, ViewsKeepTheWindowAndTheRowsOfTheirPositions) {
  const LoadedTinyModel model(Tiny());
  const auto backend = NewBackend(model.files());
  const std::vector<int32_t> tokens = RandomTokens(600, 320, 9);
  const KvLayout& layout = backend->kv_layout();
  const int64_t row_bytes = layout.HeadBytes(1);
  // A window of 100 is wider than the probe; of 32 it is voted in the same
  // pass when a selector probes. All cross the border at 512 but the last.
  for (const int32_t window : {100, 32}) {
    for (const bool sparse : {false, true}) {
      HarnessOptions options{.view = {{.window = window, .capacity = 150}}};
      if (sparse) options.selector = VerticalSlash(60, 200, 512);
      if (!Runs(options.selector)) continue;
      OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill run,
                                    RunPrefill(*backend, tokens, options));
      ASSERT_TRUE(run.output.view.has_value());
      const ViewData& view = *run.output.view;
      EXPECT_EQ(view.plan.logical_length, 600);
      ASSERT_EQ(view.layers.size(), 2u);
      for (int32_t layer = 0; layer < 2; ++layer) {
        // [K, V][kv_head][row]
        const std::vector<std::byte> all = run.kv.Rows(layer, 600);
        const std::byte* row = view.layers[layer].data();
        for (int32_t h = 0; h < 2; ++h) {
          const std::vector<int32_t>& kept = view.plan.positions[layer][h];
          ASSERT_EQ(kept.size(), 150u);
          EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
          for (int32_t i = 0; i < window; ++i) {
            ASSERT_EQ(kept[150 - window + i], 600 - window + i);
          }
          for (const int32_t is_v : {0, 1}) {
            for (const int32_t position : kept) {
              const std::byte* want =
                  all.data() + ((is_v * 2 + h) * 600 + position) * row_bytes;
              ASSERT_TRUE(std::equal(row, row + row_bytes, want)) << position;
              row += row_bytes;
            }
          }
        }
      }
    }
  }
}

TEST_P(BackendSuite, ViewsKeepWhatTheWindowAttendsTo) {
  constexpr int32_t kWindow = 32;
  constexpr int32_t kCapacity = 60;
  constexpr int64_t kCount = 160;
  const LoadedTinyModel model(Tiny());
  const auto backend = NewBackend(model.files());
  const std::vector<int32_t> tokens = RandomTokens(kCount, 320, 10);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const RecordedPrefill run,
      RunPrefill(*backend, tokens,
                 {.view = {{.window = kWindow,
                            .capacity = kCapacity,
                            .pooling = compress::Pooling::kMax,
                            .pooling_width = 1}}}));
  ASSERT_TRUE(run.output.view.has_value());
  OVERTURE_ASSERT_OK_AND_ASSIGN(const NaiveForward naive,
                                RunNaiveLlama(model.files(), tokens));
  const double root = std::sqrt(GetParam().head_dim);
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (int32_t h = 0; h < 2; ++h) {
      std::vector<double> votes(kCount);
      for (int32_t q_head = 2 * h; q_head < 2 * h + 2; ++q_head) {
        for (int64_t q = kCount - kWindow; q < kCount; ++q) {
          std::vector<double> weights;
          double sum = 0;
          for (int64_t k = 0; k <= q; ++k) {
            double dot = 0;
            for (int32_t i = 0; i < GetParam().head_dim; ++i) {
              dot += naive.q[layer][q_head][q][i] * naive.k[layer][h][k][i];
            }
            weights.push_back(std::exp(dot / root));
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
        // Two votes that are this close may swap.
        EXPECT_GE(votes[kept[i]], least * (1 - GetParam().vote_tolerance))
            << kept[i];
      }
    }
  }
}

TEST_P(BackendSuite, AViewsWindowMustBeComputedAnew) {
  const LoadedTinyModel model(Tiny());
  const auto backend = NewBackend(model.files());
  const std::vector<int32_t> tokens = RandomTokens(100, 320, 12);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill whole,
                                RunPrefill(*backend, tokens));
  EXPECT_THAT(RunPrefill(*backend, tokens,
                         {.view = {{.window = 32, .capacity = 64}},
                          .prefix = &whole.kv,
                          .num_cached = 80}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("view.window is 32, only 20")));
}

// ---------------------------------------------------------------------------
// Stopping and refusing.

TEST_P(BackendSuite, NoLayerFinishesAfterTheOneThatAskedToStop) {
  const LoadedTinyModel model(Tiny({.num_layers = 6}));
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
  // The back end serves on.
  OVERTURE_EXPECT_OK(RunPrefill(*backend, tokens).status());
}

TEST_P(BackendSuite, PrefixErrorsComeBackAsTheyAre) {
  class BrokenIo final : public PrefillIo {
   public:
    absl::Status ReadPrefix(int32_t layer, const MutableLayerKvView&) override {
      return layer == 1 ? absl::DataLossError("broken") : absl::OkStatus();
    }
    void LayerDone(int32_t layer, const LayerKvView&) override { last = layer; }
    int32_t last = -1;
  };
  const LoadedTinyModel model(Tiny());
  const auto backend = NewBackend(model.files());
  const std::vector<int32_t> tokens = RandomTokens(100, 320, 14);
  BrokenIo io;
  EXPECT_THAT(backend->Prefill({.tokens = tokens, .num_cached = 64, .io = &io}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("broken")));
  EXPECT_LT(io.last, 1);
}

TEST_P(BackendSuite, RefusesTokensOutsideTheVocabulary) {
  const LoadedTinyModel model(Tiny());
  const auto backend = NewBackend(model.files());
  EXPECT_THAT(RunPrefill(*backend, std::vector<int32_t>{1, 2, 320}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("tokens[2] is 320")));
  EXPECT_THAT(RunPrefill(*backend, std::vector<int32_t>{}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST_P(BackendSuite, RefusesSizesOfAnotherModel) {
  const LoadedTinyModel model(Tiny());
  const auto backend = NewBackend(model.files());
  SelectorSpec selector = VerticalSlash(1, 1, 256);
  OVERTURE_ASSERT_OK_AND_ASSIGN(selector.head_sizes,
                                HeadSizes::Create({{{}, {}, {}, {}}}));
  EXPECT_THAT(
      RunPrefill(*backend, std::vector<int32_t>{1, 2, 3},
                 {.selector = selector}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("for 1 layers of 4 heads, the model has 2 of 4")));
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

TEST_P(BackendSuite, LogitsThatAreNotFiniteAreNoAnswer) {
  const LoadedTinyModel model(Tiny());
  const auto backend = NewBackend(NanFiles(model.files()));
  EXPECT_THAT(RunPrefill(*backend, std::vector<int32_t>{1, 2, 3}),
              StatusIs(absl::StatusCode::kInternal, HasSubstr("not finite")));
}

}  // namespace overture::engine
