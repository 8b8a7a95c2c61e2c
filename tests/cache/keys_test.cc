#include "cache/keys.h"

#include <functional>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace overture::cache {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Sha256Digest Filled(uint8_t byte) {
  Sha256Digest digest;
  digest.bytes.fill(byte);
  return digest;
}

RootDescriptor Descriptor() {
  return {.tenant_salt = "tenant",
          .model_id = "model",
          .weights_digest = Filled(1),
          .tokenizer_digest = Filled(2),
          .adapters = "",
          .rope = "theta=10000",
          .numerics = "bf16",
          .codec = "raw",
          .layout = {.num_layers = 30,
                     .num_kv_heads = 3,
                     .head_dim = 64,
                     .dtype = DType::kBF16},
          .attention_policy = "dense"};
}

std::vector<int32_t> Tokens(int64_t count, int32_t first = 0) {
  std::vector<int32_t> tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

ChainPolicy Dense() { return {.root = ComputeRoot(Descriptor())}; }
ChainPolicy Sparse() {
  return {.root = ComputeRoot(Descriptor()),
          .spans = SegmentRule::Uniform(512),
          .token_pure = false};
}

// The vectors come from hashlib, over bytes written out by hand from
// docs/kv_format.md; keys_golden.py beside this file prints them.
TEST(KeysTest, RootEqualsItsGoldenVector) {
  EXPECT_EQ(ComputeRoot(Descriptor()).Hex(),
            "cda21f1a754bbd3419740e0e17d50b17d88a4031499c10c8c9ca4a004806f436");
  EXPECT_EQ(ComputeRoot(RootDescriptor{}).Hex(),
            "dbd1e401fd8b9d1014ba1ea639909fd3dab07645a5f24468c5010745e2d201bc");
}

TEST(KeysTest, SpanKeysEqualTheirGoldenVectors) {
  const std::vector<int32_t> tokens = {1, 2, 70000};
  EXPECT_EQ(ChainKey(Filled(7), std::nullopt, tokens).Hex(),
            "ab18edb74daa000af93c8351b4a1bfbc6fccf10d28bc66d4fbbc2025117388f3");
  EXPECT_EQ(ChainKey(Filled(7), 300, tokens).Hex(),
            "b42ea35949fc99afcb1a572827c5d1a945c8793c1e5c07e45bebcd4fd6368dc7");
  EXPECT_EQ(TailKey(Filled(7), std::nullopt, tokens).Hex(),
            "3b842d95b2b0ea099e9b59f0490b99fcfb88df098d90d2285d299d9a4d722236");
  EXPECT_EQ(TailKey(Filled(7), 300, tokens).Hex(),
            "c67f560f9dae2684f9c302fc850338431d3f9629a95487134c406e0b61851e2c");
}

TEST(KeysTest, DescriptorsThatDifferInAnyFieldHaveDifferentRoots) {
  using Change = std::function<void(RootDescriptor&)>;
  const std::vector<Change> changes = {
      [](RootDescriptor& d) { d.tenant_salt += "x"; },
      [](RootDescriptor& d) { d.model_id += "x"; },
      [](RootDescriptor& d) { d.weights_digest.bytes[31] ^= 1; },
      [](RootDescriptor& d) { d.tokenizer_digest.bytes[0] ^= 1; },
      [](RootDescriptor& d) { d.adapters += "x"; },
      [](RootDescriptor& d) { d.rope += "x"; },
      [](RootDescriptor& d) { d.numerics += "x"; },
      [](RootDescriptor& d) { d.codec += "x"; },
      [](RootDescriptor& d) { ++d.layout.num_layers; },
      [](RootDescriptor& d) { ++d.layout.num_kv_heads; },
      [](RootDescriptor& d) { ++d.layout.head_dim; },
      [](RootDescriptor& d) { d.layout.dtype = DType::kF16; },
      [](RootDescriptor& d) { d.attention_policy += "x"; },
  };
  // Every subset of changes gives its own root.
  std::set<std::string> roots;
  for (uint32_t subset = 0; subset < 1u << changes.size(); ++subset) {
    RootDescriptor descriptor = Descriptor();
    for (size_t i = 0; i < changes.size(); ++i) {
      if (subset >> i & 1) changes[i](descriptor);
    }
    roots.insert(ComputeRoot(descriptor).Hex());
  }
  EXPECT_THAT(roots, SizeIs(1u << changes.size()));
}

TEST(KeysTest, ATextThatMovesToAnotherFieldChangesTheRoot) {
  const std::vector<std::string RootDescriptor::*> texts = {
      &RootDescriptor::tenant_salt,     &RootDescriptor::model_id,
      &RootDescriptor::adapters,        &RootDescriptor::rope,
      &RootDescriptor::numerics,        &RootDescriptor::codec,
      &RootDescriptor::attention_policy};
  std::set<std::string> roots;
  for (auto field : texts) {
    RootDescriptor descriptor;
    descriptor.*field = "the same text";
    roots.insert(ComputeRoot(descriptor).Hex());
  }
  EXPECT_THAT(roots, SizeIs(texts.size()));
}

TEST(KeysTest, SpanKeysDependOnEverythingTheyName) {
  const std::vector<int32_t> a = {1, 2, 3}, b = {1, 2, 4}, c = {1, 2};
  std::set<std::string> keys;
  for (const auto& parent : {Filled(1), Filled(2)}) {
    for (const auto cut : {std::optional<int64_t>(), std::optional<int64_t>(3),
                           std::optional<int64_t>(4)}) {
      for (const auto& tokens : {a, b, c}) {
        keys.insert(ChainKey(parent, cut, tokens).Hex());
        keys.insert(TailKey(parent, cut, tokens).Hex());
      }
    }
  }
  EXPECT_THAT(keys, SizeIs(2 * 3 * 3 * 2));
}

TEST(KeysTest, OnePassGivesTheKeyOfEveryLength) {
  const std::vector<int32_t> tokens = Tokens(100);
  SpanHasher tail(Filled(1), 5, /*is_tail=*/true);
  SpanHasher full(Filled(1), 5, /*is_tail=*/false);
  for (int64_t n = 1; n <= 100; ++n) {
    const auto all = absl::MakeConstSpan(tokens);
    tail.Extend(all.subspan(n - 1, 1));
    full.Extend(all.subspan(n - 1, 1));
    EXPECT_EQ(tail.Key(), TailKey(Filled(1), 5, all.first(n)));
    EXPECT_EQ(full.Key(), ChainKey(Filled(1), 5, all.first(n)));
  }
}

TEST(PlanSpansTest, AColdPromptIsFullSpansAndATail) {
  const auto tokens = Tokens(600);
  const auto spans = PlanSpans(Dense(), {}, tokens);
  ASSERT_THAT(spans, SizeIs(3));
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(spans[i].token_begin, static_cast<int64_t>(256 * i));
    EXPECT_EQ(spans[i].is_tail, i == 2);
    EXPECT_EQ(spans[i].parent, i == 0 ? Dense().root : spans[i - 1].key);
  }
  EXPECT_EQ(spans[2].num_tokens, 600 - 512);
  const auto all = absl::MakeConstSpan(tokens);
  EXPECT_EQ(spans[0].key, ChainKey(Dense().root, std::nullopt, all.first(256)));
  EXPECT_EQ(spans[2].key,
            TailKey(spans[1].key, std::nullopt, all.subspan(512)));
}

