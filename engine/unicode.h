// The little Unicode that the tokenizer rules need: strict UTF-8 and the three
// classes their patterns name. Stateless, thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace overture::engine {

enum class CharClass : uint8_t {
  kOther = 0,
  kLetter = 1,  // \p{L}
  kNumber = 2,  // \p{N}
  kSpace = 3,   // \s, which is the White_Space property
};

// Values above U+10FFFF are kOther.
CharClass ClassOf(char32_t code);

// \w: letters, decimal digits, marks, joiners and connectors such as '_'.
bool IsWordChar(char32_t code);

struct DecodedChar {
  char32_t code = 0;
  // Bytes taken; 0 at the end of the text and where no well-formed sequence
  // starts (overlong forms and surrogates are not well-formed).
  size_t size = 0;
};
DecodedChar DecodeUtf8(absl::string_view text, size_t pos);

// Decodes the character that ends at `end` (exclusive); size 0 as above.
DecodedChar DecodeUtf8Before(absl::string_view text, size_t end);

// REQUIRES: code is a Unicode scalar value.
void AppendUtf8(char32_t code, std::string* out);

// Length of the longest prefix that is well-formed UTF-8.
size_t ValidUtf8Prefix(absl::string_view text);

// Length of the longest prefix that does not end inside a sequence that more
// bytes could complete. Ill-formed bytes count as complete.
size_t CompleteUtf8Prefix(absl::string_view text);

// Well-formed UTF-8: each ill-formed stretch becomes U+FFFD, one for every
// longest prefix of a well-formed sequence (as the Unicode Standard, section
// 3.9, recommends and Rust, Python and browsers do).
std::string ReplaceIllFormed(absl::string_view text);

}  // namespace overture::engine
