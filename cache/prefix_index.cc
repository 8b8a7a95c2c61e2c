#include "cache/prefix_index.h"

#include <algorithm>
#include <optional>

#include "base/check.h"

namespace overture::cache {

// A full span that follows its parent's end is found by its key. Whether one
// took over is told by its place: only those begin inside a parent, or after a
// tail, which keys.h says never is a span boundary. The parent decides here,
// since an entry does not know its root's span length.
bool PrefixIndex::Insert(const DirectoryEntry& entry, UseTime now) {
  const SpanKey& key = entry.span.key;
  if (nodes_.contains(key)) return false;
  std::optional<int64_t> cut;
  if (entry.span.token_begin > 0) {
    const auto parent = nodes_.find(entry.span.parent);
    if (parent == nodes_.end()) return false;
    const SpanInfo& above = parent->second.entry.span;
    const int64_t begin = entry.span.token_begin;
    if (begin <= above.token_begin || begin > above.token_end()) return false;
    if (above.is_tail || begin < above.token_end()) cut = begin;
    if (!HasChildren(entry.span.parent)) {
      leaves_.erase({parent->second.last_use, entry.span.parent});
    }
  }
  Children& siblings = children_[entry.span.parent];
  siblings.all.insert(key);
  if (cut.has_value() || entry.span.is_tail) {
    ++siblings.probes[{cut, entry.span.is_tail}][entry.span.num_tokens];
  }
  nodes_[key] = {.entry = entry, .cut = cut, .last_use = now};
  leaves_.insert({now, key});
  stored_bytes_ += entry.stored_bytes();
  return true;
}

const DirectoryEntry* PrefixIndex::Find(const SpanKey& key) const {
  const auto it = nodes_.find(key);
  return it == nodes_.end() ? nullptr : &it->second.entry;
}

bool PrefixIndex::HasChildren(const SpanKey& key) const {
  return children_.contains(key);
}

void PrefixIndex::RemoveLeaf(const SpanKey& key) {
  const auto it = nodes_.find(key);
  OVERTURE_CHECK(it != nodes_.end() && !HasChildren(key));
  const Node node = it->second;
  nodes_.erase(it);
  leaves_.erase({node.last_use, key});
  stored_bytes_ -= node.entry.stored_bytes();

  const SpanKey& parent = node.entry.span.parent;
  const auto siblings = children_.find(parent);
  siblings->second.all.erase(key);
  if (node.cut.has_value() || node.entry.span.is_tail) {
    auto& probes = siblings->second.probes;
    const auto probe = probes.find({node.cut, node.entry.span.is_tail});
    const auto length = probe->second.find(node.entry.span.num_tokens);
    if (--length->second == 0) probe->second.erase(length);
    if (probe->second.empty()) probes.erase(probe);
  }
  if (!siblings->second.all.empty()) return;
  children_.erase(siblings);
  const auto above = nodes_.find(parent);
  if (above != nodes_.end()) leaves_.insert({above->second.last_use, parent});
}

std::vector<DirectoryEntry> PrefixIndex::RemoveSubtree(const SpanKey& key) {
  std::vector<DirectoryEntry> removed;
  if (!nodes_.contains(key)) return removed;
  std::vector<SpanKey> order = {key};  // parents before children
  for (size_t i = 0; i < order.size(); ++i) {
    const auto below = children_.find(order[i]);
    if (below == children_.end()) continue;
    order.insert(order.end(), below->second.all.begin(),
                 below->second.all.end());
  }
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    removed.push_back(nodes_.at(*it).entry);
    RemoveLeaf(*it);
  }
  return removed;
}

void PrefixIndex::Touch(const SpanKey& key, UseTime now) {
  const auto it = nodes_.find(key);
  if (it == nodes_.end()) return;
  const auto leaf = leaves_.find({it->second.last_use, key});
  it->second.last_use = now;
  if (leaf == leaves_.end()) return;
  leaves_.erase(leaf);
  leaves_.insert({now, key});
}

void PrefixIndex::SetUseBucket(const SpanKey& key, uint32_t bucket) {
  const auto it = nodes_.find(key);
  if (it != nodes_.end()) it->second.entry.last_use_bucket = bucket;
}

