// Files that a program makes anew each time. Thread-safe: no state.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace overture::clients {

// Makes or replaces the file. It is written beside, as `path`.new, and renamed,
// so a failure leaves the old one; what is no regular file (a pipe, a link,
// /dev/stdout) is written in place. Errors: what the system says, naming the
// file.
absl::Status WriteFile(const std::string& path, absl::string_view text);

// Whether WriteFile could, as far as can be known before: for programs that
// compute for minutes first. Leaves nothing behind. INVALID_ARGUMENT if the
// path is empty, other errors as above.
absl::Status CheckWritable(const std::string& path);

}  // namespace overture::clients
