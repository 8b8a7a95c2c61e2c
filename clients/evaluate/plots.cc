#include "clients/evaluate/plots.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "clients/evaluate/summary.h"

namespace overture::clients {
namespace {

// Distinguishable without colour vision (Okabe and Ito).
constexpr absl::string_view kColours[] = {"#0072b2", "#d55e00", "#009e73",
                                          "#cc79a7", "#e69f00", "#56b4e9"};

std::string Escaped(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}});
}

absl::string_view Colour(size_t series) {
  return kColours[series % std::size(kColours)];
}

// `anchor`: start, middle or end.
std::string Text(double x, double y, absl::string_view anchor,
                 absl::string_view text) {
  return absl::StrFormat(
      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y,
      std::string(anchor), Escaped(text));
}

std::string Document(double width, double height, absl::string_view body) {
  return absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" "
      "height=\"%.0f\" font-family=\"sans-serif\" font-size=\"11\">\n"
      "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n%s</svg>\n",
      width, height, std::string(body));
}

// Where the one panel of a plot lies.
constexpr double kLeft = 50;
constexpr double kTop = 20;
constexpr double kWidth = 460;
constexpr double kHeight = 300;

// Shares of right answers upwards; `x_labels` at equal distances, two or more.
std::string Axes(const std::vector<std::string>& x_labels,
                 absl::string_view x_title) {
  std::string body;
  for (size_t i = 0; i < x_labels.size(); ++i) {
    const double x = kLeft + kWidth * static_cast<double>(i) /
                                 static_cast<double>(x_labels.size() - 1);
    absl::StrAppendFormat(&body,
                          "<path d=\"M%.1f %.1fV%.1f\" stroke=\"#ddd\"/>\n", x,
                          kTop, kTop + kHeight);
    absl::StrAppend(&body, Text(x, kTop + kHeight + 15, "middle", x_labels[i]));
  }
  for (int i = 0; i <= 4; ++i) {
    const double y = kTop + kHeight * (1 - i / 4.0);
    absl::StrAppendFormat(&body,
                          "<path d=\"M%.1f %.1fH%.1f\" stroke=\"#ddd\"/>\n",
                          kLeft, y, kLeft + kWidth);
    absl::StrAppend(
        &body, Text(kLeft - 5, y + 4, "end", absl::StrFormat("%d%%", 25 * i)));
  }
  absl::StrAppend(
      &body, Text(kLeft + kWidth / 2, kTop + kHeight + 32, "middle", x_title),
      Text(kLeft, kTop - 7, "start", "right answers"));
  return body;
}

// The plot with a name behind each colour.
std::string WithLegend(std::string body,
                       const std::vector<std::string>& series) {
  size_t longest = 0;
  for (size_t i = 0; i < series.size(); ++i) {
    const double y = kTop + 10 + 16 * static_cast<double>(i);
    absl::StrAppendFormat(
        &body, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"%s\"/>\n",
        kLeft + kWidth + 20, y, std::string(Colour(i)));
    absl::StrAppend(&body,
                    Text(kLeft + kWidth + 30, y + 4, "start", series[i]));
    longest = std::max(longest, series[i].size());
  }
  // A letter is at most 0.6 of the font's 11 pixels wide, on average.
  return Document(
      kLeft + kWidth + 40 + 6.6 * static_cast<double>(longest),
      kTop + std::max(kHeight, 16.0 * static_cast<double>(series.size())) + 45,
      body);
}

// Red for 0, pale for a half, blue for 1.
std::string Heat(double share) {
  const auto mix = [share](double low, double middle, double high) {
    const double value = share < 0.5
                             ? low + (middle - low) * 2 * share
                             : middle + (high - middle) * (2 * share - 1);
    return static_cast<int>(std::lround(value));
  };
  return absl::StrFormat("#%02x%02x%02x", mix(213, 245, 86), mix(94, 240, 180),
                         mix(0, 220, 233));
}

std::vector<std::string> TasksOf(absl::Span<const Record> records) {
  std::set<std::string> tasks;
  for (const Record& record : records) tasks.insert(record.sample.task);
  return {tasks.begin(), tasks.end()};
}

std::string PanelTitle(absl::string_view task,
                       const Configuration& configuration) {
  return absl::StrCat(task, ": ", Label(configuration));
}

}  // namespace

