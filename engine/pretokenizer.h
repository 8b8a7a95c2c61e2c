// Cuts text into the pieces inside which BPE merges: the published patterns of
// GPT-2, Llama-3 and Qwen2 and the small rules that go with them.
//
// The patterns are scanned by hand, not by a regular expression engine. A scan
// cannot fail, so Encode() needs no answer to a match limit; the character
// classes are our own table, so that ids do not change with a system library
// (PCRE2 counts U+180E as white space, which Hugging Face does not); and every
// rule takes time linear in the text. The tests hold the scanners against
// PCRE2 on random text.
//
// Immutable, thread-safe. Splitting allocates nothing except for kPrefixSpace.
// Source: Hugging Face `tokenizers`, src/pre_tokenizers, and the
// tokenizer.json files of the four models.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"

namespace overture::engine {

// The published patterns, as they stand in tokenizer.json files.
inline constexpr absl::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+)"
    R"(|\s+(?!\S)|\s+)";
inline constexpr absl::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr absl::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

class PreTokenizer {
 public:
  // Each step cuts every piece of the step before. The values enter the
  // tokenizer's digest: do not renumber.
  // NOTE: all steps see Unicode 16. In the source Digits alone knows the 13
  // numbers that Unicode 17 adds.
  enum class Step : uint8_t {
    kGpt2 = 1,         // kGpt2Pattern
    kLlama3 = 2,       // kLlama3Pattern
    kQwen2 = 3,        // kQwen2Pattern
    kDigits = 4,       // every \p{N} alone
    kDigitRuns = 5,    // every run of \p{N} alone
    kPrefixSpace = 6,  // puts a space before a piece that starts with none
    kWhitespace = 7,   // cuts at white space and drops it
  };
  using Sink = absl::FunctionRef<void(absl::string_view piece)>;

  PreTokenizer() = default;
  explicit PreTokenizer(std::vector<Step> steps) : steps_(std::move(steps)) {}

  // Calls `sink` with each piece in order, none of them empty; a piece is
  // valid during its call. REQUIRES: `text` is well-formed UTF-8 (ill-formed
  // text is cut arbitrarily, but safely and without loss).
  void Split(absl::string_view text, Sink sink) const {
    SplitFrom(0, text, sink);
  }

  const std::vector<Step>& steps() const { return steps_; }

 private:
  void SplitFrom(size_t step_idx, absl::string_view text, Sink sink) const;

  std::vector<Step> steps_;
};

}  // namespace overture::engine
