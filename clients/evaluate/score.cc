#include "clients/evaluate/score.h"

#include <algorithm>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"

namespace overture::clients {
namespace {

std::vector<std::string> Words(absl::string_view text) {
  std::vector<std::string> words;
  for (absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" \n\t\r"), absl::SkipEmpty())) {
    // The digits of kWords are "<d4>": their brackets are no punctuation.
    const auto is_end = [](char c) {
      return absl::ascii_ispunct(static_cast<unsigned char>(c)) && c != '<' &&
             c != '>';
    };
    while (!word.empty() && is_end(word.front())) word.remove_prefix(1);
    while (!word.empty() && is_end(word.back())) word.remove_suffix(1);
    if (!word.empty()) words.push_back(absl::AsciiStrToLower(word));
  }
  return words;
}

}  // namespace

bool ContainsWords(absl::string_view text, absl::string_view part) {
  const std::vector<std::string> all = Words(text);
  const std::vector<std::string> wanted = Words(part);
  return std::search(all.begin(), all.end(), wanted.begin(), wanted.end()) !=
         all.end();
}

Score ScoreAnswer(Spelling spelling, const Turn& turn,
                  absl::Span<const int32_t> ids, absl::string_view text) {
  Score score;
  int64_t contained = 0;
  for (const std::string& part : turn.parts) {
    contained += ContainsWords(text, part) ? 1 : 0;
  }
  score.share = static_cast<double>(contained) /
                static_cast<double>(std::max<size_t>(1, turn.parts.size()));
  if (spelling == Spelling::kText) {
    score.right = score.share == 1;
    score.tail = score.right;
    return score;
  }
  const absl::Span<const int32_t> gold = turn.gold;
  if (turn.any_order) {  // of parts that are one token each
    score.right =
        std::is_permutation(ids.begin(), ids.end(), gold.begin(), gold.end()) &&
        ids.back() == gold.back();
    score.tail = score.right;
    return score;
  }
  score.right = ids == gold;
  score.tail =
      !ids.empty() && !gold.empty() && ids.subspan(1) == gold.subspan(1);
  return score;
}

}  // namespace overture::clients
