// Unicode normalisation form C. Stateless, thread-safe, linear in the text
// (a run of n combining marks costs n log n).
// Source: Unicode Standard Annex 15; Hangul by arithmetic, section 3.12 of the
// core specification. Data: unicode_nfc.inc.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace overture::engine {

// Quick and sufficient: true only if ToNfc(text) == text. False for some texts
// that ToNfc() leaves alone.
bool IsSurelyNfc(absl::string_view text);

// REQUIRES: `text` is well-formed UTF-8 (stops at the first ill-formed byte).
std::string ToNfc(absl::string_view text);

}  // namespace overture::engine
