#include "engine/bpe.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace overture::engine {
namespace {

// Up to here a scan over the few pairs beats the heap.
constexpr size_t kShortPiece = 32;
// Positions are int32_t; a longer piece is merged in parts, which no real text
// reaches.
constexpr size_t kMaxPieceBytes = size_t{1} << 30;

absl::Status BadMerge(size_t rank, absl::string_view what,
                      absl::string_view bytes) {
  return absl::InvalidArgumentError(
      absl::StrCat("merges[", rank, "]: ", what, " \"",
                   absl::CHexEscape(bytes.substr(0, 64)), "\" is no token"));
}

}  // namespace

absl::StatusOr<Bpe> Bpe::Create(absl::Span<const Token> tokens,
                                absl::Span<const Merge> merges,
                                const Options& options) {
  Bpe bpe;
  bpe.options_ = options;
  std::fill_n(bpe.byte_ids_, 256, -1);
  bpe.tokens_.reserve(tokens.size());
  for (const Token& token : tokens) {
    if (token.bytes.empty() || token.bytes.size() > kMaxTokenBytes) {
      return absl::InvalidArgumentError(
          absl::StrCat("token ", token.id, ": ", token.bytes.size(),
                       " bytes long; limits are 1 and ", kMaxTokenBytes));
    }
    const auto [it, is_new] =
        bpe.tokens_.emplace(token.bytes, Whole{token.id, false});
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tokens ", it->second.id, " and ", token.id, " are both \"",
          absl::CHexEscape(token.bytes.substr(0, 64)), "\""));
    }
    bpe.longest_token_ = std::max(bpe.longest_token_, token.bytes.size());
    if (token.bytes.size() == 1) {
      bpe.byte_ids_[static_cast<unsigned char>(token.bytes[0])] = token.id;
    }
  }

  bpe.merges_.reserve(merges.size());
  bpe.merge_ids_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    const int32_t left = bpe.Find(merge.left);
    if (left < 0) return BadMerge(rank, "left part", merge.left);
    const int32_t right = bpe.Find(merge.right);
    if (right < 0) return BadMerge(rank, "right part", merge.right);
    const std::string joined = merge.left + merge.right;
    const int32_t merged = bpe.Find(joined);
    if (merged < 0) return BadMerge(rank, "result", joined);
    bpe.merges_.insert_or_assign(PairKey(left, right),
                                 Result{static_cast<uint32_t>(rank), merged});
    bpe.merge_ids_.emplace_back(left, right);
  }

  // Most pieces of real text are one token. Which tokens their own bytes lead
  // to is found once here, so that Encode() need not merge those again.
  Scratch scratch;
  std::vector<int32_t> ids;
  for (auto& [bytes, whole] : bpe.tokens_) {
    whole.direct = options.ignore_merges;
    if (!whole.direct) {
      ids.clear();
      bpe.MergeAll(bytes, &scratch, &ids);
      whole.direct = ids.size() == 1 && ids[0] == whole.id;
    }
  }
  return bpe;
}

int32_t Bpe::Find(absl::string_view bytes) const {
  const auto it = tokens_.find(bytes);
  return it == tokens_.end() ? -1 : it->second.id;
}

bool Bpe::HasEveryByte() const {
  return std::find(byte_ids_, byte_ids_ + 256, -1) == byte_ids_ + 256;
}

void Bpe::Encode(absl::string_view piece, Scratch* scratch,
                 std::vector<int32_t>* ids) const {
  if (piece.size() <= longest_token_) {
    const auto it = tokens_.find(piece);
    if (it != tokens_.end() && it->second.direct) {
      ids->push_back(it->second.id);
      return;
    }
  }
  while (piece.size() > kMaxPieceBytes) {
    MergeAll(piece.substr(0, kMaxPieceBytes), scratch, ids);
    piece.remove_prefix(kMaxPieceBytes);
  }
  MergeAll(piece, scratch, ids);
}

