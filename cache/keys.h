// Names of cached KV. A *root* is a digest of all that changes the bytes; a
// *span* is the unit of reuse below it, named by a chain key that covers every
// token before it. docs/kv_format.md has the encodings; golden vectors stand
// in tests/cache/keys_test.cc, so a change of any of them is a format change.
//
//   dense root:   a span is one token block (256 tokens)
//   sparse root:  a span is one segment, since a block's KV depends on the plan
//                 that was chosen from its whole segment
//   tail:         the unfinished last span of a prompt; matched only by a
//                 prompt that holds exactly its tokens at its place
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/hash.h"
#include "base/kv_layout.h"
#include "base/segments.h"

namespace overture::cache {

// Every field enters the root, tagged and length-prefixed; an empty one is
// encoded as length 0, never skipped. Strings are canonical texts made by their
// owner (engine), compared as bytes.
struct RootDescriptor {
  std::string tenant_salt;      // from the authenticated identity
  std::string model_id;         // for people; part of the key all the same
  Sha256Digest weights_digest;  // revision of the weights
  Sha256Digest tokenizer_digest;
  std::string adapters;  // name and digest of each; empty: none
  std::string rope;      // theta, scaling kind and factors, limits
  std::string numerics;  // weights, compute and KV dtype, as resolved
  std::string codec;     // "raw" until quantised codecs land
  KvLayout layout;
  std::string attention_policy;  // "dense", or selector, version, parameters,
                                 // segment length and purity
};

using RootKey = Sha256Digest;
using SpanKey = Sha256Digest;

RootKey ComputeRoot(const RootDescriptor& descriptor);

// A root with what the chain rules need to know about it.
struct ChainPolicy {
  RootKey root;
  KvLayout layout;
  // Where full spans begin and end: blocks for dense, the segments (of whole
  // blocks) for sparse.
  SegmentRule spans = SegmentRule::Uniform(kTokensPerBlock);
  // True for dense: the KV of a token depends on nothing after it, so a tail
  // that grew into a full block is that block. False: what continues a tail is
  // marked, since its plan was chosen elsewhere.
  bool token_pure = true;
};

// One span of one sequence.
struct SpanInfo {
  SpanKey key;
  SpanKey parent;           // the root for the first
  int64_t token_begin = 0;  // position of its first token
  int64_t num_tokens = 0;   // >= 1, at most to the next boundary
  bool is_tail = false;

  int64_t token_end() const { return token_begin + num_tokens; }
  int32_t num_blocks() const {
    return static_cast<int32_t>((num_tokens + kTokensPerBlock - 1) /
                                kTokensPerBlock);
  }
  friend bool operator==(const SpanInfo&, const SpanInfo&) = default;
};

// SHA-256("overture.block.v1" | parent | mark | extra | token ids). `cut` is
// set on a span that continues a tail, or a span used in part, in a root that
// is not token-pure: the position at which it took over, which is where it
// begins. Such a span never begins at a boundary of the rule, and every other
// one does.
SpanKey ChainKey(const SpanKey& parent, std::optional<int64_t> cut,
                 absl::Span<const int32_t> tokens);
// SHA-256("overture.tail.v1" | parent | mark | token ids | length). The length
// comes last so that one pass over a prompt yields the key of every tail.
SpanKey TailKey(const SpanKey& parent, std::optional<int64_t> cut,
                absl::Span<const int32_t> tokens);

// Both keys for a span that grows: Extend and Key in turn, any number of times.
// Thread-compatible.
class SpanHasher {
 public:
  SpanHasher(const SpanKey& parent, std::optional<int64_t> cut, bool is_tail);
  void Extend(absl::Span<const int32_t> tokens);
  int64_t num_tokens() const { return num_tokens_; }
  // Key of the tokens so far: a ChainKey, or a TailKey if `is_tail`.
  SpanKey Key() const;

 private:
  Sha256 hash_;
  bool is_tail_;
  int64_t num_tokens_ = 0;
};

// The first `use_tokens` tokens of a span. Less than all of them in the last
// span of a list, and where the next one took over before its end (`cut`).
struct SpanUse {
  SpanInfo span;
  int64_t use_tokens = 0;
  friend bool operator==(const SpanUse&, const SpanUse&) = default;
};

// The spans under which positions [0, tokens.size()) are stored when the first
// `reused` of them (the pieces of a PrefixMatch, possibly none) came from the
// cache. Only spans that the match does not already hold are returned,
// ascending; the first may begin before the end of the match (token-pure roots:
// a block that a tail began is stored whole). REQUIRES: the rule's lengths are
// positive multiples of kTokensPerBlock.
std::vector<SpanInfo> PlanSpans(const ChainPolicy& policy,
                                absl::Span<const SpanUse> reused,
                                absl::Span<const int32_t> tokens);

}  // namespace overture::cache
