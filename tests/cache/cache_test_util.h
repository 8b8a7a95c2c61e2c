// What the tests of cache/ share: prompts, roots, and KV whose every byte says
// where it belongs (a canary), so that a foreign, shifted or torn row is seen.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/kv_layout.h"
#include "cache/keys.h"
#include "cache/kv_cache.h"

namespace overture::cache {

// Small enough for quick tests: 256 tokens of one layer are 32 KiB.
inline constexpr KvLayout kTinyLayout = {
    .num_layers = 3, .num_kv_heads = 2, .head_dim = 16, .dtype = DType::kBF16};
// Its blocks are 96 KiB, above RocksDB's blob threshold of 64 KiB.
inline constexpr KvLayout kBlobLayout = {
    .num_layers = 3, .num_kv_heads = 3, .head_dim = 32, .dtype = DType::kBF16};

ChainPolicy DensePolicy(const KvLayout& layout = kTinyLayout, uint8_t root = 1);
// Segments of 512 tokens.
ChainPolicy SparsePolicy(const KvLayout& layout = kTinyLayout,
                         uint8_t root = 2);

// A folder in memory where there is room for one, else on disk: for tests that
// commit hundreds of times and do not ask whether it survives.
class FastTempDir {
 public:
  FastTempDir();
  ~FastTempDir();
  FastTempDir(const FastTempDir&) = delete;
  FastTempDir& operator=(const FastTempDir&) = delete;
  std::string Join(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// `count` token ids that depend on `seed` from the first on.
std::vector<int32_t> Prompt(uint64_t seed, int64_t count);

// One layer's KV of all of a prompt's tokens. A row depends on the layer, its
// position and the token there.
class CanaryLayer {
 public:
  CanaryLayer(const KvLayout& layout, absl::Span<const int32_t> tokens,
              int32_t layer);
  LayerKvView view() const;

 private:
  KvLayout layout_;
  int64_t num_rows_;
  std::vector<std::byte> bytes_;
};

// The record that holds rows [begin, begin + rows) of that layer.
std::string CanaryRecord(const KvLayout& layout,
                         absl::Span<const int32_t> tokens, int32_t layer,
                         int64_t begin, int64_t rows);

// Writes what PlanSpans says after `match` and commits.
CommitResult Store(KvCache& cache, const ChainPolicy& policy,
                   absl::Span<const int32_t> tokens,
                   const PrefixMatch& match = {});

// Match, check every row of every layer, store: one turn as the engine does
// it. Returns the tokens reused.
int64_t Turn(KvCache& cache, const ChainPolicy& policy,
             absl::Span<const int32_t> tokens, int64_t window);

// OK if all rows of `spans`, every layer, are those of `tokens`; DATA_LOSS
// names the first layer that is not.
absl::Status CheckCanary(KvCache& cache, const ChainPolicy& policy,
                         absl::Span<const SpanUse> spans,
                         absl::Span<const int32_t> tokens);

}  // namespace overture::cache
