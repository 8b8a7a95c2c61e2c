#include "clients/evaluate/context_builder.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace overture::clients {
namespace {

using Ids = std::vector<int32_t>;

void Append(Ids& out, const Ids& more) {
  out.insert(out.end(), more.begin(), more.end());
}

int64_t Size(const Ids& ids) { return static_cast<int64_t>(ids.size()); }

// Exactly `length` ids, and where pieces begin or a whole one ends.
struct Filled {
  Ids ids;
  std::vector<int64_t> borders;
};

absl::StatusOr<Filled> FillTo(const NextPiece& filler, int64_t length,
                              const TokenizeText& tokenize) {
  Filled filled{.borders = {0}};
  while (Size(filled.ids) < length) {
    OVERTURE_ASSIGN_OR_RETURN(const Ids piece, tokenize(filler()));
    if (piece.empty()) {
      return absl::InternalError("a piece of filler has no tokens");
    }
    Append(filled.ids, piece);
    if (Size(filled.ids) <= length) filled.borders.push_back(Size(filled.ids));
  }
  filled.ids.resize(static_cast<size_t>(length));
  return filled;
}

absl::Status TooShort(int64_t length, int64_t needed) {
  return absl::OutOfRangeError(absl::StrCat("a context of ", length,
                                            " tokens is too short, this task "
                                            "needs ",
                                            needed));
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> BuildHaystack(
    absl::string_view head, const std::vector<Fact>& facts,
    const NextPiece& filler, int64_t length, const TokenizeText& tokenize) {
  OVERTURE_ASSIGN_OR_RETURN(Ids out, tokenize(head));
  std::vector<Ids> texts;
  int64_t fixed = Size(out);
  for (const Fact& fact : facts) {
    OVERTURE_ASSIGN_OR_RETURN(Ids text, tokenize(fact.text));
    fixed += Size(text);
    texts.push_back(std::move(text));
  }
  if (fixed > length) return TooShort(length, fixed);
  OVERTURE_ASSIGN_OR_RETURN(const Filled hay,
                            FillTo(filler, length - fixed, tokenize));

  std::vector<size_t> order(facts.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&facts](size_t a, size_t b) {
    return facts[a].depth < facts[b].depth;
  });
  int64_t done = 0;
  const auto hay_until = [&](int64_t end) {
    out.insert(out.end(), hay.ids.begin() + done, hay.ids.begin() + end);
    done = end;
  };
  for (const size_t i : order) {
    const double last = static_cast<double>(hay.borders.size() - 1);
    const auto border = static_cast<size_t>(std::lround(facts[i].depth * last));
    hay_until(hay.borders[border]);
    Append(out, texts[i]);
  }
  hay_until(Size(hay.ids));
  return out;
}

absl::StatusOr<std::vector<int32_t>> BuildList(
    absl::string_view head, const std::vector<std::string>& items,
    const NextPiece& filler, int64_t length, const TokenizeText& tokenize) {
  OVERTURE_ASSIGN_OR_RETURN(Ids out, tokenize(head));
  Ids list;
  for (const std::string& item : items) {
    OVERTURE_ASSIGN_OR_RETURN(const Ids ids, tokenize(item));
    Append(list, ids);
  }
  const int64_t needed = Size(out) + Size(list);
  if (needed > length) return TooShort(length, needed);
  OVERTURE_ASSIGN_OR_RETURN(const Filled padding,
                            FillTo(filler, length - needed, tokenize));
  Append(out, padding.ids);
  Append(out, list);
  return out;
}

absl::StatusOr<int64_t> CountItems(
    absl::string_view head, const std::function<std::string(int64_t)>& item,
    int64_t max_items, int64_t length, const TokenizeText& tokenize) {
  OVERTURE_ASSIGN_OR_RETURN(const Ids ids, tokenize(head));
  int64_t used = Size(ids);
  for (int64_t i = 0; i < max_items; ++i) {
    OVERTURE_ASSIGN_OR_RETURN(const Ids next, tokenize(item(i)));
    if (next.empty()) return absl::InternalError("an item has no tokens");
    used += Size(next);
    if (used > length) return i;
  }
  return max_items;
}

}  // namespace overture::clients
