#include "engine/head_search.h"

#include <cmath>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int32_t kDim = 16;
constexpr int64_t kColumn = 40;     // behind the forced ones
constexpr int64_t kDistance = 500;  // behind the forced ones

// One layer of three query heads over one KV head, written by hand: head 0
// looks at key kColumn, head 1 kDistance back, head 2 at itself. Below 600 all
// values are the same, so that rows which have no such key miss nothing.
class HandMadeLayer {
 public:
  explicit HandMadeLayer(int64_t rows) : rows_(rows) {
    config_.num_layers = 1;
    config_.num_q_heads = 3;
    config_.num_kv_heads = 1;
    config_.head_dim = kDim;
    layout_ = {.num_layers = 1,
               .num_kv_heads = 1,
               .head_dim = kDim,
               .dtype = DType::kF32};
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    for (int64_t c = 0; c < rows; ++c) {
      for (int32_t j = 0; j < kDim; ++j) {
        k_.push_back(Key(c, j));
        v_.push_back(c < 600 ? 1.0f : normal(rng));
      }
    }
  }

  const ModelConfig& config() const { return config_; }
  const KvLayout& layout() const { return layout_; }

  void Show(RowObserver* observer) const {
    std::vector<float> q;
    for (const int64_t row : observer->rows()) {
      for (int32_t head = 0; head < 3; ++head) {
        for (int32_t j = 0; j < kDim; ++j) q.push_back(Query(row, head, j));
      }
    }
    observer->LayerObserved(0,
                            {.positions = observer->rows(),
                             .q = reinterpret_cast<const std::byte*>(q.data())},
                            {.k = reinterpret_cast<const std::byte*>(k_.data()),
                             .v = reinterpret_cast<const std::byte*>(v_.data()),
                             .num_rows = rows_,
                             .head_stride_bytes = rows_ * kDim * 4});
  }

 private:
  // Elements 0..5 say where a key stands, three angles that agree nowhere else
  // below 2,010; element 6 marks the column.
  static float Place(int64_t position, int32_t j) {
    constexpr double kPeriods[] = {5, 67, 6007};
    const double angle =
        2 * M_PI * static_cast<double>(position) / kPeriods[j / 2];
    return static_cast<float>(j % 2 == 0 ? std::cos(angle) : std::sin(angle));
  }
  static float Key(int64_t c, int32_t j) {
    if (j < 6) return Place(c, j);
    return j == 6 && c == kColumn ? 1.0f : 0.0f;
  }
  // Logits of 1,000 and more times the cosine: neighbours are e^-60 below.
  static float Query(int64_t row, int32_t head, int32_t j) {
    if (head == 0) return j == 6 ? 4000.0f : 0.0f;
    if (j >= 6) return 0;
    return 4000.0f * Place(head == 1 ? row - kDistance : row, j);
  }

  const int64_t rows_;
  ModelConfig config_;
  KvLayout layout_;
  std::vector<float> k_;
  std::vector<float> v_;
};

HeadSearch::Options SearchOptions() {
  return {.candidates = {kernels::StaticSize(0, 128),
                         {.vertical = 100, .slash = 100},
                         {.vertical = 30, .slash = 200},
                         {.vertical = 6000, .slash = 6000}},
          .rows = 32,
          .segments = SegmentRule::Uniform(16384)};
}

TEST(HeadSearch, FindsTheCheapestSizeThatHoldsWhatEachHeadLooksAt) {
  const int64_t rows = 6000;
  const HandMadeLayer layer(rows);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const auto search,
      HeadSearch::Create(layer.config(), layer.layout(), SearchOptions()));
  RowObserver* observer = search->BeginSample(rows);
  EXPECT_THAT(search->status(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         HasSubstr("0 of 1 layers")));
  layer.Show(observer);
  ASSERT_THAT(search->status(), IsOk());
  std::vector<std::vector<CandidateScore>> scores;
  for (int32_t head = 0; head < 3; ++head) {
    scores.push_back(search->Scores(0, head));
    ASSERT_EQ(scores.back().size(), 4);
    // All of the keys: what dense attention has.
    EXPECT_NEAR(scores.back()[3].recall, 1, 1e-3);
    // Logits of 12,000 are rounded to 2^-24 of themselves, and so are weights.
    EXPECT_LT(scores.back()[3].error, 1e-6);
    EXPECT_NEAR(scores.back()[3].density, 1, 1e-9);
  }
  // A window misses a column; columns miss a distance; all hold the diagonal.
  EXPECT_LT(scores[0][0].recall, 0.2);
  EXPECT_GT(scores[0][0].error, 0.5);
  EXPECT_GT(scores[0][1].recall, 0.999);
  EXPECT_LT(scores[0][1].error, 1e-6);
  EXPECT_GT(scores[1][1].error, 0.5);
  EXPECT_GT(scores[1][2].recall, 0.9);  // rows below 500 have no such distance
  EXPECT_LT(scores[1][2].error, 1e-6);
  for (int32_t c = 0; c < 4; ++c) EXPECT_LT(scores[2][c].error, 1e-6);
  // A window of 128 is 4 of up to 94 tiles.
  EXPECT_LT(scores[2][0].density, 0.2);
  EXPECT_LT(scores[2][0].density, scores[2][1].density);

  EXPECT_THAT(ChooseCandidates(scores, 0.3), ElementsAre(1, 2, 0));
}

