#include "base/log.h"

#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>

#include "absl/strings/str_format.h"

namespace overture {

std::string FormatLogLine(Severity severity, int64_t unix_millis,
                          absl::string_view message) {
  const std::time_t seconds = unix_millis / 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  const char letter = severity == Severity::kInfo      ? 'I'
                      : severity == Severity::kWarning ? 'W'
                                                       : 'E';
  std::string line = absl::StrFormat(
      "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ %c ", utc.tm_year + 1900,
      utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
      static_cast<int>(unix_millis % 1000), letter);
  // A message may quote outside bytes (a path, a client's field): one line, no
  // control characters, whatever it holds.
  for (char c : message) {
    line.push_back(static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c);
  }
  line.push_back('\n');
  return line;
}

void Log(Severity severity, absl::string_view message) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const std::string line = FormatLogLine(
      severity,
      std::chrono::duration_cast<std::chrono::milliseconds>(now).count(),
      message);
  // A log that cannot be written has nowhere to report it.
  (void)!std::fwrite(line.data(), 1, line.size(), stderr);
}

}  // namespace overture
