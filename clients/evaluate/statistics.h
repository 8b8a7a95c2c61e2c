// What may be concluded from counts. Thread-safe: no state.
#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace overture::clients {

struct Interval {
  double low = 0;
  double high = 1;
};

// Wilson's 95% interval of a share, `hits` of `n`; [0, 1] for n = 0.
// Source: E. B. Wilson, "Probable inference", 1927.
Interval WilsonInterval(int64_t hits, int64_t n);

double Mean(absl::Span<const double> values);  // 0 of none
// Student's 95% interval of the mean that `values` are drawn around; from minus
// to plus infinity for fewer than two.
Interval MeanInterval(absl::Span<const double> values);

// McNemar's exact two-sided p: how likely `lost` and `won` are to differ so
// much if both were equally likely. 1 if both are 0.
double McNemarP(int64_t lost, int64_t won);

}  // namespace overture::clients
