// A tokenizer's data, whatever file it came from, and the tokenizer made of
// it. The readers of tokenizer.json and GGUF fill a TokenizerSpec; everything
// they have in common is behind BuildTokenizer.
//
// The digest is SHA-256 over, in this order (integers little endian):
//   "overture-tokenizer-1", u8 model kind
//   u32 number of steps, then u8 each (PreTokenizer::Step); u8 nfc
//   u8 ignore_merges, u8 fuse_unknown, i32 id of the unknown token; 0 and -1
//     if there is none or no byte is unknown
//   u32 number of ids added before a text, then u32 each; the same for after
//   u32 number of tokens, then by ascending id: u32 id, u8 flags, u32 length,
//     bytes that Decode() yields. Flags: 1 added token, 2 special,
//     4 normalized, 8 lstrip, 16 rstrip, 32 single_word; a token that is both
//     vocabulary and added counts as added
//   u32 number of merges, then by rank: u32 left id, u32 right id
// So one tokenizer has one digest in both formats, where GGUF can say it: GGUF
// has no flags but "special", and readers of GGUF take the others as false.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/added_tokens.h"
#include "engine/pretokenizer.h"
#include "engine/tokenizer.h"

namespace overture::engine {

struct TokenizerSpec {
  // The values enter the digest: do not renumber.
  enum class Model : uint8_t {
    kByteLevelBpe = 1,
    kWordLevel = 2,  // a piece is a token or unknown; decoding joins by spaces
  };
  struct Token {
    absl::string_view text;  // kByteLevelBpe: in the byte-level alphabet
    int32_t id = 0;
  };

  Model model = Model::kByteLevelBpe;
  // Texts are borrowed until BuildTokenizer returns.
  std::vector<Token> tokens;  // any order; added tokens may be among them
  std::vector<std::pair<absl::string_view, absl::string_view>> merges;
  std::vector<AddedToken> added;
  std::vector<PreTokenizer::Step> steps;
  bool nfc = false;  // normalise to NFC first
  bool ignore_merges = false;
  bool fuse_unknown = false;
  absl::string_view unknown;        // a token's text, or empty for none
  std::vector<int32_t> prefix_ids;  // with add_special_tokens
  std::vector<int32_t> suffix_ids;
  int64_t min_vocab_size = 0;  // ids below exist, if only as padding; no more
                               // than the file has entries
};

// Gaps between ids are legal, but each costs memory: ids stay below twice the
// number of tokens plus this.
inline constexpr int64_t kMaxUnusedIds = 1024;

// INVALID_ARGUMENT naming the token, id or merge that is malformed: two tokens
// with one id or one text, an id below 0 or too far above the number of
// tokens, a merge of or into no token, an unknown, prefix or suffix token that
// does not exist.
absl::StatusOr<std::unique_ptr<Tokenizer>> BuildTokenizer(
    const TokenizerSpec& spec);

// The bytes that `text` spells in the byte-level alphabet of GPT-2, in which
// every byte is one printable character; `text` itself and false if it has a
// character outside of it.
bool FromByteLevel(absl::string_view text, std::string* bytes);

}  // namespace overture::engine
