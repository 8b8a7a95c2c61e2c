// How tasks are written down. The same task in two spellings:
//
//   kWords  one token a word: the vocabulary of the retrieval model
//           (bench/retrieval_model/tasks.py). Lower case, punctuation apart,
//           digits "<d7>" and bytes "0a" one token each, "<nl>" for a new line.
//   kText   English for any tokenizer.
//
// Pieces of kText carry their own white space: a piece that continues a line
// starts with a space, so that tokens of pieces are tokens of the whole.
// Thread-safe: no state.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "clients/evaluate/sample_random.h"

namespace overture::clients {

enum class Spelling { kWords, kText };

// A pronounceable word, different for every i in [0, kNumFreeWords); those of
// the retrieval model's vocabulary, in order.
inline constexpr int64_t kNumFreeWords = 1648;
std::string FreeWord(int64_t i);

// "<d4> <d7>" or "47".
std::string SpellDigits(Spelling spelling, absl::Span<const int64_t> digits);
// 16 bytes: "0a ff ..." or as a UUID is written.
std::string SpellBytes(Spelling spelling, absl::Span<const int64_t> bytes);
// A name of two words: "fodi besa" or "fodi-besa".
std::string SpellName(Spelling spelling, int64_t first, int64_t second);

// The line that InfiniteBench's and RULER's noise repeats.
std::string NoiseLine(Spelling spelling);
// One sentence of prose. kWords: 15 words of a Markov chain in which each word
// has eight followers by arithmetic, and a full stop. kText: an English
// sentence from a small grammar.
std::string ProseSentence(Spelling spelling, SampleRandom& random);

// `text` with each "{name}" replaced. Names that are not given stay.
using Replacements = std::vector<std::pair<std::string, std::string>>;
std::string Fill(absl::string_view text, const Replacements& values);

}  // namespace overture::clients
