#include "cache/keys.h"

#include <algorithm>

#include "base/check.h"

namespace overture::cache {
namespace {

constexpr uint32_t kDescriptorVersion = 1;

// Tags of the root's fields: do not renumber, do not reuse.
enum RootTag : uint16_t {
  kTagDescriptorVersion = 1,
  kTagTenantSalt = 2,
  kTagModelId = 3,
  kTagWeightsDigest = 4,
  kTagTokenizerDigest = 5,
  kTagAdapters = 6,
  kTagRope = 7,
  kTagNumerics = 8,
  kTagCodec = 9,
  kTagLayout = 10,
  kTagAttentionPolicy = 11,
  kTagEngineRank = 12,  // opaque-key spaces only; empty here
};

// Tags inside a span's key: do not renumber, do not reuse.
enum SpanTag : uint16_t {
  kTagMark = 1,
  kTagExtra = 2,  // what the ids do not say; empty until something needs it
};

// Why the bytes stopped being a function of root and tokens: do not renumber.
enum class Mark : uint16_t { kTakeover = 1 };

void UpdateField(Sha256& hash, uint16_t tag, absl::string_view bytes) {
  hash.UpdateU16(tag);
  hash.UpdateU32(static_cast<uint32_t>(bytes.size()));
  hash.Update(bytes);
}

void UpdateMark(Sha256& hash, std::optional<int64_t> cut) {
  hash.UpdateU16(kTagMark);
  if (!cut.has_value()) {
    hash.UpdateU32(0);
    return;
  }
  hash.UpdateU32(sizeof(uint16_t) + sizeof(uint64_t));
  hash.UpdateU16(static_cast<uint16_t>(Mark::kTakeover));
  hash.UpdateU64(static_cast<uint64_t>(*cut));
}

// Adds the spans of [pos, tokens.size()) below `parent`.
void AppendSpans(const ChainPolicy& policy, SpanKey parent, int64_t pos,
                 std::optional<int64_t> cut, absl::Span<const int32_t> tokens,
                 std::vector<SpanInfo>& spans) {
  const int64_t end = static_cast<int64_t>(tokens.size());
  while (pos < end) {
    const int64_t boundary = policy.spans.EndOf(pos);
    SpanInfo span;
    span.parent = parent;
    span.token_begin = pos;
    span.num_tokens = std::min(boundary, end) - pos;
    span.is_tail = end < boundary;
    const auto ids = tokens.subspan(pos, span.num_tokens);
    span.key =
        span.is_tail ? TailKey(parent, cut, ids) : ChainKey(parent, cut, ids);
    spans.push_back(span);
    parent = span.key;
    pos = span.token_end();
    cut.reset();
  }
}

}  // namespace

RootKey ComputeRoot(const RootDescriptor& d) {
  std::string version(4, '\0');
  version[0] = static_cast<char>(kDescriptorVersion);

  // Layers, heads, head dim, dtype, tokens per block: five u32.
  std::string layout;
  for (uint32_t value : {static_cast<uint32_t>(d.layout.num_layers),
                         static_cast<uint32_t>(d.layout.num_kv_heads),
                         static_cast<uint32_t>(d.layout.head_dim),
                         static_cast<uint32_t>(d.layout.dtype),
                         static_cast<uint32_t>(kTokensPerBlock)}) {
    for (int shift = 0; shift < 32; shift += 8) {
      layout.push_back(static_cast<char>(value >> shift));
    }
  }

  Sha256 hash;
  hash.Update("overture.root.v1");
  UpdateField(hash, kTagDescriptorVersion, version);
  UpdateField(hash, kTagTenantSalt, d.tenant_salt);
  UpdateField(hash, kTagModelId, d.model_id);
  UpdateField(hash, kTagWeightsDigest, d.weights_digest.AsStringView());
  UpdateField(hash, kTagTokenizerDigest, d.tokenizer_digest.AsStringView());
  UpdateField(hash, kTagAdapters, d.adapters);
  UpdateField(hash, kTagRope, d.rope);
  UpdateField(hash, kTagNumerics, d.numerics);
  UpdateField(hash, kTagCodec, d.codec);
  UpdateField(hash, kTagLayout, layout);
  UpdateField(hash, kTagAttentionPolicy, d.attention_policy);
  UpdateField(hash, kTagEngineRank, "");
  return hash.Digest();
}

SpanHasher::SpanHasher(const SpanKey& parent, std::optional<int64_t> cut,
                       bool is_tail)
    : is_tail_(is_tail) {
  hash_.Update(is_tail ? "overture.tail.v1" : "overture.block.v1");
  hash_.Update(parent.AsStringView());
  UpdateMark(hash_, cut);
  if (!is_tail) UpdateField(hash_, kTagExtra, "");
}

void SpanHasher::Extend(absl::Span<const int32_t> tokens) {
  hash_.UpdateTokens(tokens);
  num_tokens_ += static_cast<int64_t>(tokens.size());
}

SpanKey SpanHasher::Key() const {
  if (!is_tail_) return hash_.Digest();
  Sha256 hash(hash_);
  hash.UpdateU64(static_cast<uint64_t>(num_tokens_));
  return hash.Digest();
}

SpanKey ChainKey(const SpanKey& parent, std::optional<int64_t> cut,
                 absl::Span<const int32_t> tokens) {
  SpanHasher hasher(parent, cut, /*is_tail=*/false);
  hasher.Extend(tokens);
  return hasher.Key();
}

SpanKey TailKey(const SpanKey& parent, std::optional<int64_t> cut,
                absl::Span<const int32_t> tokens) {
  SpanHasher hasher(parent, cut, /*is_tail=*/true);
  hasher.Extend(tokens);
  return hasher.Key();
}

std::vector<SpanInfo> PlanSpans(const ChainPolicy& policy,
                                absl::Span<const SpanUse> reused,
                                absl::Span<const int32_t> tokens) {
  OVERTURE_CHECK(policy.spans.tokens > 0 &&
                 policy.spans.tokens % kTokensPerBlock == 0);
  std::vector<SpanInfo> spans;
  if (policy.token_pure) {
    // The chain follows full spans; a tail is superseded by the block or the
    // longer tail that begins where it began.
    SpanKey parent = policy.root;
    int64_t pos = 0;
    for (const SpanUse& use : reused) {
      if (use.span.is_tail) break;
      parent = use.span.key;
      pos = use.span.token_end();
    }
    AppendSpans(policy, parent, pos, std::nullopt, tokens, spans);
    if (!spans.empty() && !reused.empty() &&
        spans.back().key == reused.back().span.key) {
      spans.pop_back();  // the same prompt again, up to its last token
    }
    return spans;
  }

  if (reused.empty()) {
    AppendSpans(policy, policy.root, 0, std::nullopt, tokens, spans);
    return spans;
  }
  const SpanUse& last = reused.back();
  // Nothing but rows that the match's last span holds already: the same prompt
  // again, cut short by the caller's limit.
  if (last.span.token_end() >= static_cast<int64_t>(tokens.size())) {
    return spans;
  }
  const int64_t pos = last.span.token_begin + last.use_tokens;
  const bool clean =
      !last.span.is_tail && last.use_tokens == last.span.num_tokens;
  AppendSpans(policy, last.span.key, pos,
              clean ? std::nullopt : std::optional<int64_t>(pos), tokens,
              spans);
  return spans;
}

}  // namespace overture::cache
