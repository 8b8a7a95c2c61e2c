#include "clients/evaluate/summary.h"

#include <optional>
#include <string>
#include <vector>

#include "clients/evaluate/plots.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace overture::clients {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

const Configuration kPair = {kDense, kFull, kLast, 0};
const Configuration kSparse = {"a_shape:64,512", kFull, kLast, 0};
const Configuration kView = {kDense, "snapkv:32,256", kLast, 0};

Record MakeRecord(int64_t seed, const Configuration& configuration, bool right,
                  int64_t length = 1024) {
  const bool is_view = configuration.view != kFull;
  return {.sample = {"kv", length, 0.5, seed},
          .configuration = configuration,
          .score = {.right = right, .tail = true, .share = right ? 1.0 : 0.5},
          .density = configuration.selector == kDense ? 1.0 : 0.25,
          .selector_seconds = 0.5,
          .kv_bytes = is_view ? 1000 : 4000,
          .ttft_seconds = static_cast<double>(seed)};
}

// Three samples: the view loses the second and wins the third.
std::vector<Record> Records() {
  return {MakeRecord(1, kView, true),   MakeRecord(1, kPair, true),
          MakeRecord(1, kSparse, true), MakeRecord(2, kView, false),
          MakeRecord(2, kPair, true),   MakeRecord(2, kSparse, true),
          MakeRecord(3, kView, true),   MakeRecord(3, kPair, false),
          MakeRecord(3, kSparse, false)};
}

bool Any(const Record&) { return true; }

TEST(SummaryTest, CountsWhatIsLostAndWonAgainstThePair) {
  const std::vector<Record> records = Records();
  const Tally tally = Pairs(records).Count(kView, Any);
  EXPECT_EQ(tally.samples, 3);
  EXPECT_EQ(tally.right, 2);
  EXPECT_EQ(tally.tail, 3);
  EXPECT_EQ(tally.lost, 1);
  EXPECT_EQ(tally.won, 1);
  EXPECT_DOUBLE_EQ(tally.score, 2.5 / 3);
  EXPECT_DOUBLE_EQ(tally.kv_share, 0.25);
  EXPECT_DOUBLE_EQ(tally.kv_bytes, 1000);
  EXPECT_DOUBLE_EQ(tally.ttft_seconds, 2);  // the median
  EXPECT_DOUBLE_EQ(Pairs(records).Count(kSparse, Any).density, 0.25);
}

TEST(SummaryTest, RecordsWithoutAPairDoNotCount) {
  std::vector<Record> records = Records();
  records.push_back(MakeRecord(4, kView, true));
  EXPECT_EQ(Pairs(records).Count(kView, Any).samples, 3);
}

TEST(SummaryTest, WarmPrefillsDoNotCountForTheTtft) {
  std::vector<Record> records = Records();
  for (Record& record : records) {
    if (record.sample.seed != 3) record.reused_tokens = 256;
  }
  EXPECT_DOUBLE_EQ(Pairs(records).Count(kView, Any).ttft_seconds, 3);
}

TEST(SummaryTest, ConfigurationsStandFromThePairOn) {
  EXPECT_THAT(ConfigurationsOf(Records()), ElementsAre(kPair, kView, kSparse));
}

TEST(SummaryTest, TablesSayWhatIsNotShown) {
  const std::string text = SummaryMarkdown("model", Records());
  EXPECT_THAT(text, HasSubstr("# model"));
  EXPECT_THAT(text, HasSubstr("## kv"));
  EXPECT_THAT(
      text,
      HasSubstr("| 1024 | dense snapkv:32,256 | 3 | 66.7 [21, 94] | -1 +1, not "
                "shown | 0.83 | 100.0 | 100.0% | - | 1.0 kB | 2.00 s | 500.0 "
                "ms |"));
  // Task by task beside each other, and what all of them add up to.
  EXPECT_THAT(text, HasSubstr("| 1024 | dense snapkv:32,256 | 2/3 | 66.7 [21, "
                              "94] | -1 +1, not shown | 100.0 |"));
  std::vector<Record> many;
  for (int64_t seed = 0; seed < 6; ++seed) {
    many.push_back(MakeRecord(seed, kPair, true));
    many.push_back(MakeRecord(seed, kView, false));
  }
  EXPECT_THAT(SummaryMarkdown("model", many), HasSubstr("-6 +0, p = 0.031"));
  EXPECT_THAT(SummaryMarkdown("model", {}), HasSubstr("No records"));
}

