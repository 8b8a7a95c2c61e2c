// The directory in memory: a tree of stored spans below their roots, walked by
// the tokens of a prompt. Also the order of eviction: spans without children,
// least recently used first. Plain data, no I/O. Thread-compatible: const
// members may run side by side, the owner guards the rest.
//
// Memory: about 600 bytes per span (a test holds it below 700), so 5 million
// spans cost 3 GB.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/types/span.h"
#include "cache/directory_format.h"
#include "cache/keys.h"

namespace overture::cache {

class PrefixIndex {
 public:
  // Logical time of a use; larger is later.
  using UseTime = uint64_t;

  // False, and nothing changes, if the key is there already or the parent is
  // not (a span at position 0 needs none).
  bool Insert(const DirectoryEntry& entry, UseTime now);

  // nullptr if absent. Valid until the next change.
  const DirectoryEntry* Find(const SpanKey& key) const;

  // Removes `key` and all below it, children before parents in the result;
  // empty if absent.
  std::vector<DirectoryEntry> RemoveSubtree(const SpanKey& key);

  // No effect on a key that is absent.
  void Touch(const SpanKey& key, UseTime now);
  void SetUseBucket(const SpanKey& key, uint32_t bucket);

  // Longest stored prefix of `tokens`, at most `max_tokens` of it. Of several
  // ways to get equally far: the one whose last span ends latest, then the one
  // of fewest spans. REQUIRES: policy.spans has positive lengths.
  std::vector<SpanUse> Match(const ChainPolicy& policy,
                             absl::Span<const int32_t> tokens,
                             int64_t max_tokens) const;

  // Offers the spans without children, least recently used first, until `take`
  // returns false.
  void ForEachLeaf(
      const std::function<bool(const DirectoryEntry&)>& take) const;

  int64_t num_spans() const { return static_cast<int64_t>(nodes_.size()); }
  int64_t stored_bytes() const { return stored_bytes_; }

 private:
  struct Node {
    DirectoryEntry entry;
    std::optional<int64_t> cut;  // where it took over inside its parent
    UseTime last_use = 0;
  };
  // What distinguishes the children that cannot be found by the key of the
  // next full span: where they begin if they took over, and their kind.
  struct Probe {
    std::optional<int64_t> cut;
    bool is_tail = false;
    friend auto operator<=>(const Probe&, const Probe&) = default;
  };
  struct Children {
    absl::flat_hash_set<SpanKey> all;
    // Lengths of children per probe, with how many have that length.
    std::map<Probe, std::map<int64_t, int64_t>> probes;
  };

  bool HasChildren(const SpanKey& key) const;
  void RemoveLeaf(const SpanKey& key);
  // Stored children of `parent` (span end `end`) that `tokens` contains.
  void AppendMatchingChildren(const ChainPolicy& policy, const SpanKey& parent,
                              int64_t end, absl::Span<const int32_t> tokens,
                              std::vector<const DirectoryEntry*>& out) const;

  absl::flat_hash_map<SpanKey, Node> nodes_;
  // By parent, roots included. A parent without children has no element.
  absl::flat_hash_map<SpanKey, Children> children_;
  std::set<std::pair<UseTime, SpanKey>> leaves_;
  int64_t stored_bytes_ = 0;
};

}  // namespace overture::cache
