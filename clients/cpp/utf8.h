// Text on the wire must be UTF-8: a server cannot parse a message with other
// bytes in a text field, and gRPC answers that with a bare UNIMPLEMENTED. So
// the client looks first. Thread-safe: no state.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace overture::clients {

// INVALID_ARGUMENT naming `field` and the first byte that is no well-formed
// UTF-8 (Unicode 15, table 3-7: no overlong forms, surrogates or code points
// above U+10FFFF).
absl::Status CheckUtf8(absl::string_view text, absl::string_view field);

}  // namespace overture::clients
