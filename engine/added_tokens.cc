#include "engine/added_tokens.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "engine/unicode.h"

namespace overture::engine {
namespace {

bool IsWord(const DecodedChar& c) { return c.size > 0 && IsWordChar(c.code); }

bool IsSpace(const DecodedChar& c) {
  return c.size > 0 && ClassOf(c.code) == CharClass::kSpace;
}

}  // namespace

absl::StatusOr<AddedTokens> AddedTokens::Create(
    absl::Span<const AddedToken> tokens) {
  AddedTokens added;
  added.ends_.push_back(-1);
  for (const AddedToken& token : tokens) {
    if (token.content.empty() || token.content.size() > kMaxContentBytes) {
      return absl::InvalidArgumentError(absl::StrCat(
          "added token ", token.id, ": content of ", token.content.size(),
          " bytes; limits are 1 and ", kMaxContentBytes));
    }
    const auto token_idx = static_cast<int32_t>(added.tokens_.size());
    const auto [it, is_new] =
        added.by_content_.emplace(token.content, token_idx);
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat(
          "added tokens ", added.tokens_[it->second].id, " and ", token.id,
          " have the same content \"", token.content, "\""));
    }
    added.tokens_.push_back(token);
    uint32_t node = 0;
    for (const char c : token.content) {
      const auto byte = static_cast<unsigned char>(c);
      const auto [edge, is_new_edge] =
          added.edges_.emplace(uint64_t{node} << 8 | byte,
                               static_cast<uint32_t>(added.ends_.size()));
      if (is_new_edge) added.ends_.push_back(-1);
      node = edge->second;
    }
    added.ends_[node] = token_idx;
    added.starts_[static_cast<unsigned char>(token.content[0])] = true;
  }
  return added;
}

AddedTokens::Match AddedTokens::LongestAt(absl::string_view text,
                                          size_t pos) const {
  Match match;
  uint32_t node = 0;
  for (size_t i = pos; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto edge = edges_.find(uint64_t{node} << 8 | byte);
    if (edge == edges_.end()) break;
    node = edge->second;
    if (ends_[node] >= 0) match = {ends_[node], i + 1 - pos};
  }
  return match;
}

void AddedTokens::Split(absl::string_view text,
                        absl::FunctionRef<void(absl::string_view)> on_text,
                        absl::FunctionRef<void(int32_t)> on_token) const {
  size_t done = 0;  // everything before was reported
  size_t pos = 0;
  while (!tokens_.empty() && pos < text.size()) {
    if (!starts_[static_cast<unsigned char>(text[pos])]) {
      ++pos;
      continue;
    }
    const Match match = LongestAt(text, pos);
    if (match.token_idx < 0) {
      ++pos;
      continue;
    }
    const AddedToken& token = tokens_[match.token_idx];
    size_t begin = pos;
    size_t end = pos + match.size;
    pos = end;
    if (token.single_word && (IsWord(DecodeUtf8Before(text, begin)) ||
                              IsWord(DecodeUtf8(text, end)))) {
      continue;
    }
    if (token.lstrip) {
      while (begin > done) {
        const DecodedChar c = DecodeUtf8Before(text, begin);
        if (!IsSpace(c)) break;
        begin -= c.size;
      }
      begin = std::max(begin, done);
    }
    if (token.rstrip) {
      for (;;) {
        const DecodedChar c = DecodeUtf8(text, end);
        if (!IsSpace(c)) break;
        end += c.size;
      }
      pos = end;
    }
    if (begin > done) on_text(text.substr(done, begin - done));
    on_token(token.id);
    done = end;
  }
  if (done < text.size()) on_text(text.substr(done));
}

int32_t AddedTokens::Find(absl::string_view content) const {
  const auto it = by_content_.find(content);
  return it == by_content_.end() ? -1 : tokens_[it->second].id;
}

}  // namespace overture::engine