std::string HeatMapSvg(absl::Span<const Record> records) {
  constexpr double kCellWidth = 44;
  constexpr double kCellHeight = 20;
  constexpr double kLeft = 40;  // room for depths
  constexpr double kTop = 34;   // room for a title and lengths
  std::set<int64_t> lengths;
  std::set<double> depths;
  for (const Record& record : records) {
    lengths.insert(record.sample.length);
    depths.insert(record.sample.depth);
  }
  const std::vector<std::string> tasks = TasksOf(records);
  const std::vector<Configuration> configurations = ConfigurationsOf(records);
  const Pairs pairs(records);
  size_t longest = 0;  // of the panels' titles, characters
  for (const std::string& task : tasks) {
    for (const Configuration& configuration : configurations) {
      longest = std::max(longest, PanelTitle(task, configuration).size());
    }
  }
  // A letter is at most 0.6 of the font's 11 pixels wide, on average.
  const double panel_width =
      20 + std::max(kLeft + kCellWidth * static_cast<double>(lengths.size()),
                    6.6 * static_cast<double>(longest));
  const double panel_height =
      kTop + kCellHeight * static_cast<double>(depths.size()) + 18;
  std::string body;
  for (size_t row = 0; row < configurations.size(); ++row) {
    for (size_t column = 0; column < tasks.size(); ++column) {
      const double x0 = panel_width * static_cast<double>(column);
      const double y0 = panel_height * static_cast<double>(row);
      absl::StrAppend(&body, Text(x0 + 4, y0 + 12, "start",
                                  absl::StrCat(tasks[column], ": ",
                                               Label(configurations[row]))));
      double x = x0 + kLeft;
      for (const int64_t length : lengths) {
        absl::StrAppend(&body, Text(x + kCellWidth / 2, y0 + kTop - 6, "middle",
                                    absl::StrCat(length)));
        double y = y0 + kTop;
        for (const double depth : depths) {
          if (length == *lengths.begin()) {
            absl::StrAppend(
                &body, Text(x0 + kLeft - 4, y + 14, "end", DepthText(depth)));
          }
          const Tally tally =
              pairs.Count(configurations[row], [&](const Record& record) {
                return record.sample.task == tasks[column] &&
                       record.sample.length == length &&
                       record.sample.depth == depth;
              });
          if (tally.samples > 0) {
            const double share = static_cast<double>(tally.right) /
                                 static_cast<double>(tally.samples);
            absl::StrAppendFormat(
                &body,
                "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.0f\" height=\"%.0f\" "
                "fill=\"%s\" stroke=\"white\"/>\n",
                x, y, kCellWidth, kCellHeight, Heat(share));
            absl::StrAppend(&body, Text(x + kCellWidth / 2, y + 14, "middle",
                                        absl::StrFormat("%.0f", 100 * share)));
          }
          y += kCellHeight;
        }
        x += kCellWidth;
      }
    }
  }
  return Document(panel_width * static_cast<double>(tasks.size()),
                  panel_height * static_cast<double>(configurations.size()),
                  body);
}

std::string AccuracySvg(absl::Span<const Record> records, CostAxis axis) {
  const Pairs pairs(records);
  const std::vector<std::string> tasks = TasksOf(records);
  std::string body;
  absl::StrAppend(&body,
                  Axes({"0%", "25%", "50%", "75%", "100%"},
                       axis == CostAxis::kDensity
                           ? "attended pairs over causal pairs"
                           : "KV bytes received over those of the full KV"));
  for (const Configuration& configuration : ConfigurationsOf(records)) {
    for (size_t t = 0; t < tasks.size(); ++t) {
      const Tally tally = pairs.Count(configuration, [&](const Record& record) {
        return record.sample.task == tasks[t];
      });
      if (tally.samples == 0) continue;
      const double cost =
          axis == CostAxis::kDensity ? tally.density : tally.kv_share;
      const double share =
          static_cast<double>(tally.right) / static_cast<double>(tally.samples);
      absl::StrAppendFormat(
          &body,
          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"5\" fill=\"%s\" "
          "fill-opacity=\"0.7\"><title>%s, %s: %.1f%% of %d</title>"
          "</circle>\n",
          kLeft + kWidth * std::min(1.0, cost), kTop + kHeight * (1 - share),
          std::string(Colour(t)), Escaped(tasks[t]),
          Escaped(Label(configuration)), 100 * share, tally.samples);
    }
  }
  return WithLegend(body, tasks);
}

std::string TurnsSvg(absl::Span<const Record> records) {
  const Pairs pairs(records);
  int num_turns = 0;
  for (const Record& record : records) {
    if (record.mode != Mode::kSingle) {
      num_turns = std::max(num_turns, record.turn + 1);
    }
  }
  if (num_turns < 2) return "";
  std::vector<std::string> turns;
  for (int t = 1; t <= num_turns; ++t) turns.push_back(absl::StrCat(t));
  std::string body = Axes(turns, "turn");
  std::vector<std::string> series;
  for (const Mode mode :
       {Mode::kMultiTurn, Mode::kMultiRequest, Mode::kStoredView}) {
    for (const Configuration& configuration : ConfigurationsOf(records)) {
      std::string path;
      for (int t = 0; t < num_turns; ++t) {
        const Tally tally =
            pairs.Count(configuration, [mode, t](const Record& record) {
              return record.mode == mode && record.turn == t;
            });
        if (tally.samples == 0) continue;
        absl::StrAppendFormat(
            &path, "%s%.1f %.1f", path.empty() ? "M" : "L",
            kLeft + kWidth * t / (num_turns - 1),
            kTop + kHeight * (1 - static_cast<double>(tally.right) /
                                      static_cast<double>(tally.samples)));
      }
      if (path.empty()) continue;
      absl::StrAppendFormat(
          &body,
          "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"%s/>\n",
          path, std::string(Colour(series.size())),
          // Colours come round again after as many.
          series.size() < std::size(kColours) ? ""
                                              : " stroke-dasharray=\"6 4\"");
      series.push_back(
          absl::StrCat(ToString(mode), ": ", Label(configuration)));
    }
  }
  return WithLegend(body, series);
}

}  // namespace overture::clients
