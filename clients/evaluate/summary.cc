#include "clients/evaluate/summary.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "clients/evaluate/statistics.h"
#include "clients/tool/request_text.h"

namespace overture::clients {
namespace {

std::string PairKey(const Record& record) {
  return Key({.sample = record.sample,
              .mode = record.mode,
              .turn = record.turn,
              .configuration = PairOf(record.configuration)});
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

// "97.5%, 61.0%": of all heads, and of the worst; "-" where nothing was
// sampled.
std::string KeptMass(const Tally& tally) {
  return tally.kept_mass.has_value()
             ? absl::StrFormat("%.1f%%, %.1f%%", 100 * tally.kept_mass->mean,
                               100 * tally.kept_mass->lowest)
             : "-";
}

std::string Ttft(const Tally& tally) {
  return tally.ttft_seconds > 0 ? FormatSeconds(tally.ttft_seconds) : "-";
}

// What a prefill and its KV cost: the last columns of every table.
constexpr absl::string_view kCostColumns =
    " density | kept, worst head | KV | TTFT | selector |\n";
constexpr absl::string_view kCostRule = "---|---|---|---|---|\n";
std::string CostCells(const Tally& tally) {
  return absl::StrFormat(" %.1f%% | %s | %s | %s | %s |\n", 100 * tally.density,
                         KeptMass(tally),
                         FormatBytes(static_cast<int64_t>(tally.kv_bytes)),
                         Ttft(tally), FormatSeconds(tally.selector_seconds));
}

using Belongs = std::function<bool(const Record&)>;

// A row for each length and configuration that has records.
std::string Rows(
    absl::Span<const Record> records, const Pairs& pairs,
    const std::vector<Configuration>& configurations, const Belongs& belongs,
    const std::function<std::string(const Tally&, const Belongs&)>& cells) {
  std::string out;
  for (const int64_t length :
       Values(records, [](const Record& r) { return r.sample.length; })) {
    const Belongs here = [&](const Record& record) {
      return record.sample.length == length && belongs(record);
    };
    for (const Configuration& configuration : configurations) {
      const Tally tally = pairs.Count(configuration, here);
      if (tally.samples == 0) continue;
      absl::StrAppend(&out, "| ", length, " | ", Label(configuration), " |",
                      cells(tally,
                            [&](const Record& record) {
                              return record.configuration == configuration &&
                                     here(record);
                            }),
                      CostCells(tally));
    }
  }
  return out;
}

// Tasks beside each other.
std::string Overview(absl::Span<const Record> records, const Pairs& pairs,
                     const std::vector<Configuration>& configurations,
                     const Belongs& belongs) {
  std::vector<Record> of_table;
  std::copy_if(records.begin(), records.end(), std::back_inserter(of_table),
               belongs);
  const auto tasks =
      Values(of_table, [](const Record& r) { return r.sample.task; });
  std::string out = "| length | configuration |";
  std::string rule = "|---|---|";
  for (const std::string& task : tasks) {
    absl::StrAppend(&out, " ", task, " |");
    rule += "---|";
  }
  absl::StrAppend(&out, " all, % [95%] | lost, won | tail % |", kCostColumns,
                  rule, "---|---|---|", kCostRule);
  const auto cells = [&](const Tally& all, const Belongs& here) {
    std::string text;
    for (const std::string& task : tasks) {
      const Tally tally = pairs.Count([&](const Record& record) {
        return record.sample.task == task && here(record);
      });
      absl::StrAppend(&text, " ", tally.right, "/", tally.samples, " |");
    }
    absl::StrAppendFormat(&text, " %s | %s | %.1f |",
                          PercentWithInterval(all.right, all.samples),
                          Difference(all), 100 * Share(all.tail, all.samples));
    return text;
  };
  return out + Rows(of_table, pairs, configurations, belongs, cells);
}

std::string TaskTable(absl::Span<const Record> records, const Pairs& pairs,
                      const std::vector<Configuration>& configurations,
                      const Belongs& belongs) {
  const auto cells = [](const Tally& tally, const Belongs&) {
    return absl::StrFormat(" %d | %s | %s | %.2f | %.1f |", tally.samples,
                           PercentWithInterval(tally.right, tally.samples),
                           Difference(tally), tally.score,
                           100 * Share(tally.tail, tally.samples));
  };
  return absl::StrCat(
      "| length | configuration | n | right % [95%] | lost, won | score | tail "
      "% |",
      kCostColumns, "|---|---|---|---|---|---|---|", kCostRule,
      Rows(records, pairs, configurations, belongs, cells));
}

std::string TextTable(absl::Span<const Record> records, const Pairs& pairs,
                      const std::vector<Configuration>& configurations,
                      const Belongs& belongs) {
  const auto cells = [](const Tally& tally, const Belongs&) {
    const auto percent = [](double loss) { return 100 * (std::exp(loss) - 1); };
    return absl::StrFormat(
        " %d | %.3f | %+.2f%% [%+.2f, %+.2f] | %.4f | %.1f [%.1f, %.1f] |",
        tally.samples, std::exp(tally.loss), percent(tally.loss_change),
        percent(tally.loss_interval.low), percent(tally.loss_interval.high),
        tally.kl, 100 * tally.agreement, 100 * tally.agreement_interval.low,
        100 * tally.agreement_interval.high);
  };
  return absl::StrCat(
      "| length | configuration | n | perplexity | change [95%] | KL, nats | "
      "same first token, % [95%] |",
      kCostColumns, "|---|---|---|---|---|---|---|", kCostRule,
      Rows(records, pairs, configurations, belongs, cells));
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
                   const Belongs& belongs) const {
  return Count([&](const Record& record) {
    return record.configuration == configuration && belongs(record);
  });
}

Tally Pairs::Count(const Belongs& belongs) const {
  Tally tally;
  std::vector<double> cold;
  std::vector<double> kept_mean;
  std::vector<double> kept_lowest;
  std::vector<double> losses;
  std::vector<double> changes;
  std::vector<double> agreements;
  for (const Record& record : records_) {
    if (!belongs(record)) continue;
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
    tally.selector_seconds += record.selector_seconds;
    const auto bytes = static_cast<double>(record.kv_bytes);
    tally.kv_bytes += bytes;
    tally.kv_share += bytes / static_cast<double>(
                                  std::max<int64_t>(1, pair->second->kv_bytes));
    if (record.kept_mass.has_value()) {
      kept_mean.push_back(record.kept_mass->mean);
      kept_lowest.push_back(record.kept_mass->lowest);
    }
    if (record.reused_tokens == 0) cold.push_back(record.ttft_seconds);
    if (record.likelihood.has_value() && pair->second->likelihood.has_value()) {
      losses.push_back(record.likelihood->loss);
      changes.push_back(record.likelihood->loss -
                        pair->second->likelihood->loss);
      tally.kl += record.likelihood->kl;
      agreements.push_back(record.likelihood->agreement);
    }
  }
  const double n = std::max<double>(1, static_cast<double>(tally.samples));
  for (double* sum : {&tally.score, &tally.density, &tally.selector_seconds,
                      &tally.kv_bytes, &tally.kv_share, &tally.kl}) {
    *sum /= n;
  }
  if (!kept_mean.empty()) {
    tally.kept_mass = {.mean = Mean(kept_mean), .lowest = Mean(kept_lowest)};
  }
  if (!cold.empty()) {
    std::nth_element(cold.begin(), cold.begin() + cold.size() / 2, cold.end());
    tally.ttft_seconds = cold[cold.size() / 2];
  }
  tally.loss = Mean(losses);
  tally.loss_change = Mean(changes);
  tally.loss_interval = MeanInterval(changes);
  tally.agreement = Mean(agreements);
  tally.agreement_interval = MeanInterval(agreements);
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
      "\"not shown\": p > 0.05.\n");
  const auto turn_title = [](Mode mode, int turn) {
    return mode == Mode::kSingle
               ? std::string()
               : absl::StrCat(", ", ToString(mode), ", turn ", turn + 1);
  };
  // Turns, each with all its tasks; then task by task.
  const auto turns = Values(records, [](const Record& r) {
    return std::make_tuple(r.likelihood.has_value(), r.mode, r.turn);
  });
  for (const auto& [is_text, mode, turn] : turns) {
    if (is_text) continue;
    absl::StrAppend(&out, "\n## All tasks", turn_title(mode, turn), "\n\n",
                    Overview(records, pairs, configurations,
                             [mode = mode, turn = turn](const Record& record) {
                               return !record.likelihood.has_value() &&
                                      record.mode == mode &&
                                      record.turn == turn;
                             }));
  }
  const auto parts = Values(records, [](const Record& r) {
    return std::make_tuple(r.sample.task, r.mode, r.turn,
                           r.likelihood.has_value());
  });
  for (const auto& [task, mode, turn, is_text] : parts) {
    const Belongs belongs = [task = task, mode = mode,
                             turn = turn](const Record& record) {
      return record.sample.task == task && record.mode == mode &&
             record.turn == turn;
    };
    absl::StrAppend(&out, "\n## ", task, turn_title(mode, turn), "\n\n",
                    is_text
                        ? TextTable(records, pairs, configurations, belongs)
                        : TaskTable(records, pairs, configurations, belongs));
  }
  return out;
}

}  // namespace overture::clients