TEST(SummaryTest, KeptMassIsTheMeanOfWhereItWasSampled) {
  std::vector<Record> records = Records();
  EXPECT_EQ(Pairs(records).Count(kSparse, Any).kept_mass, std::nullopt);
  records[2].kept_mass = {.mean = 0.5, .lowest = 0.25};
  records[5].kept_mass = {.mean = 0.75, .lowest = 0.5};
  EXPECT_EQ(Pairs(records).Count(kSparse, Any).kept_mass,
            (KeptMass{.mean = 0.625, .lowest = 0.375}));
  EXPECT_THAT(SummaryMarkdown("model", records),
              HasSubstr("| 25.0% | 62.5%, 37.5% | 4.0 kB |"));
}

TEST(SummaryTest, RealTextIsComparedWithItsPair) {
  std::vector<Record> records;
  for (int64_t seed = 0; seed < 4; ++seed) {
    const double loss = 1 + 0.1 * static_cast<double>(seed);
    records.push_back(MakeRecord(seed, kPair, false));
    records.back().likelihood = {
        .positions = 127, .loss = loss, .agreement = 1};
    records.push_back(MakeRecord(seed, kSparse, false));
    records.back().likelihood = {
        .positions = 127, .loss = loss + 0.5, .kl = 0.25, .agreement = 0.75};
    for (size_t i = records.size() - 2; i < records.size(); ++i) {
      records[i].sample.task = "text:0";
    }
  }
  const Tally tally = Pairs(records).Count(kSparse, Any);
  EXPECT_DOUBLE_EQ(tally.loss_change, 0.5);
  EXPECT_NEAR(tally.loss_interval.low, 0.5, 1e-12);
  const std::string text = SummaryMarkdown("model", records);
  // exp(1.65) and exp(0.5) - 1.
  EXPECT_THAT(text, HasSubstr("| 4 | 5.207 | +64.87% [+64.87, +64.87] | 0.2500 "
                              "| 75.0 [75.0, 75.0] |"));
  EXPECT_THAT(text, Not(HasSubstr("All tasks")));
}

TEST(PlotsTest, HeatMapsHaveAFieldForEachLengthAndDepth) {
  std::vector<Record> records = Records();
  records.push_back(MakeRecord(1, kPair, true, 2048));
  const std::string svg = HeatMapSvg(records);
  EXPECT_THAT(svg, HasSubstr("kv: dense snapkv:32,256"));
  EXPECT_THAT(svg, HasSubstr(">67</text>"));
  EXPECT_THAT(svg, HasSubstr(">2048</text>"));
  EXPECT_THAT(svg, HasSubstr("</svg>"));
}

TEST(PlotsTest, MarksStandAtTheirCostAndAccuracy) {
  // 50 + 460 * 0.25 from the left; 20 + 300 * (1 - 2 / 3) from the top.
  EXPECT_THAT(AccuracySvg(Records(), CostAxis::kDensity),
              HasSubstr("cx=\"165.0\" cy=\"120.0\""));
  EXPECT_THAT(AccuracySvg(Records(), CostAxis::kKvBytes),
              HasSubstr("cx=\"165.0\" cy=\"120.0\""));
  EXPECT_THAT(AccuracySvg(Records(), CostAxis::kKvBytes),
              Not(HasSubstr("nan")));
}

TEST(PlotsTest, TurnsAreLines) {
  EXPECT_EQ(TurnsSvg(Records()), "");
  std::vector<Record> records;
  for (int turn = 0; turn < 3; ++turn) {
    for (const Configuration& configuration : {kPair, kView}) {
      records.push_back(
          MakeRecord(1, configuration, turn == 0 || configuration == kPair));
      records.back().mode = Mode::kStoredView;
      records.back().turn = turn;
    }
  }
  const std::string svg = TurnsSvg(records);
  EXPECT_THAT(svg, HasSubstr("M50.0 20.0L280.0 20.0L510.0 20.0"));
  EXPECT_THAT(svg, HasSubstr("M50.0 20.0L280.0 320.0L510.0 320.0"));
  EXPECT_THAT(svg, HasSubstr("stored_view: dense snapkv:32,256"));
}

}  // namespace
}  // namespace overture::clients