TEST(HeadSearch, SamplesAddUpWhateverSegmentsTheyHave) {
  const HandMadeLayer layer(1000);
  HeadSearch::Options options = SearchOptions();
  options.segments = SegmentRule::Uniform(256);
  options.rows = 16;
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const auto search,
      HeadSearch::Create(layer.config(), layer.layout(), options));
  for (int i = 0; i < 2; ++i) {
    RowObserver* observer = search->BeginSample(1000);
    // Each row once, in order, with the last rows of the segments.
    for (size_t row = 1; row < observer->rows().size(); ++row) {
      ASSERT_LT(observer->rows()[row - 1], observer->rows()[row]);
    }
    EXPECT_GE(observer->rows().size(), 4 * 64);
    layer.Show(observer);
    ASSERT_THAT(search->status(), IsOk());
  }
  EXPECT_NEAR(search->Scores(0, 2)[3].density, 1, 1e-9);
  EXPECT_GT(search->Scores(0, 0)[1].recall, 0.999);
}

TEST(HeadSearch, AHeadThatOnlyLastRowsNeedIsNotTakenForCheap) {
  // The last row looks 500 back, at a value of its own; whatever the one spread
  // row needs, a window does not do.
  const HandMadeLayer layer(1400);
  HeadSearch::Options options = SearchOptions();
  options.rows = 2;  // a spread one, and the last
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const auto search,
      HeadSearch::Create(layer.config(), layer.layout(), options));
  RowObserver* observer = search->BeginSample(1400);
  layer.Show(observer);
  ASSERT_THAT(search->status(), IsOk());
  EXPECT_GT(search->Scores(0, 1)[0].error, 0.5);
  EXPECT_LT(search->Scores(0, 1)[2].error, 1e-6);
}

TEST(HeadSearch, NamesTheOptionThatDoesNotFit) {
  const HandMadeLayer layer(10);
  const auto expect = [&](auto change, const char* text) {
    HeadSearch::Options options = SearchOptions();
    change(options);
    EXPECT_THAT(HeadSearch::Create(layer.config(), layer.layout(), options),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(text)));
  };
  expect([](auto& o) { o.rows = 0; }, "rows is 0");
  expect([](auto& o) { o.rows = 65; }, "rows is 65");
  expect([](auto& o) { o.tile_rows = 0; }, "tile_rows is 0");
  expect([](auto& o) { o.candidates.clear(); }, "candidates is 0");
  expect([](auto& o) { o.candidates[0].forced_distances = 0; },
         "forced_distances is 0");
  expect([](auto& o) { o.segments = {}; }, "segments.tokens is 0");
}

TEST(Candidates, AreValidAndDifferent) {
  auto candidates = DefaultCandidates();
  for (const auto& size : AdaptiveCandidates()) candidates.push_back(size);
  for (size_t i = 0; i < candidates.size(); ++i) {
    EXPECT_THAT(kernels::Validate(candidates[i]), IsOk());
    for (size_t j = 0; j < i; ++j) EXPECT_NE(candidates[i], candidates[j]);
  }
}

TEST(ChooseCandidates, SpendsWhereItHelpsMost) {
  const std::vector<std::vector<CandidateScore>> scores = {
      // Needs much: half of all removes most of its error.
      {{.density = 0.1, .error = 0.8}, {.density = 0.5, .error = 0.01}},
      // Needs little.
      {{.density = 0.1, .error = 0.02}, {.density = 0.5, .error = 0.01}}};
  EXPECT_THAT(ChooseCandidates(scores, 0.3), ElementsAre(1, 0));
  EXPECT_DOUBLE_EQ(MeanOf(scores, {1, 0}).density, 0.3);
  EXPECT_DOUBLE_EQ(MeanOf(scores, {1, 0}).error, 0.015);
  EXPECT_THAT(ChooseCandidates(scores, 1.0), ElementsAre(1, 1));
  EXPECT_THAT(ChooseCandidates(scores, 0.2), ElementsAre(0, 0));
  // Less than there is: the cheapest.
  EXPECT_THAT(ChooseCandidates(scores, 0.01), ElementsAre(0, 0));
}

}  // namespace
}  // namespace overture::engine
