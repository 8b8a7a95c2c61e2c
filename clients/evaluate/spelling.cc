#include "clients/evaluate/spelling.h"

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"

namespace overture::clients {
namespace {

// Rank j of the eight words that may follow `word`: a 32-bit mix, so that any
// language can rebuild the table.
int64_t Follower(int64_t word, int64_t j) {
  uint32_t h = static_cast<uint32_t>(word * 8 + j + 1) * 2654435761u;
  h = (h ^ (h >> 15)) * 2246822519u;
  return (h ^ (h >> 13)) % kNumFreeWords;
}

std::string MarkovSentence(SampleRandom& random) {
  constexpr std::array<double, 8> kCumulative = {.35, .55, .68, .78,
                                                 .86, .92, .97, 1.0};
  int64_t word = random.Below(kNumFreeWords);
  std::string sentence = FreeWord(word);
  for (int i = 1; i < 15; ++i) {
    const double u = random.Uniform();
    int64_t rank = 0;
    while (rank < 7 && u > kCumulative[static_cast<size_t>(rank)]) ++rank;
    word = random.Uniform() < 0.1 ? random.Below(kNumFreeWords)
                                  : Follower(word, rank);
    absl::StrAppend(&sentence, " ", FreeWord(word));
  }
  return sentence + " .";
}

template <size_t N>
absl::string_view Pick(const std::array<absl::string_view, N>& words,
                       SampleRandom& random) {
  return words[static_cast<size_t>(random.Below(N))];
}

std::string EnglishSentence(SampleRandom& random) {
  constexpr std::array<absl::string_view, 16> kWho = {
      "The old harbour",  "A quiet gardener",  "The night train",
      "My neighbour",     "The river",         "A distant bell",
      "The library",      "A young painter",   "The mountain road",
      "Our teacher",      "The winter market", "A passing ship",
      "The stone bridge", "The baker",         "A tired traveller",
      "The village"};
  constexpr std::array<absl::string_view, 16> kDoes = {
      "keeps",   "remembers", "follows", "waits for", "carries", "watches",
      "answers", "paints",    "repairs", "forgets",   "crosses", "describes",
      "gathers", "welcomes",  "leaves",  "studies"};
  constexpr std::array<absl::string_view, 16> kWhat = {
      "the early light", "a letter",       "the long road", "its own silence",
      "the first snow",  "an open window", "old songs",     "a careful plan",
      "the next ferry",  "some bread",     "the far hills", "a broken clock",
      "every visitor",   "the evening",    "a small map",   "wild flowers"};
  constexpr std::array<absl::string_view, 12> kWhen = {
      "before the rain",     "in the morning",   "without a word",
      "year after year",     "near the station", "as if nothing had changed",
      "when the wind turns", "after supper",     "with great patience",
      "on the way home",     "until it is late", "in the middle of summer"};
  return absl::StrCat(" ", Pick(kWho, random), " ", Pick(kDoes, random), " ",
                      Pick(kWhat, random), " ", Pick(kWhen, random), ".");
}

}  // namespace

std::string FreeWord(int64_t i) {
  OVERTURE_CHECK(i >= 0 && i < kNumFreeWords);
  constexpr absl::string_view kConsonants = "bdfgklmnprstvz";
  constexpr absl::string_view kVowels = "aeiou";
  const auto n = static_cast<size_t>(i * 2654435761 % 4900);
  return {kConsonants[n % 14], kVowels[n / 14 % 5], kConsonants[n / 70 % 14],
          kVowels[n / 980 % 5]};
}

std::string SpellDigits(Spelling spelling, absl::Span<const int64_t> digits) {
  if (spelling == Spelling::kText) return absl::StrJoin(digits, "");
  return absl::StrJoin(digits, " ", [](std::string* out, int64_t digit) {
    absl::StrAppend(out, "<d", digit, ">");
  });
}

std::string SpellBytes(Spelling spelling, absl::Span<const int64_t> bytes) {
  OVERTURE_CHECK(bytes.size() == 16);
  std::string out;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const bool gap = spelling == Spelling::kWords
                         ? i > 0
                         : i == 4 || i == 6 || i == 8 || i == 10;
    if (gap) out += spelling == Spelling::kWords ? " " : "-";
    absl::StrAppendFormat(&out, "%02x", bytes[i]);
  }
  return out;
}

std::string SpellName(Spelling spelling, int64_t first, int64_t second) {
  return absl::StrCat(FreeWord(first), spelling == Spelling::kWords ? " " : "-",
                      FreeWord(second));
}

std::string NoiseLine(Spelling spelling) {
  return spelling == Spelling::kWords
             ? "the grass is green . the sky is blue . the sun is yellow . "
               "here we go . there and back again . <nl>"
             : "The grass is green. The sky is blue. The sun is yellow. Here "
               "we go. There and back again.\n";
}

std::string ProseSentence(Spelling spelling, SampleRandom& random) {
  return spelling == Spelling::kWords ? MarkovSentence(random)
                                      : EnglishSentence(random);
}

std::string Fill(absl::string_view text, const Replacements& values) {
  std::vector<std::pair<std::string, std::string>> braced;
  for (const auto& [name, value] : values) {
    braced.emplace_back(absl::StrCat("{", name, "}"), value);
  }
  return absl::StrReplaceAll(text, braced);
}

}  // namespace overture::clients