void Bpe::ByteIds(absl::string_view piece, std::vector<int32_t>* ids) const {
  bool last_unknown = false;
  for (const char c : piece) {
    int32_t id = byte_ids_[static_cast<unsigned char>(c)];
    const bool unknown = id < 0;
    if (unknown) {
      if (options_.unknown_id < 0) continue;
      if (last_unknown && options_.fuse_unknown) continue;
      id = options_.unknown_id;
    }
    last_unknown = unknown;
    ids->push_back(id);
  }
}

void Bpe::MergeAll(absl::string_view piece, Scratch* scratch,
                   std::vector<int32_t>* ids) const {
  std::vector<int32_t>& work = scratch->ids;
  work.clear();
  ByteIds(piece, &work);
  if (work.size() <= kShortPiece) {
    MergeShort(&work);
  } else {
    MergeLong(scratch);
  }
  ids->insert(ids->end(), work.begin(), work.end());
}

void Bpe::MergeShort(std::vector<int32_t>* ids) const {
  if (ids->size() < 2) return;
  size_t size = ids->size();
  int32_t* id = ids->data();
  Result pairs[kShortPiece];  // pairs[i]: id[i] with id[i + 1]
  for (size_t i = 0; i + 1 < size; ++i) pairs[i] = Lookup(id[i], id[i + 1]);
  while (size > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < size; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    if (pairs[best].rank == kNoRank) break;
    id[best] = pairs[best].id;
    std::copy(id + best + 2, id + size, id + best + 1);
    if (best + 2 < size) {
      std::copy(pairs + best + 2, pairs + size - 1, pairs + best + 1);
    }
    --size;
    if (best > 0) pairs[best - 1] = Lookup(id[best - 1], id[best]);
    if (best + 1 < size) pairs[best] = Lookup(id[best], id[best + 1]);
  }
  ids->resize(size);
}

void Bpe::MergeLong(Scratch* scratch) const {
  std::vector<int32_t>& ids = scratch->ids;
  std::vector<Scratch::Symbol>& symbols = scratch->symbols;
  std::vector<Scratch::Candidate>& heap = scratch->heap;
  const auto size = static_cast<int32_t>(ids.size());
  // The heap's front is the lowest rank, the leftmost of equals.
  const auto later = [](const Scratch::Candidate& a,
                        const Scratch::Candidate& b) {
    return std::pair(a.rank, a.pos) > std::pair(b.rank, b.pos);
  };

  symbols.resize(ids.size());
  heap.clear();
  for (int32_t i = 0; i < size; ++i) {
    const bool has_next = i + 1 < size;
    const Result pair =
        has_next ? Lookup(ids[i], ids[i + 1]) : Result{kNoRank, -1};
    symbols[i] = {ids[i], i - 1, has_next ? i + 1 : -1, pair.rank, pair.id};
    if (pair.rank != kNoRank) heap.push_back({pair.rank, i});
  }
  std::make_heap(heap.begin(), heap.end(), later);

  const auto update_pair = [&](int32_t pos) {
    Scratch::Symbol& symbol = symbols[pos];
    const Result pair = symbol.next < 0
                            ? Result{kNoRank, -1}
                            : Lookup(symbol.id, symbols[symbol.next].id);
    symbol.rank = pair.rank;
    symbol.merged_id = pair.id;
    if (pair.rank != kNoRank) {
      heap.push_back({pair.rank, pos});
      std::push_heap(heap.begin(), heap.end(), later);
    }
  };

  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Scratch::Candidate top = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbols[top.pos];
    // Stale: the pair changed, or its left side was merged away.
    if (left.rank != top.rank) continue;
    Scratch::Symbol& right = symbols[left.next];
    left.id = left.merged_id;
    left.next = right.next;
    right.rank = kNoRank;
    if (left.next >= 0) symbols[left.next].prev = top.pos;
    update_pair(top.pos);
    if (left.prev >= 0) update_pair(left.prev);
  }

  ids.clear();
  for (int32_t i = size > 0 ? 0 : -1; i >= 0; i = symbols[i].next) {
    ids.push_back(symbols[i].id);
  }
}

}  // namespace overture::engine