TEST(PlanSpansTest, APromptOfWholeSpansHasNoTail) {
  EXPECT_THAT(PlanSpans(Dense(), {}, Tokens(512)), SizeIs(2));
  EXPECT_FALSE(PlanSpans(Dense(), {}, Tokens(512)).back().is_tail);
  EXPECT_THAT(PlanSpans(Sparse(), {}, Tokens(512)), SizeIs(1));
  EXPECT_THAT(PlanSpans(Dense(), {}, {}), IsEmpty());
}

TEST(PlanSpansTest, SpansFollowTheRuleOfThePolicy) {
  ChainPolicy policy = Sparse();
  policy.spans = {.tokens = 256, .max_tokens = 512};
  const auto tokens = Tokens(2000);
  const auto spans = PlanSpans(policy, {}, tokens);
  constexpr int64_t kEnds[] = {256, 512, 768, 1024, 1536, 2000};
  ASSERT_THAT(spans, SizeIs(std::size(kEnds)));
  for (size_t i = 0; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].token_end(), kEnds[i]);
    EXPECT_EQ(spans[i].is_tail, i + 1 == spans.size());
  }
  // A tail within a long span is continued to that span's end.
  const auto all = absl::MakeConstSpan(tokens);
  const auto start = PlanSpans(policy, {}, all.first(1100));
  std::vector<SpanUse> reused;
  for (const SpanInfo& span : start) reused.push_back({span, span.num_tokens});
  const auto rest = PlanSpans(policy, reused, tokens);
  ASSERT_THAT(rest, SizeIs(2));
  EXPECT_EQ(rest[0].token_begin, 1100);
  EXPECT_EQ(rest[0].token_end(), 1536);
  EXPECT_EQ(rest[0].key,
            ChainKey(start.back().key, 1100, all.subspan(1100, 1536 - 1100)));
}

