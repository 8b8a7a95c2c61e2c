#include "clients/evaluate/summary.h"

#include <algorithm>
#include <functional>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "clients/evaluate/statistics.h"
#include "clients/tool/request_text.h"

namespace overture::clients {
namespace {

std::string PairKey(const Record& record) {
  Record pair{
      .sample = record.sample, .mode = record.mode, .turn = record.turn};
  pair.configuration = {kDense, kFull, record.configuration.question, 0};
  return Key(pair);
}

double Share(int64_t part, int64_t all) {
  return all == 0 ? 0 : static_cast<double>(part) / static_cast<double>(all);
}

std::string PercentWithInterval(int64_t hits, int64_t n) {
  const Interval interval = WilsonInterval(hits, n);
  return absl::StrFormat("%.1f [%.0f, %.0f]", 100 * Share(hits, n),
                         100 * interval.low, 100 * interval.high);
}

std::string Difference(const Tally& tally) {
  const double p = McNemarP(tally.lost, tally.won);
  return absl::StrFormat("-%d +%d, %s", tally.lost, tally.won,
                         p > 0.05    ? "not shown"
                         : p < 0.001 ? "p < 0.001"
                                     : absl::StrFormat("p = %.3f", p));
}

// Sorted and each once.
template <typename Get>
auto Values(absl::Span<const Record> records, const Get& get) {
  std::set<decltype(get(records[0]))> values;
  for (const Record& record : records) values.insert(get(record));
  return values;
}

std::string Overview(absl::Span<const Record> records, const Pairs& pairs,
                     const std::vector<Configuration>& configurations) {
  const auto tasks =
      Values(records, [](const Record& r) { return r.sample.task; });
  std::string out = "| configuration |";
  std::string rule = "|---|";
  for (const std::string& task : tasks) {
    absl::StrAppend(&out, " ", task, " |");
    rule += "---|";
  }
  absl::StrAppend(&out, " density | KV | lost, won |\n", rule,
                  "---|---|---|\n");
  for (const Configuration& configuration : configurations) {
    absl::StrAppend(&out, "| ", Label(configuration), " |");
    for (const std::string& task : tasks) {
      const Tally tally = pairs.Count(
          configuration,
          [&task](const Record& record) { return record.sample.task == task; });
      absl::StrAppend(&out, " ",
                      PercentWithInterval(tally.right, tally.samples), " |");
    }
    const Tally all =
        pairs.Count(configuration, [](const Record&) { return true; });
    absl::StrAppendFormat(&out, " %.1f%% | %.1f%% | %s |\n", 100 * all.density,
                          100 * all.kv_share, Difference(all));
  }
  return out;
}

std::string TaskTable(absl::Span<const Record> records, const Pairs& pairs,
                      const std::vector<Configuration>& configurations,
                      const std::function<bool(const Record&)>& belongs) {
  std::string out =
      "| length | configuration | n | right % [95%] | lost, won | score | tail "
      "% | density | KV | TTFT |\n|---|---|---|---|---|---|---|---|---|---|\n";
  for (const int64_t length :
       Values(records, [](const Record& r) { return r.sample.length; })) {
    for (const Configuration& configuration : configurations) {
      const Tally tally = pairs.Count(configuration, [&](const Record& record) {
        return record.sample.length == length && belongs(record);
      });
      if (tally.samples == 0) continue;
      absl::StrAppendFormat(
          &out, "| %d | %s | %d | %s | %s | %.2f | %.1f | %.1f%% | %s | %s |\n",
          length, Label(configuration), tally.samples,
          PercentWithInterval(tally.right, tally.samples), Difference(tally),
          tally.score, 100 * Share(tally.tail, tally.samples),
          100 * tally.density,
          FormatBytes(static_cast<int64_t>(tally.kv_bytes)),
          tally.ttft_seconds > 0 ? FormatSeconds(tally.ttft_seconds) : "-");
    }
  }
  return out;
}

}  // namespace

std::vector<Configuration> ConfigurationsOf(absl::Span<const Record> records) {
  std::vector<Configuration> found;
  std::vector<std::string> selectors;  // in order of appearance
  for (const Record& record : records) {
    const Configuration& configuration = record.configuration;
    if (std::find(found.begin(), found.end(), configuration) == found.end()) {
      found.push_back(configuration);
    }
    if (std::find(selectors.begin(), selectors.end(), configuration.selector) ==
        selectors.end()) {
      selectors.push_back(configuration.selector);
    }
  }
  const auto order = [&selectors](const Configuration& c) {
    return std::make_tuple(
        c.question != kLast,
        std::find(selectors.begin(), selectors.end(), c.selector),
        c.view != kFull, c.repeat);
  };
  std::stable_sort(found.begin(), found.end(),
                   [&order](const Configuration& a, const Configuration& b) {
                     return order(a) < order(b);
                   });
  return found;
}

Pairs::Pairs(absl::Span<const Record> records) : records_(records) {
  for (const Record& record : records) {
    if (Key(record) == PairKey(record)) dense_[Key(record)] = &record;
  }
}

Tally Pairs::Count(const Configuration& configuration,
                   const std::function<bool(const Record&)>& belongs) const {
  Tally tally;
  std::vector<double> cold;
  for (const Record& record : records_) {
    if (!(record.configuration == configuration) || !belongs(record)) continue;
    // Without a pair, as while a run goes on, nothing is compared.
    const auto pair = dense_.find(PairKey(record));
    if (pair == dense_.end()) continue;
    ++tally.samples;
    tally.right += record.score.right ? 1 : 0;
    tally.tail += record.score.tail ? 1 : 0;
    const bool pair_right = pair->second->score.right;
    tally.lost += pair_right && !record.score.right ? 1 : 0;
    tally.won += !pair_right && record.score.right ? 1 : 0;
    tally.score += record.score.share;
    tally.density += record.density;
    const auto bytes = static_cast<double>(record.kv_bytes);
    tally.kv_bytes += bytes;
    tally.kv_share += bytes / static_cast<double>(
                                  std::max<int64_t>(1, pair->second->kv_bytes));
    if (record.reused_tokens == 0) cold.push_back(record.ttft_seconds);
  }
  const double n = std::max<double>(1, static_cast<double>(tally.samples));
  for (double* sum :
       {&tally.score, &tally.density, &tally.kv_bytes, &tally.kv_share}) {
    *sum /= n;
  }
  if (!cold.empty()) {
    std::nth_element(cold.begin(), cold.begin() + cold.size() / 2, cold.end());
    tally.ttft_seconds = cold[cold.size() / 2];
  }
  return tally;
}

std::string SummaryMarkdown(absl::string_view title,
                            absl::Span<const Record> records) {
  if (records.empty()) return absl::StrCat("# ", title, "\n\nNo records.\n");
  const Pairs pairs(records);
  const std::vector<Configuration> configurations = ConfigurationsOf(records);
  std::string out = absl::StrCat(
      "# ", title,
      "\n\nShare of right answers in %, with Wilson's 95% interval; beside the "
      "pair over dense\nfull KV: answers lost and won, and McNemar's exact p. "
      "\"not shown\": p > 0.05.\n\n## All lengths\n\n",
      Overview(records, pairs, configurations));
  const auto parts = Values(records, [](const Record& r) {
    return std::make_tuple(r.sample.task, r.mode, r.turn);
  });
  for (const auto& [task, mode, turn] : parts) {
    absl::StrAppend(&out, "\n## ", task);
    if (mode != Mode::kSingle) {
      absl::StrAppend(&out, ", ", ToString(mode), ", turn ", turn + 1);
    }
    const auto belongs = [task = task, mode = mode,
                          turn = turn](const Record& record) {
      return record.sample.task == task && record.mode == mode &&
             record.turn == turn;
    };
    absl::StrAppend(&out, "\n\n",
                    TaskTable(records, pairs, configurations, belongs));
  }
  return out;
}

}  // namespace overture::clients
