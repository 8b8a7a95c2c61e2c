#include "clients/tool/request_text.h"

#include <fstream>
#include <iostream>
#include <iterator>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace overture::clients {
namespace {

// "name:a,b" -> name and {a, b}.
struct NameAndArguments {
  absl::string_view name;
  std::vector<absl::string_view> arguments;
};

NameAndArguments Split(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  NameAndArguments result{.name = parts.first};
  if (!parts.second.empty()) {
    result.arguments = absl::StrSplit(parts.second, ',');
  }
  return result;
}

absl::StatusOr<int32_t> ParseSize(absl::string_view whole,
                                  absl::string_view text) {
  int32_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", text, "' in '", whole, "' must be an integer of at least 0"));
  }
  return value;
}

}  // namespace

absl::StatusOr<v1::ViewSpec> ParseView(absl::string_view text) {
  const auto [name, arguments] = Split(text);
  if (name != "snapkv" || arguments.size() > 4) {
    return absl::InvalidArgumentError(
        absl::StrCat("view '", text,
                     "' must be snapkv[:WINDOW[,CAPACITY[,POOLING[,WIDTH]]]]"));
  }
  v1::ViewSpec view;
  v1::ViewSpec::SnapKv* snap_kv = view.mutable_snap_kv();
  if (arguments.size() > 0) {
    OVERTURE_ASSIGN_OR_RETURN(int32_t window, ParseSize(text, arguments[0]));
    snap_kv->set_window(window);
  }
  if (arguments.size() > 1) {
    OVERTURE_ASSIGN_OR_RETURN(int32_t capacity, ParseSize(text, arguments[1]));
    snap_kv->set_capacity(capacity);
  }
  if (arguments.size() > 2) {
    if (arguments[2] == "max") {
      snap_kv->set_pooling(v1::ViewSpec::SnapKv::POOLING_MAX);
    } else if (arguments[2] == "average" || arguments[2] == "avg") {
      snap_kv->set_pooling(v1::ViewSpec::SnapKv::POOLING_AVERAGE);
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("pooling '", arguments[2], "' in '", text,
                       "' must be max or average"));
    }
  }
  if (arguments.size() > 3) {
    OVERTURE_ASSIGN_OR_RETURN(int32_t width, ParseSize(text, arguments[3]));
    snap_kv->set_pooling_width(width);
  }
  return view;
}

absl::StatusOr<std::vector<int32_t>> ParseTokens(absl::string_view text) {
  std::string from_file;
  if (absl::ConsumePrefix(&text, "@")) {
    OVERTURE_ASSIGN_OR_RETURN(from_file, ReadTextFile(std::string(text)));
    text = from_file;
  }
  std::vector<int32_t> ids;
  for (absl::string_view part :
       absl::StrSplit(text, absl::ByAnyChar(", \t\n\r"), absl::SkipEmpty())) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(part, &id)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "token ", ids.size(), " is '", part, "', must be an integer"));
    }
    ids.push_back(id);
  }
  return ids;
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  if (path == "-") {
    return std::string(std::istreambuf_iterator<char>(std::cin), {});
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path));
  }
  // Not by iterators over the buffer: those throw on a read error, such as a
  // folder's.
  std::string text;
  char buffer[1 << 16];
  while (file.read(buffer, sizeof(buffer)) || file.gcount() > 0) {
    text.append(buffer, static_cast<size_t>(file.gcount()));
  }
  if (file.bad()) {
    return absl::NotFoundError(
        absl::StrCat("cannot read ", path, ": a folder, or a read error"));
  }
  return text;
}

std::string FormatBytes(int64_t bytes) {
  if (bytes < 1000) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / 1000;
  const char* unit = "kB";
  for (const char* next : {"MB", "GB", "TB"}) {
    if (value < 1000) break;
    value /= 1000;
    unit = next;
  }
  return absl::StrFormat("%.1f %s", value, unit);
}

std::string FormatSeconds(double seconds) {
  if (seconds < 1) return absl::StrFormat("%.1f ms", seconds * 1000);
  return absl::StrFormat("%.2f s", seconds);
}

}  // namespace overture::clients
