// Byte-pair merging of one piece of text, over raw bytes: starts from the
// piece's bytes and merges, again and again, the adjacent pair of lowest rank,
// the leftmost of equals.
//
// Immutable after Create(), so thread-safe; each thread brings its own Scratch.
// A piece of n bytes costs O(n log n) time and about 40 n bytes of scratch.
// Source: Hugging Face `tokenizers`, src/models/bpe/{model,word}.rs, whose
// results this equals; dropout and sub-word prefixes are left out.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace overture::engine {

class Bpe {
 public:
  struct Token {
    std::string bytes;
    int32_t id = 0;
  };
  // Two tokens whose bytes, joined, are a third; its rank is its index.
  struct Merge {
    std::string left;
    std::string right;
  };
  struct Options {
    // A piece that is a token as a whole becomes that token even where the
    // merges do not lead there (Llama-3).
    bool ignore_merges = false;
    // Stands for bytes that are no token; -1 drops them (SmolLM2 lacks 21
    // bytes, none of which ordinary text has).
    int32_t unknown_id = -1;
    // A run of unknown bytes becomes one unknown_id instead of many.
    bool fuse_unknown = false;
  };

  // Longer tokens are refused: real ones end at a few hundred bytes, and each
  // costs scratch while it is checked.
  static constexpr size_t kMaxTokenBytes = 1 << 16;

  // INVALID_ARGUMENT naming the token's id or the merge's index: empty or too
  // long token, two tokens with the same bytes, merge of or into no token.
  // If a pair has two ranks, the later one counts, as in the source.
  static absl::StatusOr<Bpe> Create(absl::Span<const Token> tokens,
                                    absl::Span<const Merge> merges,
                                    const Options& options);

  // Working memory that is reused from piece to piece. One thread.
  class Scratch {
   private:
    friend class Bpe;
    struct Symbol {
      int32_t id;
      int32_t prev;       // -1 at the start
      int32_t next;       // -1 at the end
      uint32_t rank;      // of the pair with `next`; kNoRank if none
      int32_t merged_id;  // what that pair becomes
    };
    struct Candidate {
      uint32_t rank;
      int32_t pos;
    };
    std::vector<int32_t> ids;
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // Appends the ids of `piece`, which may be any bytes.
  void Encode(absl::string_view piece, Scratch* scratch,
              std::vector<int32_t>* ids) const;

  // Id of the token with exactly these bytes, or -1.
  int32_t Find(absl::string_view bytes) const;

  // Whether each of the 256 bytes is a token, so that none is unknown.
  bool HasEveryByte() const;

  // {left id, right id} by rank.
  absl::Span<const std::pair<int32_t, int32_t>> merge_ids() const {
    return merge_ids_;
  }

 private:
  static constexpr uint32_t kNoRank = std::numeric_limits<uint32_t>::max();

  struct Whole {
    int32_t id;
    bool direct;  // Encode(bytes) is {id}
  };
  struct Result {
    uint32_t rank;
    int32_t id;
  };

  static uint64_t PairKey(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 |
           static_cast<uint32_t>(right);
  }
  Result Lookup(int32_t left, int32_t right) const {
    const auto it = merges_.find(PairKey(left, right));
    return it == merges_.end() ? Result{kNoRank, -1} : it->second;
  }
  void ByteIds(absl::string_view piece, std::vector<int32_t>* ids) const;
  void MergeAll(absl::string_view piece, Scratch* scratch,
                std::vector<int32_t>* ids) const;
  void MergeShort(std::vector<int32_t>* ids) const;
  void MergeLong(Scratch* scratch) const;

  Options options_;
  size_t longest_token_ = 0;
  int32_t byte_ids_[256];  // -1 where a byte is no token
  absl::flat_hash_map<std::string, Whole> tokens_;
  absl::flat_hash_map<uint64_t, Result> merges_;
  std::vector<std::pair<int32_t, int32_t>> merge_ids_;
};

}  // namespace overture::engine