TEST(PlanSpansTest, ADenseTailThatGrewIsStoredAsTheBlockItBegan) {
  const auto cold = PlanSpans(Dense(), {}, Tokens(300));
  const std::vector<SpanUse> reused = {{cold[0], 256}, {cold[1], 20}};
  // Into a longer tail: same parent, same begin.
  const auto longer = PlanSpans(Dense(), reused, Tokens(340));
  EXPECT_EQ(longer, std::vector<SpanInfo>(
                        {PlanSpans(Dense(), {}, Tokens(340)).back()}));
  // Into a full block and another tail.
  const auto full = PlanSpans(Dense(), reused, Tokens(600));
  const auto fresh = PlanSpans(Dense(), {}, Tokens(600));
  EXPECT_THAT(full, ElementsAre(fresh[1], fresh[2]));
}

TEST(PlanSpansTest, ADenseBlockUsedInPartIsNotStoredAgain) {
  const auto cold = PlanSpans(Dense(), {}, Tokens(512));
  const std::vector<SpanUse> reused = {{cold[0], 256}, {cold[1], 192}};
  EXPECT_THAT(PlanSpans(Dense(), reused, Tokens(512)), IsEmpty());
  const auto more = PlanSpans(Dense(), reused, Tokens(520));
  ASSERT_THAT(more, SizeIs(1));
  EXPECT_EQ(more[0].parent, cold[1].key);
  EXPECT_EQ(more[0].token_begin, 512);
}

TEST(PlanSpansTest, TheSamePromptAgainStoresNothing) {
  for (const ChainPolicy& policy : {Dense(), Sparse()}) {
    for (const int64_t n : {300, 512, 700, 1024}) {
      const auto cold = PlanSpans(policy, {}, Tokens(n));
      std::vector<SpanUse> reused;
      for (const SpanInfo& span : cold) {
        reused.push_back({span, span.num_tokens});
      }
      reused.back().use_tokens -= 3;
      EXPECT_THAT(PlanSpans(policy, reused, Tokens(n)), IsEmpty()) << n;
    }
  }
}

TEST(PlanSpansTest, WhatContinuesASparseTailIsMarkedAndEndsAtTheBoundary) {
  const ChainPolicy policy = Sparse();
  const auto cold = PlanSpans(policy, {}, Tokens(300));
  const auto tokens = Tokens(1100);
  const auto all = absl::MakeConstSpan(tokens);
  for (const int64_t use : {300, 236}) {
    const std::vector<SpanUse> reused = {{cold[0], use}};
    const auto spans = PlanSpans(policy, reused, tokens);
    ASSERT_THAT(spans, SizeIs(3)) << use;
    EXPECT_EQ(spans[0].parent, cold[0].key);
    EXPECT_EQ(spans[0].token_begin, use);
    EXPECT_EQ(spans[0].token_end(), 512);
    EXPECT_FALSE(spans[0].is_tail);
    EXPECT_EQ(spans[0].key,
              ChainKey(cold[0].key, use, all.subspan(use, 512 - use)));
    // From the boundary on, no mark: the parent's key carries it.
    EXPECT_EQ(spans[1].key,
              ChainKey(spans[0].key, std::nullopt, all.subspan(512, 512)));
    EXPECT_EQ(spans[2].key,
              TailKey(spans[1].key, std::nullopt, all.subspan(1024)));
  }
}

TEST(PlanSpansTest, WhatContinuesASparseSegmentUsedInPartIsMarked) {
  const ChainPolicy policy = Sparse();
  const auto cold = PlanSpans(policy, {}, Tokens(512));
  const std::vector<SpanUse> part = {{cold[0], 476}};
  const auto spans = PlanSpans(policy, part, Tokens(540));
  ASSERT_THAT(spans, SizeIs(2));
  EXPECT_EQ(spans[0].token_begin, 476);
  EXPECT_EQ(spans[0].token_end(), 512);
  EXPECT_EQ(spans[1].token_begin, 512);

  const std::vector<SpanUse> whole = {{cold[0], 512}};
  const auto clean = PlanSpans(policy, whole, Tokens(540));
  ASSERT_THAT(clean, SizeIs(1));
  EXPECT_EQ(clean[0], PlanSpans(policy, {}, Tokens(540)).back());
}

}  // namespace
}  // namespace overture::cache
