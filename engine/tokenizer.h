// Byte-level BPE as Hugging Face `tokenizers` does it: added (special) tokens
// are cut out first, the rest is pre-tokenised by the model's rule, each piece
// is merged by rank. Immutable after loading, so thread-safe. A word-level
// tokenizer.json is read as well: its tokens are words between white space.
//
// Errors of the loaders: INVALID_ARGUMENT for malformed or inconsistent data
// (names the key or index), UNIMPLEMENTED for another kind of tokenizer or an
// unknown pre-tokenizer (names it and the supported ones).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/hash.h"

namespace overture::engine {

class Tokenizer {
 public:
  // `path` as for LoadModelFiles: a .gguf file (tokenizer.ggml.* keys) or a
  // folder with tokenizer.json.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(
      absl::string_view path);

  virtual ~Tokenizer() = default;

  struct EncodeOptions {
    // Adds what the model's post-processor adds (a BOS for Llama-3, nothing
    // for SmolLM2).
    bool add_special_tokens = false;
    // Recognises added tokens such as <|im_start|> in the text. Switch off for
    // text that comes from an untrusted user inside a chat template.
    bool parse_special = true;
  };

  // Any bytes are accepted; invalid UTF-8 is encoded byte by byte.
  virtual std::vector<int32_t> Encode(absl::string_view text,
                                      const EncodeOptions& options) const = 0;

  // Bytes of the tokens, concatenated; may end inside a UTF-8 sequence (see
  // StreamDecoder). Words are joined by spaces. Special tokens yield nothing
  // unless `keep_special`, nor do ids that only pad the vocabulary.
  // OUT_OF_RANGE names the first id outside [0, vocab_size()).
  virtual absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids,
                                             bool keep_special) const = 0;

  // One above the largest id.
  virtual int64_t vocab_size() const = 0;

  // Id of a token by its decoded text ("<|im_end|>", " the"), or -1.
  virtual int32_t TokenId(absl::string_view text) const = 0;

  // SHA-256 over vocabulary, merges, added tokens and rules, independent of
  // the file format they came from. Part of a cache root.
  virtual const Sha256Digest& digest() const = 0;
};

}  // namespace overture::engine
