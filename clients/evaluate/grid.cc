#include "clients/evaluate/grid.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <limits>
#include <set>
#include <type_traits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "clients/tool/request_text.h"
#include "proto/selector_text.h"

namespace overture::clients {
namespace {

constexpr absl::string_view kModes[] = {"single", "multi_turn", "multi_request",
                                        "stored_view"};

// The items of a flag, each once.
absl::StatusOr<std::vector<std::string>> Items(absl::string_view flag,
                                               absl::string_view text) {
  const std::vector<std::string> items =
      absl::StrSplit(text, ';', absl::SkipWhitespace());
  if (items.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--", flag, " is empty"));
  }
  if (std::set<std::string>(items.begin(), items.end()).size() !=
      items.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--", flag, "=", text, " names something twice"));
  }
  return items;
}

bool ParseNumber(absl::string_view text, double* number) {
  return absl::SimpleAtod(text, number);
}
bool ParseNumber(absl::string_view text, int64_t* number) {
  return absl::SimpleAtoi(text, number);
}

template <typename T>
absl::StatusOr<std::vector<T>> Numbers(absl::string_view flag,
                                       absl::string_view text, T low, T high) {
  OVERTURE_ASSIGN_OR_RETURN(const std::vector<std::string> items,
                            Items(flag, text));
  std::vector<T> numbers;
  for (const std::string& item : items) {
    T number = 0;
    if (!ParseNumber(item, &number) || !(number >= low) || !(number <= high)) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", item, "' in --", flag, " must be ",
                       std::is_integral_v<T> ? "an integer" : "a number",
                       " within [", low, ", ", high, "]"));
    }
    if (number == 0) number = 0;  // from -0, which is spelled differently
    if (std::find(numbers.begin(), numbers.end(), number) != numbers.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag, "=", text, " holds ", item, " twice"));
    }
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<Mode> ParseMode(absl::string_view text) {
  const auto* mode = std::find(std::begin(kModes), std::end(kModes), text);
  if (mode == std::end(kModes)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--mode is '", text, "', must be ", absl::StrJoin(kModes, " or ")));
  }
  return static_cast<Mode>(mode - std::begin(kModes));
}

absl::Status CheckConfigurations(const std::vector<std::string>& selectors,
                                 const std::vector<std::string>& views,
                                 const std::vector<std::string>& questions) {
  for (const std::string& selector : selectors) {
    OVERTURE_RETURN_IF_ERROR(v1::ParseSelector(selector).status());
  }
  for (const std::string& view : views) {
    if (view != kFull) OVERTURE_RETURN_IF_ERROR(ParseView(view).status());
  }
  for (const std::string& question : questions) {
    if (question != kLast && question != kHidden) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", question, "' in --questions must be last or hidden"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::string_view ToString(Mode mode) {
  return kModes[static_cast<size_t>(mode)];
}

Configuration PairOf(const Configuration& configuration) {
  return {kDense, kFull, configuration.question, 0};
}

std::string Label(const Configuration& configuration) {
  std::string label = configuration.selector;
  if (configuration.view != kFull) {
    absl::StrAppend(&label, " ", configuration.view);
  }
  if (configuration.question != kLast) {
    absl::StrAppend(&label, " ", configuration.question);
  }
  if (configuration.repeat > 0) absl::StrAppend(&label, " again");
  return label;
}

absl::StatusOr<Grid> ParseGrid(const GridFlags& flags) {
  OVERTURE_ASSIGN_OR_RETURN(const auto tasks, Items("tasks", flags.tasks));
  OVERTURE_ASSIGN_OR_RETURN(
      const auto lengths,
      Numbers<int64_t>("lengths", flags.lengths, 64, 1 << 21));
  OVERTURE_ASSIGN_OR_RETURN(const auto depths,
                            Numbers<double>("depths", flags.depths, 0, 1));
  OVERTURE_ASSIGN_OR_RETURN(auto selectors,
                            Items("selectors", flags.selectors));
  OVERTURE_ASSIGN_OR_RETURN(auto views, Items("views", flags.views));
  OVERTURE_ASSIGN_OR_RETURN(const auto questions,
                            Items("questions", flags.questions));
  OVERTURE_RETURN_IF_ERROR(CheckConfigurations(selectors, views, questions));
  if (flags.seeds < 1 || flags.turns < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("--seeds is ", flags.seeds, " and --turns ", flags.turns,
                     ", both must be at least 1"));
  }
  Grid grid{.turns = flags.turns};
  OVERTURE_ASSIGN_OR_RETURN(grid.mode, ParseMode(flags.mode));
  if (grid.mode == Mode::kSingle && grid.turns > 1) {
    return absl::InvalidArgumentError(
        "--turns needs --mode=multi_turn, multi_request or stored_view");
  }
  std::vector<std::string> known = TaskNames();
  known.push_back(kRealText);
  for (const std::string& task : tasks) {
    if (std::find(known.begin(), known.end(), task) == known.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("no task '", task, "' (--tasks); there are ",
                       absl::StrJoin(known, ", ")));
    }
  }
  const std::vector<std::string> just_last = {kLast};
  if (std::find(tasks.begin(), tasks.end(), kRealText) != tasks.end() &&
      (grid.mode != Mode::kSingle || questions != just_last)) {
    return absl::InvalidArgumentError(
        "--tasks=text asks nothing: --mode must be single and --questions "
        "last");
  }
  // In floating point: a product of integers may not fit.
  const double num_samples =
      static_cast<double>(flags.seeds) * static_cast<double>(tasks.size()) *
      static_cast<double>(lengths.size()) * static_cast<double>(depths.size());
  if (num_samples > kMaxSamples) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--seeds=", flags.seeds, " for ", tasks.size(), " --tasks, ",
        lengths.size(), " --lengths and ", depths.size(), " --depths makes ",
        num_samples, " samples, at most ", kMaxSamples, " are accepted"));
  }
  if (flags.first_seed > std::numeric_limits<int64_t>::max() - flags.seeds) {
    return absl::InvalidArgumentError(
        absl::StrCat("--first-seed=", flags.first_seed,
                     " with --seeds=", flags.seeds, " is beyond 64 bits"));
  }
  for (int64_t i = 0; i < flags.seeds; ++i) {
    for (const std::string& task : tasks) {
      for (const int64_t length : lengths) {
        for (const double depth : depths) {
          grid.samples.push_back({.task = task,
                                  .length = length,
                                  .depth = depth,
                                  .seed = flags.first_seed + i});
        }
      }
    }
  }
  // The pair of every sample.
  const auto to_front = [](std::vector<std::string>& items,
                           const std::string& first) {
    items.erase(std::remove(items.begin(), items.end(), first), items.end());
    items.insert(items.begin(), first);
  };
  to_front(selectors, kDense);
  const std::set<std::string> asked(views.begin(), views.end());
  to_front(views, kFull);
  for (const std::string& question : questions) {
    for (const std::string& selector : selectors) {
      for (const std::string& view : views) {
        if (selector != kDense && asked.count(view) == 0) continue;
        grid.configurations.push_back({selector, view, question, 0});
        if (flags.noise_floor && selector == kDense && view == kFull) {
          grid.configurations.push_back({selector, view, question, 1});
        }
      }
    }
  }
  return grid;
}

}  // namespace overture::clients
