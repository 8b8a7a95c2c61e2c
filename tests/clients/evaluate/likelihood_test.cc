#include "clients/evaluate/likelihood.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace overture::clients {
namespace {

TEST(LikelihoodTest, ProbabilitiesAddUpToOneHoweverLargeTheLogits) {
  for (const float offset : {0.0f, 1e4f, -1e4f}) {
    const std::vector<float> row = LogSoftmax({offset, offset + 1, offset - 2});
    double sum = 0;
    for (const float log : row) sum += std::exp(double{log});
    // A float of 1e4 is 1e-3 apart from the next, so are the logits.
    EXPECT_NEAR(sum, 1, 1e-6);
    EXPECT_NEAR(row[1] - row[0], 1, 1e-3);
  }
}

TEST(LikelihoodTest, TheSameDistributionsAreAtNoDistance) {
  const LogProbabilities rows = {LogSoftmax({1, 2, 3}), LogSoftmax({3, 2, 1})};
  const Likelihood same = CompareLikelihood(rows, rows, {2, 2});
  EXPECT_EQ(same.positions, 2);
  EXPECT_EQ(same.kl, 0);
  EXPECT_EQ(same.agreement, 1);
  EXPECT_NEAR(same.loss, -(rows[0][2] + rows[1][2]) / 2, 1e-6);
}

TEST(LikelihoodTest, MeansAreOverThePositions) {
  const auto log = [](double p) { return static_cast<float>(std::log(p)); };
  const LogProbabilities pair = {{log(0.5), log(0.5)}, {log(0.9), log(0.1)}};
  const LogProbabilities rows = {{log(0.25), log(0.75)}, {log(0.9), log(0.1)}};
  const Likelihood other = CompareLikelihood(rows, pair, {1, 0});
  // By hand: half of 0.5 ln(0.5 / 0.25) + 0.5 ln(0.5 / 0.75).
  EXPECT_NEAR(other.kl, 0.25 * std::log(2) + 0.25 * std::log(2.0 / 3), 1e-6);
  // Equal probabilities rank the lower token first.
  EXPECT_EQ(other.agreement, 0.5);
  EXPECT_NEAR(other.loss, -(std::log(0.75) + std::log(0.9)) / 2, 1e-6);
}

}  // namespace
}  // namespace overture::clients
