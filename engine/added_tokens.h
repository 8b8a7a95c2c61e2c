// Tokens that are cut out of the text before anything else, such as
// <|im_start|>: the longest at the leftmost place wins.
//
// Immutable after Create(), so thread-safe. A search takes time linear in the
// text times the longest token.
// Source: Hugging Face `tokenizers`, src/tokenizer/added_vocabulary.rs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace overture::engine {

struct AddedToken {
  int32_t id = 0;
  std::string content;       // its literal text, UTF-8
  bool special = false;      // Decode() leaves it out
  bool normalized = false;   // looked for after normalisation, not before
  bool lstrip = false;       // takes the white space before it along
  bool rstrip = false;       // ... and after it
  bool single_word = false;  // only where no word character touches it
  friend bool operator==(const AddedToken&, const AddedToken&) = default;
};

class AddedTokens {
 public:
  // Real ones end at about 40 bytes.
  static constexpr size_t kMaxContentBytes = 4096;

  // INVALID_ARGUMENT naming the token: empty or too long content, or two ids
  // for one content.
  static absl::StatusOr<AddedTokens> Create(
      absl::Span<const AddedToken> tokens);

  // Calls `on_text` with the text between matches, never empty, and `on_token`
  // with the id of each match, in order.
  void Split(absl::string_view text,
             absl::FunctionRef<void(absl::string_view)> on_text,
             absl::FunctionRef<void(int32_t)> on_token) const;

  // Id of the token with this content, or -1.
  int32_t Find(absl::string_view content) const;
  bool empty() const { return tokens_.empty(); }

 private:
  struct Match {
    int32_t token_idx = -1;  // into tokens_
    size_t size = 0;
  };
  Match LongestAt(absl::string_view text, size_t pos) const;

  std::vector<AddedToken> tokens_;
  absl::flat_hash_map<std::string, int32_t> by_content_;  // index into tokens_
  // A trie: (node, byte) to node; node 0 is the root.
  absl::flat_hash_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> ends_;  // per node, index into tokens_ or -1
  bool starts_[256] = {};      // bytes that some token starts with
};

}  // namespace overture::engine
