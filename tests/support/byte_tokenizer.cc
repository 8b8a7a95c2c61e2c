#include "tests/support/byte_tokenizer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "engine/tokenizer_json.h"
#include "engine/unicode.h"

namespace overture::testing {

std::string ByteTokenizerJson() {
  std::string vocab;
  char32_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool prints = (byte >= 33 && byte <= 126) ||
                        (byte >= 161 && byte <= 172) || byte >= 174;
    std::string text;
    engine::AppendUtf8(prints ? static_cast<char32_t>(byte) : next++, &text);
    const bool escape = byte == '"' || byte == '\\';
    absl::StrAppend(&vocab, "\"", escape ? "\\" : "", text, "\": ", byte, ", ");
  }
  // U+0120 is the space of the byte-level alphabet.
  return absl::StrCat(
      R"({"added_tokens": [{"id": 259, "content": "<|end|>", "special": true}],
          "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
          "decoder": {"type": "ByteLevel"},
          "model": {"type": "BPE", "vocab": {)",
      vocab, "\"th\": 256, \"the\": 257, \"\u0120the\": 258}, ",
      "\"merges\": [\"t h\", \"th e\", \"\u0120 the\"]}}");
}

std::unique_ptr<engine::Tokenizer> MakeByteTokenizer() {
  auto tokenizer =
      engine::TokenizerFromJson(ByteTokenizerJson(), "byte tokenizer");
  OVERTURE_CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

}  // namespace overture::testing
