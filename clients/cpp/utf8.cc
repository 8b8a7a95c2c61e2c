#include "clients/cpp/utf8.h"

#include <cstddef>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace overture::clients {
namespace {

// Bytes of the well-formed character at `pos`, 0 if there is none.
size_t CharacterBytes(absl::string_view text, size_t pos) {
  const auto byte = [&](size_t i) -> uint8_t {
    return pos + i < text.size() ? static_cast<uint8_t>(text[pos + i]) : 0;
  };
  const uint8_t lead = byte(0);
  if (lead < 0x80) return 1;
  // The second byte's range is where overlong forms, surrogates and code points
  // above U+10FFFF are excluded.
  uint8_t least = 0x80;
  uint8_t most = 0xbf;
  size_t length = 0;
  if (lead >= 0xc2 && lead <= 0xdf) {
    length = 2;
  } else if (lead >= 0xe0 && lead <= 0xef) {
    length = 3;
    if (lead == 0xe0) least = 0xa0;
    if (lead == 0xed) most = 0x9f;
  } else if (lead >= 0xf0 && lead <= 0xf4) {
    length = 4;
    if (lead == 0xf0) least = 0x90;
    if (lead == 0xf4) most = 0x8f;
  } else {
    return 0;
  }
  if (byte(1) < least || byte(1) > most) return 0;
  for (size_t i = 2; i < length; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  return length;
}

}  // namespace

absl::Status CheckUtf8(absl::string_view text, absl::string_view field) {
  for (size_t pos = 0; pos < text.size();) {
    const size_t length = CharacterBytes(text, pos);
    if (length == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, ": byte ", pos, " is 0x",
          absl::Hex(static_cast<uint8_t>(text[pos]), absl::kZeroPad2),
          ", which is not UTF-8"));
    }
    pos += length;
  }
  return absl::OkStatus();
}

}  // namespace overture::clients
