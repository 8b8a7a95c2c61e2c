// JSON text from outside, as nlohmann::json without its exceptions: parsing is
// limited in depth, and the getters return Status. Thread-safe: no state.
//
// Errors: INVALID_ARGUMENT naming what was parsed, or the key, its type and the
// expected one; NOT_FOUND for a key that is absent or null.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/or_default.h"
#include "nlohmann/json_fwd.hpp"

namespace overture::engine {

// Nesting of the deepest file we read (tokenizer.json) is below 10.
inline constexpr int kMaxJsonDepth = 64;

// `what` names the text in errors, e.g. its file. The result takes up to about
// 30 times the text's size (an object of many tiny members), so limit the text
// where it is not a whole file.
//
// Of members with the same name the last one wins, as most readers have it; or
// they are INVALID_ARGUMENT.
enum class DuplicateMembers { kLastWins, kRefused };
absl::StatusOr<nlohmann::json> ParseJson(
    absl::string_view text, absl::string_view what,
    DuplicateMembers duplicates = DuplicateMembers::kLastWins);

// Members of `object`; INVALID_ARGUMENT if it is no object. The pointer is
// never null and borrows from `object`.
absl::StatusOr<const nlohmann::json*> GetJsonMember(
    const nlohmann::json& object, absl::string_view key);
bool HasJsonMember(const nlohmann::json& object, absl::string_view key);
// A number without fraction that fits int64_t.
absl::StatusOr<int64_t> GetJsonInt(const nlohmann::json& object,
                                   absl::string_view key);
absl::StatusOr<double> GetJsonDouble(const nlohmann::json& object,
                                     absl::string_view key);
absl::StatusOr<bool> GetJsonBool(const nlohmann::json& object,
                                 absl::string_view key);
absl::StatusOr<std::string> GetJsonString(const nlohmann::json& object,
                                          absl::string_view key);

}  // namespace overture::engine
