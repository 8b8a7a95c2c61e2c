#include "engine/row_audit.h"

#include <cmath>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::StatusIs;
using ::testing::DoubleEq;
using ::testing::ElementsAre;
using ::testing::FloatEq;
using ::testing::HasSubstr;

TEST(AuditRows, ComeOneFromEachStretch) {
  const std::vector<int64_t> rows = AuditRows(3, 100, 900, 8);
  ASSERT_EQ(rows.size(), 8);
  for (int64_t i = 0; i < 8; ++i) {
    EXPECT_GE(rows[i], 100 + 100 * i);
    EXPECT_LT(rows[i], 200 + 100 * i);
  }
}

TEST(AuditRows, AreTheSameEveryTimeAndOthersInAnotherLayer) {
  EXPECT_EQ(AuditRows(3, 0, 1 << 20, 8), AuditRows(3, 0, 1 << 20, 8));
  EXPECT_NE(AuditRows(3, 0, 1 << 20, 8), AuditRows(4, 0, 1 << 20, 8));
  // Nothing favours a place within its stretch: 1,000 draws from 4 fill each.
  std::multiset<int64_t> places;
  for (int32_t layer = 0; layer < 1000; ++layer) {
    places.insert(AuditRows(layer, 40, 44, 1)[0]);
  }
  for (int64_t row = 40; row < 44; ++row) EXPECT_GT(places.count(row), 200);
}

TEST(AuditRows, MoreThanTheLimitAreRefused) {
  EXPECT_THAT(CheckAuditRows(0), IsOk());
  EXPECT_THAT(CheckAuditRows(kMaxAuditRows), IsOk());
  EXPECT_THAT(CheckAuditRows(-1), StatusIs(absl::StatusCode::kInvalidArgument,
                                           HasSubstr("audit_rows is -1")));
  EXPECT_THAT(CheckAuditRows(65),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("audit_rows is 65, must be in [0, 64]")));
}

TEST(AuditRows, AreAllRowsWhereThereAreNoMore) {
  EXPECT_THAT(AuditRows(0, 7, 10, 3), ElementsAre(7, 8, 9));
  EXPECT_THAT(AuditRows(0, 7, 10, 64), ElementsAre(7, 8, 9));
  EXPECT_THAT(AuditRows(0, 7, 8, 1), ElementsAre(7));
}

TEST(KeptMass, IsTheRatioOfTheSums) {
  EXPECT_THAT(KeptMass({std::log(3.0f), 1.0f}, {std::log(4.0f), 1.0f}),
              ElementsAre(FloatEq(0.75f), 1.0f));
  // A row that the plan gave nothing.
  EXPECT_THAT(KeptMass({-INFINITY}, {2.0f}), ElementsAre(0.0f));
}

TEST(KeptMass, IsSummedUpOverRowsAndTheLowestHeadIsNamed) {
  const std::vector<AuditedLayer> layers = {
      {.rows = {5, 9}, .kept = {1.0f, 0.5f, 1.0f, 0.25f}},
      {},
      {.rows = {9}, .kept = {0.75f, 1.0f}}};
  EXPECT_THAT(KeptMassOfHeads(layers[0]), ElementsAre(1.0, DoubleEq(0.375)));
  const KeptMassSummary summary = Summarize(layers);
  EXPECT_DOUBLE_EQ(summary.mean, 4.5 / 6);
  EXPECT_DOUBLE_EQ(summary.lowest, 0.375);
  EXPECT_EQ(summary.layer, 0);
  EXPECT_EQ(summary.head, 1);
  EXPECT_EQ(summary.num_rows, 3);
}

TEST(KeptMass, OfNothingAuditedIsWhole) {
  const KeptMassSummary summary = Summarize({});
  EXPECT_EQ(summary.mean, 1.0);
  EXPECT_EQ(summary.layer, -1);
  EXPECT_EQ(summary.num_rows, 0);
}

}  // namespace
}  // namespace overture::engine