void PrefixIndex::AppendMatchingChildren(
    const ChainPolicy& policy, const SpanKey& parent, int64_t end,
    absl::Span<const int32_t> tokens,
    std::vector<const DirectoryEntry*>& out) const {
  const auto below = children_.find(parent);
  if (below == children_.end()) return;
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());

  // The next full span, by its key.
  const int64_t next = policy.spans.EndOf(end);
  if (policy.spans.IsBoundary(end) && next <= num_tokens) {
    const auto it = nodes_.find(
        ChainKey(parent, std::nullopt, tokens.subspan(end, next - end)));
    if (it != nodes_.end()) out.push_back(&it->second.entry);
  }

  // All others: one pass over the tokens per place and kind, one key per
  // length that occurs there.
  for (const auto& [probe, lengths] : below->second.probes) {
    const int64_t begin = probe.cut.value_or(end);
    SpanHasher hasher(parent, probe.cut, probe.is_tail);
    for (const auto& [length, unused_count] : lengths) {
      if (begin + length > num_tokens) break;
      const int64_t hashed = hasher.num_tokens();
      hasher.Extend(tokens.subspan(begin + hashed, length - hashed));
      const auto it = nodes_.find(hasher.Key());
      if (it != nodes_.end()) out.push_back(&it->second.entry);
    }
  }
}

std::vector<SpanUse> PrefixIndex::Match(const ChainPolicy& policy,
                                        absl::Span<const int32_t> tokens,
                                        int64_t max_tokens) const {
  OVERTURE_CHECK(policy.spans.tokens > 0);
  max_tokens =
      std::min<int64_t>(max_tokens, static_cast<int64_t>(tokens.size()));

  // Visits every stored span that the prompt contains and the limit reaches.
  // Each has one parent, so none is visited twice. A list instead of recursion:
  // a million tokens are 4,096 spans deep.
  struct Step {
    const DirectoryEntry* entry;
    int64_t previous;  // index into steps, -1: the root
    int64_t depth;
  };
  std::vector<Step> steps;
  std::vector<const DirectoryEntry*> found;
  const auto expand = [&](const SpanKey& parent, int64_t end, int64_t previous,
                          int64_t depth) {
    found.clear();
    AppendMatchingChildren(policy, parent, end, tokens, found);
    for (const DirectoryEntry* entry : found) {
      if (entry->span.token_begin >= max_tokens) continue;
      if (entry->root != policy.root || entry->layout != policy.layout) {
        continue;
      }
      steps.push_back({entry, previous, depth});
    }
  };
  if (max_tokens > 0) expand(policy.root, 0, -1, 1);
  int64_t best = -1;
  const auto better = [&](const Step& a, const Step& b) {
    const int64_t a_end = a.entry->span.token_end();
    const int64_t b_end = b.entry->span.token_end();
    const int64_t a_use = std::min(a_end, max_tokens);
    const int64_t b_use = std::min(b_end, max_tokens);
    if (a_use != b_use) return a_use > b_use;
    if (a_end != b_end) return a_end > b_end;
    return a.depth < b.depth;
  };
  for (int64_t i = 0; i < static_cast<int64_t>(steps.size()); ++i) {
    if (best < 0 || better(steps[i], steps[best])) best = i;
    const Step step = steps[i];
    expand(step.entry->span.key, step.entry->span.token_end(), i,
           step.depth + 1);
  }

  std::vector<SpanUse> uses;
  int64_t end = max_tokens;
  for (int64_t i = best; i >= 0; i = steps[i].previous) {
    const SpanInfo& span = steps[i].entry->span;
    uses.push_back(
        {.span = span,
         .use_tokens = std::min(end, span.token_end()) - span.token_begin});
    end = span.token_begin;
  }
  std::reverse(uses.begin(), uses.end());
  return uses;
}

void PrefixIndex::ForEachLeaf(
    const std::function<bool(const DirectoryEntry&)>& take) const {
  for (const auto& [unused_time, key] : leaves_) {
    if (!take(nodes_.at(key).entry)) return;
  }
}

}  // namespace overture::cache
