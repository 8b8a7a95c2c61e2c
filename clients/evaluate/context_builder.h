// Token ids of a context of an exact length, through any tokenizer: pieces are
// tokenised one by one and put one behind the other, so lengths add up.
// One thread. Errors: the tokenizer's; OUT_OF_RANGE if a length is too short,
// with the length that would do.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace overture::clients {

// A text's ids, nothing added in front or behind.
using TokenizeText =
    std::function<absl::StatusOr<std::vector<int32_t>>(absl::string_view)>;
// The next piece of an endless text.
using NextPiece = std::function<std::string()>;

struct Fact {
  std::string text;
  double depth = 0;  // [0, 1]
};

// `head`, then what `filler` yields, cut at the token that makes `length`, with
// each fact at the border of a filler piece nearest to its depth: 0 before the
// first, 1 after the last whole piece. Facts of one depth stand in their order.
absl::StatusOr<std::vector<int32_t>> BuildHaystack(
    absl::string_view head, const std::vector<Fact>& facts,
    const NextPiece& filler, int64_t length, const TokenizeText& tokenize);

// `head`, then padding, then `items`: the padding, cut from `filler`, takes
// what the items leave of `length`.
absl::StatusOr<std::vector<int32_t>> BuildList(
    absl::string_view head, const std::vector<std::string>& items,
    const NextPiece& filler, int64_t length, const TokenizeText& tokenize);

// How many of `item(0)`, `item(1)`, ... fit behind `head`, at most `max_items`.
absl::StatusOr<int64_t> CountItems(
    absl::string_view head, const std::function<std::string(int64_t)>& item,
    int64_t max_items, int64_t length, const TokenizeText& tokenize);

}  // namespace overture::clients
