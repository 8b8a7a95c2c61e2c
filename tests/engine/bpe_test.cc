#include "engine/bpe.h"

#include <chrono>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

std::vector<int32_t> Encode(const Bpe& bpe, absl::string_view piece) {
  Bpe::Scratch scratch;
  std::vector<int32_t> ids;
  bpe.Encode(piece, &scratch, &ids);
  return ids;
}

// Tokens of the letters given and of every merge, ids in that order.
absl::StatusOr<Bpe> Make(absl::string_view letters,
                         const std::vector<Bpe::Merge>& merges,
                         const Bpe::Options& options = {}) {
  std::vector<Bpe::Token> tokens;
  for (const char c : letters) {
    tokens.push_back({std::string(1, c), static_cast<int32_t>(tokens.size())});
  }
  std::set<std::string> seen;
  for (const Bpe::Merge& merge : merges) {
    const std::string joined = merge.left + merge.right;
    if (seen.insert(joined).second) {
      tokens.push_back({joined, static_cast<int32_t>(tokens.size())});
    }
  }
  return Bpe::Create(tokens, merges, options);
}

TEST(BpeTest, MergesByRankAndLeftmostFirst) {
  // a 0, b 1, c 2, bc 3, ab 4, aa 5
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const Bpe bpe, Make("abc", {{"b", "c"}, {"a", "b"}, {"a", "a"}}));
  EXPECT_EQ(Encode(bpe, "abc"), (std::vector<int32_t>{0, 3}));
  EXPECT_EQ(Encode(bpe, "ab"), (std::vector<int32_t>{4}));
  EXPECT_EQ(Encode(bpe, "aaa"), (std::vector<int32_t>{5, 0}));
  EXPECT_EQ(Encode(bpe, "aab"), (std::vector<int32_t>{0, 4}));
  EXPECT_EQ(Encode(bpe, ""), (std::vector<int32_t>{}));
}

TEST(BpeTest, AWholeTokenThatMergesDoNotReachNeedsIgnoreMerges) {
  // "abc" comes of ab and c, but b and c merge first.
  const std::vector<Bpe::Merge> merges = {{"b", "c"}, {"a", "b"}, {"ab", "c"}};
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Bpe strict, Make("abc", merges));
  EXPECT_EQ(Encode(strict, "abc"), (std::vector<int32_t>{0, 3}));
  Bpe::Options options;
  options.ignore_merges = true;
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Bpe whole, Make("abc", merges, options));
  EXPECT_EQ(Encode(whole, "abc"), (std::vector<int32_t>{5}));
  EXPECT_EQ(Encode(whole, "abca"), (std::vector<int32_t>{0, 3, 0}));
}

TEST(BpeTest, BytesWithoutTokenAreDroppedOrUnknown) {
  const std::vector<Bpe::Merge> merges = {{"a", "b"}};
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Bpe drop, Make("abu", merges));
  EXPECT_EQ(Encode(drop, "axxb"), (std::vector<int32_t>{3}));
  EXPECT_FALSE(drop.HasEveryByte());
  Bpe::Options options;
  options.unknown_id = 2;
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Bpe each, Make("abu", merges, options));
  EXPECT_EQ(Encode(each, "axxb"), (std::vector<int32_t>{0, 2, 2, 1}));
  options.fuse_unknown = true;
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Bpe fused, Make("abu", merges, options));
  EXPECT_EQ(Encode(fused, "axxbx"), (std::vector<int32_t>{0, 2, 1, 2}));
}

TEST(BpeTest, MalformedVocabulariesAreRefusedByName) {
  using absl::StatusCode;
  EXPECT_THAT(Make("ab", {{"a", "x"}}),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("merges[0]: right part \"x\"")));
  EXPECT_THAT(Make("ab", {{"a", "b"}, {"y", "b"}}),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("merges[1]: left part \"y\"")));
  EXPECT_THAT(Bpe::Create({{"a", 0}, {"b", 1}}, {{"a", "b"}}, {}),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("merges[0]: result \"ab\"")));
  EXPECT_THAT(Bpe::Create({{"a", 0}, {"a", 7}}, {}, {}),
              StatusIs(StatusCode::kInvalidArgument,
                       HasSubstr("tokens 0 and 7 are both \"a\"")));
  EXPECT_THAT(
      Bpe::Create({{"", 3}}, {}, {}),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("token 3: 0 bytes")));
  EXPECT_THAT(
      Bpe::Create({{std::string(Bpe::kMaxTokenBytes + 1, 'a'), 3}}, {}, {}),
      StatusIs(StatusCode::kInvalidArgument, HasSubstr("limits are 1 and")));
}

// The definition: look for the lowest rank, merge it, start again.
std::vector<int32_t> Naive(const Bpe& bpe, absl::string_view letters,
                           const std::vector<Bpe::Merge>& merges,
                           absl::string_view piece) {
  std::vector<std::string> parts;
  for (const char c : piece) {
    if (letters.find(c) != letters.npos) parts.emplace_back(1, c);
  }
  for (;;) {
    size_t best_rank = merges.size(), best = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank].left == parts[i] &&
            merges[rank].right == parts[i + 1]) {
          best_rank = rank;
          best = i;
        }
      }
    }
    if (best_rank == merges.size()) break;
    parts[best] += parts[best + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& part : parts) ids.push_back(bpe.Find(part));
  return ids;
}

TEST(BpeTest, RandomVocabulariesGiveWhatTheDefinitionGives) {
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    std::mt19937 rng(seed);
    const std::string letters = "abcd";
    std::vector<std::string> known = {"a", "b", "c", "d"};
    std::vector<Bpe::Merge> merges;
    std::set<std::pair<std::string, std::string>> seen;
    while (merges.size() < 25) {
      Bpe::Merge merge{known[rng() % known.size()],
                       known[rng() % known.size()]};
      if (merge.left.size() + merge.right.size() > 9) continue;
      if (!seen.emplace(merge.left, merge.right).second) continue;
      known.push_back(merge.left + merge.right);
      merges.push_back(merge);
    }
    OVERTURE_ASSERT_OK_AND_ASSIGN(const Bpe bpe, Make(letters, merges));
    for (int i = 0; i < 60; ++i) {
      // Both sides of the length where the heap takes over, and "e", which is
      // no token.
      std::string piece(rng() % 90, ' ');
      for (char& c : piece) c = "abcdabcdabcde"[rng() % 13];
      ASSERT_EQ(Encode(bpe, piece), Naive(bpe, letters, merges, piece))
          << "seed " << seed << " piece " << piece;
    }
  }
}

TEST(BpeTest, AMegabyteInOnePieceTakesNoQuadraticTime) {
  // Merges that pair everything up, level by level: the most that can merge.
  std::vector<Bpe::Merge> merges;
  std::string token = "a";
  for (int i = 0; i < 10; ++i) {
    merges.push_back({token, token});
    token += token;
  }
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Bpe bpe, Make("a", merges));
  const auto begin = std::chrono::steady_clock::now();
  const auto ids = Encode(bpe, std::string(1 << 20, 'a'));
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - begin;
  EXPECT_EQ(ids, std::vector<int32_t>(1 << 10, 10));
  // About 0.3 s here. A quadratic merge would need 10^12 steps, hours; the
  // bound leaves room for sanitizers and slow machines.
  EXPECT_LT(seconds.count(), 20.0);
}

}  // namespace
}  // namespace overture::engine
