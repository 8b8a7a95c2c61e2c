// Log lines for people, on standard error:
//
//   2026-01-31T12:00:00.123Z W cache: dropped 3 spans without payload
//
// Thread-safe; one write per line, so lines never mix. Never log tokens, KV or
// credentials.
#pragma once

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace overture {

enum class Severity { kInfo, kWarning, kError };

void Log(Severity severity, absl::string_view message);

// The line that Log writes at `unix_millis`, newline included.
std::string FormatLogLine(Severity severity, int64_t unix_millis,
                          absl::string_view message);

}  // namespace overture
