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

}  // namespace overture::clients
