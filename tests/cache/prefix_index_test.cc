#include "cache/prefix_index.h"

#include <malloc.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/cache/cache_test_util.h"

namespace overture::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

DirectoryEntry Entry(const ChainPolicy& policy, const SpanInfo& span) {
  return {.span = span, .root = policy.root, .layout = policy.layout};
}

// Inserts what PlanSpans says; returns the spans.
std::vector<SpanInfo> Add(PrefixIndex& index, const ChainPolicy& policy,
                          absl::Span<const int32_t> tokens, uint64_t now,
                          absl::Span<const SpanUse> reused = {}) {
  const auto spans = PlanSpans(policy, reused, tokens);
  for (const SpanInfo& span : spans) index.Insert(Entry(policy, span), now);
  return spans;
}

std::vector<SpanKey> Leaves(const PrefixIndex& index) {
  std::vector<SpanKey> keys;
  index.ForEachLeaf([&](const DirectoryEntry& entry) {
    keys.push_back(entry.span.key);
    return true;
  });
  return keys;
}

TEST(PrefixIndexTest, ASpanNeedsItsParentAndIsInsertedOnce) {
  PrefixIndex index;
  const auto spans = PlanSpans(DensePolicy(), {}, Prompt(1, 600));
  EXPECT_FALSE(index.Insert(Entry(DensePolicy(), spans[1]), 1));
  EXPECT_TRUE(index.Insert(Entry(DensePolicy(), spans[0]), 1));
  EXPECT_TRUE(index.Insert(Entry(DensePolicy(), spans[1]), 1));
  EXPECT_FALSE(index.Insert(Entry(DensePolicy(), spans[1]), 1));
  EXPECT_EQ(index.num_spans(), 2);
  SpanInfo misplaced = spans[2];
  misplaced.token_begin = 513;
  EXPECT_FALSE(index.Insert(Entry(DensePolicy(), misplaced), 1));
}

TEST(PrefixIndexTest, BytesFollowInsertAndRemove) {
  PrefixIndex index;
  const auto spans = Add(index, DensePolicy(), Prompt(1, 600), 1);
  int64_t expected = 0;
  for (const SpanInfo& span : spans) {
    expected += Entry(DensePolicy(), span).stored_bytes();
  }
  EXPECT_EQ(index.stored_bytes(), expected);
  EXPECT_THAT(index.RemoveSubtree(spans[0].key), SizeIs(3));
  EXPECT_EQ(index.stored_bytes(), 0);
  EXPECT_EQ(index.num_spans(), 0);
  EXPECT_THAT(Leaves(index), IsEmpty());
}

TEST(PrefixIndexTest, ASubtreeIsRemovedChildrenFirst) {
  PrefixIndex index;
  auto tokens = Prompt(1, 600);
  const auto a = Add(index, DensePolicy(), tokens, 1);
  tokens[300] ^= 1;
  const auto b = Add(index, DensePolicy(), tokens, 2);
  const auto removed = index.RemoveSubtree(a[1].key);
  ASSERT_THAT(removed, SizeIs(2));
  EXPECT_EQ(removed[0].span, a[2]);
  EXPECT_EQ(removed[1].span, a[1]);
  EXPECT_NE(index.Find(b[2].key), nullptr);
  EXPECT_THAT(index.RemoveSubtree(a[1].key), IsEmpty());
}

TEST(PrefixIndexTest, LeavesComeLeastRecentlyUsedFirst) {
  PrefixIndex index;
  const auto a = Add(index, DensePolicy(), Prompt(1, 300), 1);
  const auto b = Add(index, DensePolicy(), Prompt(2, 300), 2);
  EXPECT_THAT(Leaves(index), ElementsAre(a[1].key, b[1].key));
  index.Touch(a[1].key, 3);
  EXPECT_THAT(Leaves(index), ElementsAre(b[1].key, a[1].key));
  // A parent becomes a leaf, at its own age, once its last child is gone.
  index.RemoveSubtree(a[1].key);
  EXPECT_THAT(Leaves(index), ElementsAre(a[0].key, b[1].key));
  index.RemoveSubtree(b[1].key);
  index.RemoveSubtree(b[0].key);
  index.Touch(b[0].key, 9);  // absent: nothing happens
  EXPECT_THAT(Leaves(index), ElementsAre(a[0].key));
}

// All prompts that were stored, searched the slow way: which chain of stored
// spans, compared token by token, gets furthest into a prompt?
class SlowIndex {
 public:
  void Add(const SpanInfo& span, absl::Span<const int32_t> tokens) {
    const auto own = tokens.subspan(span.token_begin, span.num_tokens);
    spans_.emplace_back(span, std::vector<int32_t>(own.begin(), own.end()));
  }
  int64_t Match(const SpanKey& parent, int64_t reached,
                absl::Span<const int32_t> tokens, int64_t limit) const {
    int64_t best = std::min(reached, limit);
    for (const auto& [span, own] : spans_) {
      if (span.parent != parent || span.token_begin >= limit ||
          span.token_end() > static_cast<int64_t>(tokens.size()) ||
          tokens.subspan(span.token_begin, span.num_tokens) != own) {
        continue;
      }
      best = std::max(best, Match(span.key, span.token_end(), tokens, limit));
    }
    return best;
  }

