// What people write on a command line, as the wire's messages, and back.
// Selectors: proto/selector_text.h.
// Thread-safe: no state. Errors: INVALID_ARGUMENT naming the text and what is
// accepted; the server checks the limits.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "overture/v1/common.pb.h"

namespace overture::clients {

// "snapkv:WINDOW,CAPACITY,POOLING,WIDTH"; pooling is "max" or "average";
// numbers may be left out from the right, as in "snapkv" or "snapkv:32,512".
absl::StatusOr<v1::ViewSpec> ParseView(absl::string_view text);

// "1,2,3", or "@path" of a file with ids separated by commas or space.
absl::StatusOr<std::vector<int32_t>> ParseTokens(absl::string_view text);

// The whole file; "-" is standard input. NOT_FOUND names the path.
absl::StatusOr<std::string> ReadTextFile(const std::string& path);

// "147.3 MB": powers of 1000.
std::string FormatBytes(int64_t bytes);
// "12.3 s", "45.6 ms".
std::string FormatSeconds(double seconds);

}  // namespace overture::clients
