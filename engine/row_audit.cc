#include "engine/row_audit.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"

namespace overture::engine {
namespace {

// The finaliser of SplitMix64 (Steele et al., OOPSLA 2014).
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

absl::Status CheckAuditRows(int32_t audit_rows) {
  if (audit_rows >= 0 && audit_rows <= kMaxAuditRows) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "audit_rows is ", audit_rows, ", must be in [0, ", kMaxAuditRows, "]"));
}

std::vector<int64_t> AuditRows(int32_t layer, int64_t begin, int64_t end,
                               int32_t count) {
  const int64_t num_rows = std::min<int64_t>(count, end - begin);
  std::vector<int64_t> rows(num_rows);
  for (int64_t i = 0; i < num_rows; ++i) {
    const int64_t first = begin + (end - begin) * i / num_rows;
    const int64_t last = begin + (end - begin) * (i + 1) / num_rows;
    const uint64_t hash =
        Mix(Mix(static_cast<uint64_t>(layer)) + static_cast<uint64_t>(first));
    rows[i] = first +
              static_cast<int64_t>(hash % static_cast<uint64_t>(last - first));
  }
  return rows;
}

IndexRange Within(absl::Span<const int64_t> positions, int64_t begin,
                  int64_t end) {
  const auto index = [&](int64_t position) -> size_t {
    return std::lower_bound(positions.begin(), positions.end(), position) -
           positions.begin();
  };
  return {index(begin), std::max(index(begin), index(end))};
}

std::vector<float> KeptMass(absl::Span<const float> plan_lse,
                            absl::Span<const float> exact_lse) {
  std::vector<float> kept(plan_lse.size());
  std::transform(
      plan_lse.begin(), plan_lse.end(), exact_lse.begin(), kept.begin(),
      [](float plan, float exact) { return std::exp(plan - exact); });
  return kept;
}

std::vector<double> KeptMassOfHeads(const AuditedLayer& layer) {
  const size_t num_heads = layer.kept.size() / layer.rows.size();
  std::vector<double> heads(num_heads);
  for (size_t i = 0; i < layer.kept.size(); ++i) {
    heads[i % num_heads] +=
        layer.kept[i] / static_cast<double>(layer.rows.size());
  }
  return heads;
}

KeptMassSummary Summarize(absl::Span<const AuditedLayer> layers) {
  KeptMassSummary summary;
  double sum = 0;
  int64_t count = 0;
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    const AuditedLayer& audited = layers[layer];
    if (audited.rows.empty()) continue;
    summary.num_rows += static_cast<int64_t>(audited.rows.size());
    count += static_cast<int64_t>(audited.kept.size());
    sum = std::accumulate(audited.kept.begin(), audited.kept.end(), sum);
    const std::vector<double> heads = KeptMassOfHeads(audited);
    const auto lowest = std::min_element(heads.begin(), heads.end());
    if (summary.layer < 0 || *lowest < summary.lowest) {
      summary.lowest = *lowest;
      summary.layer = static_cast<int32_t>(layer);
      summary.head = static_cast<int32_t>(lowest - heads.begin());
    }
  }
  if (count > 0) summary.mean = sum / static_cast<double>(count);
  return summary;
}

}  // namespace overture::engine