 private:
  std::vector<std::pair<SpanInfo, std::vector<int32_t>>> spans_;
};

TEST(PrefixIndexTest, MatchesGetAsFarAsAnExhaustiveSearch) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto below = [&](int64_t n) {
      return std::uniform_int_distribution<int64_t>(0, n - 1)(random);
    };
    ChainPolicy growing = SparsePolicy();
    growing.spans = {.tokens = 256, .max_tokens = 1024};
    for (const ChainPolicy& policy : {DensePolicy(), SparsePolicy(), growing}) {
      PrefixIndex index;
      SlowIndex slow;
      std::vector<std::vector<int32_t>> prompts;
      for (int i = 0; i < 40; ++i) {
        // A new prompt, or a cut and continued old one.
        std::vector<int32_t> tokens;
        if (!prompts.empty() && below(4) > 0) {
          tokens = prompts[below(prompts.size())];
          if (below(2) == 0) tokens.resize(1 + below(tokens.size()));
        }
        for (int32_t id : Prompt(random(), 1 + below(700))) {
          tokens.push_back(id);
        }
        prompts.push_back(tokens);
        const int64_t n = static_cast<int64_t>(tokens.size());
        const int64_t limit = below(3) == 0 ? n : n - below(n);
        const auto uses = index.Match(policy, tokens, limit);
        int64_t reached = 0;
        for (size_t k = 0; k < uses.size(); ++k) {
          ASSERT_EQ(uses[k].span.token_begin, reached);
          ASSERT_EQ(uses[k].span.parent,
                    k == 0 ? policy.root : uses[k - 1].span.key);
          ASSERT_GE(uses[k].use_tokens, 1);
          ASSERT_LE(uses[k].use_tokens, uses[k].span.num_tokens);
          reached += uses[k].use_tokens;
        }
        ASSERT_EQ(reached, slow.Match(policy.root, 0, tokens, limit));
        for (const SpanInfo& span :
             Add(index, policy, tokens, /*now=*/i, uses)) {
          slow.Add(span, tokens);
        }
        // All of it is there now.
        int64_t whole = 0;
        for (const SpanUse& use : index.Match(policy, tokens, n)) {
          whole += use.use_tokens;
        }
        ASSERT_EQ(whole, n);
      }
    }
  }
}

TEST(PrefixIndexTest, ASpanOfAnotherLayoutIsNotMatched) {
  PrefixIndex index;
  const auto tokens = Prompt(1, 300);
  Add(index, DensePolicy(), tokens, 1);
  EXPECT_THAT(index.Match(DensePolicy(kBlobLayout), tokens, 300), IsEmpty());
}

TEST(PrefixIndexTest, AMillionTokensInSpansOfOneTurnEachMatch) {
  // Depth of the walk: 4,096 blocks, and 500 turns that each took over
  // before the end of the one before.
  PrefixIndex dense;
  const auto million = Prompt(1, 1 << 20);
  Add(dense, DensePolicy(), million, 1);
  EXPECT_THAT(dense.Match(DensePolicy(), million, 1 << 20), SizeIs(4096));

  PrefixIndex sparse;
  std::vector<SpanUse> reused;
  for (int64_t n = 100; n < 100 + 500 * 5; n += 5) {
    const auto tokens = absl::MakeConstSpan(million).first(n);
    reused = sparse.Match(SparsePolicy(), tokens, n - 64);
    if (n > 200) {
      ASSERT_GT(reused.back().span.token_end(), n - 64 - 512);
    }
    Add(sparse, SparsePolicy(), tokens, 1, reused);
  }
}

TEST(PrefixIndexTest, ASpanCostsLessThan700Bytes) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's heap does not answer mallinfo2";
#endif
  const auto tokens = Prompt(1, 256 * 20000);
  const auto spans = PlanSpans(DensePolicy(), {}, tokens);
  const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
  auto index = std::make_unique<PrefixIndex>();
  for (const SpanInfo& span : spans) {
    index->Insert(Entry(DensePolicy(), span), 1);
  }
  const size_t after = mallinfo2().uordblks + mallinfo2().hblkhd;
  const size_t per_span = (after - before) / spans.size();
  EXPECT_LT(per_span, 700u);
  RecordProperty("bytes_per_span", static_cast<int>(per_span));
  std::printf("%zu bytes per span\n", per_span);
}

}  // namespace
}  // namespace overture::cache
