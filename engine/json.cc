#include "engine/json.h"

#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"

namespace overture::engine {
namespace {

// Brackets outside strings; whether the text is JSON at all is the parser's
// business.
bool DeeperThan(absl::string_view text, int limit) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > limit) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

absl::Status WrongType(absl::string_view key, const nlohmann::json& value,
                       absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(
      "'", key, "' is ", value.type_name(), ", expected ", expected));
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(absl::string_view text,
                                         absl::string_view what,
                                         DuplicateMembers duplicates) {
  if (DeeperThan(text, kMaxJsonDepth)) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": JSON is nested deeper than ", kMaxJsonDepth, " levels"));
  }
  try {
    if (duplicates == DuplicateMembers::kLastWins) {
      return nlohmann::json::parse(text.begin(), text.end());
    }
    std::vector<std::set<std::string>> open;  // names, by enclosing object
    std::string twice;
    using Event = nlohmann::json::parse_event_t;
    nlohmann::json root = nlohmann::json::parse(
        text.begin(), text.end(),
        [&open, &twice](int, Event event, nlohmann::json& value) {
          if (event == Event::object_start) open.emplace_back();
          if (event == Event::object_end) open.pop_back();
          if (event == Event::key) {
            std::string name = value.get<std::string>();
            if (open.back().count(name) > 0) twice = name;
            open.back().insert(std::move(name));
          }
          return true;
        });
    if (twice.empty()) return root;
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": '", twice.substr(0, 20), "' stands twice in one object"));
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(what, ": ", error.what()));
  }
}

absl::StatusOr<const nlohmann::json*> GetJsonMember(
    const nlohmann::json& object, absl::string_view key) {
  if (!object.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat("looking for '", key,
                                                   "' in ", object.type_name(),
                                                   ", expected an object"));
  }
  const auto it = object.find(std::string(key));
  if (it == object.end() || it->is_null()) {
    return absl::NotFoundError(absl::StrCat("'", key, "' is missing"));
  }
  return &*it;
}

bool HasJsonMember(const nlohmann::json& object, absl::string_view key) {
  return GetJsonMember(object, key).ok();
}

absl::StatusOr<int64_t> GetJsonInt(const nlohmann::json& object,
                                   absl::string_view key) {
  OVERTURE_ASSIGN_OR_RETURN(const nlohmann::json* value,
                            GetJsonMember(object, key));
  if (value->is_number_unsigned()) {
    const uint64_t number = value->get<uint64_t>();
    if (number <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return static_cast<int64_t>(number);
    }
  } else if (value->is_number_integer()) {
    return value->get<int64_t>();
  } else if (value->is_number_float()) {
    // Some writers put 8192.0; up to 2^53 a double holds the integer exactly.
    const double number = value->get<double>();
    const bool whole =
        number >= -0x1p53 && number <= 0x1p53 &&
        static_cast<double>(static_cast<int64_t>(number)) == number;
    if (whole) return static_cast<int64_t>(number);
  }
  return WrongType(key, *value, "an integer that fits int64");
}

absl::StatusOr<double> GetJsonDouble(const nlohmann::json& object,
                                     absl::string_view key) {
  OVERTURE_ASSIGN_OR_RETURN(const nlohmann::json* value,
                            GetJsonMember(object, key));
  if (!value->is_number()) return WrongType(key, *value, "a number");
  return value->get<double>();
}

absl::StatusOr<bool> GetJsonBool(const nlohmann::json& object,
                                 absl::string_view key) {
  OVERTURE_ASSIGN_OR_RETURN(const nlohmann::json* value,
                            GetJsonMember(object, key));
  if (!value->is_boolean()) return WrongType(key, *value, "true or false");
  return value->get<bool>();
}

absl::StatusOr<std::string> GetJsonString(const nlohmann::json& object,
                                          absl::string_view key) {
  OVERTURE_ASSIGN_OR_RETURN(const nlohmann::json* value,
                            GetJsonMember(object, key));
  if (!value->is_string()) return WrongType(key, *value, "a string");
  return value->get<std::string>();
}

}  // namespace overture::engine
