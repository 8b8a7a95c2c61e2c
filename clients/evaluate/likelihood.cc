#include "clients/evaluate/likelihood.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "engine/decoder.h"

namespace overture::clients {

std::vector<float> LogSoftmax(absl::Span<const float> logits) {
  OVERTURE_CHECK(!logits.empty());
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(double{logit} - max);
  const double log_sum = max + std::log(sum);
  std::vector<float> out;
  out.reserve(logits.size());
  for (const float logit : logits) {
    out.push_back(static_cast<float>(logit - log_sum));
  }
  return out;
}

Likelihood CompareLikelihood(const LogProbabilities& rows,
                             const LogProbabilities& pair,
                             absl::Span<const int32_t> tokens) {
  OVERTURE_CHECK(!rows.empty() && rows.size() == pair.size() &&
                 rows.size() == tokens.size());
  Likelihood sum;
  for (size_t i = 0; i < rows.size(); ++i) {
    OVERTURE_CHECK(rows[i].size() == pair[i].size());
    sum.loss -= rows[i][static_cast<size_t>(tokens[i])];
    for (size_t token = 0; token < rows[i].size(); ++token) {
      const double expected = pair[i][token];
      sum.kl += std::exp(expected) * (expected - rows[i][token]);
    }
    sum.agreement += engine::Argmax(rows[i]) == engine::Argmax(pair[i]) ? 1 : 0;
  }
  const auto n = static_cast<double>(rows.size());
  return {.positions = static_cast<int64_t>(rows.size()),
          .loss = sum.loss / n,
          .kl = sum.kl / n,
          .agreement = sum.agreement / n};
}

}  // namespace overture::clients
