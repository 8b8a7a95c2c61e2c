#include "engine/nfc.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/unicode.h"

namespace overture::engine {
namespace {

struct Decomposition {
  char32_t composite, first, second;
};
struct Single {
  char32_t code, replacement;
};
struct CombiningRange {
  char32_t first, last;
  uint8_t combining_class;
};

#include "engine/unicode_nfc.inc"

// Hangul syllables are L V or L V T, numbered row by row.
constexpr char32_t kHangulBase = 0xAC00, kLBase = 0x1100, kVBase = 0x1161,
                   kTBase = 0x11A7;
constexpr char32_t kNumL = 19, kNumV = 21, kNumT = 28;
constexpr char32_t kNumHangul = kNumL * kNumV * kNumT;

// Below U+0300 nothing combines and nothing decomposes for good.
constexpr char32_t kFirstCombining = 0x300;

struct Pair {
  char32_t first = 0, second = 0;  // second is 0 for a single replacement
};

class Tables {
 public:
  Tables() {
    for (const Decomposition& d : kComposed) {
      decompositions_[d.composite] = {d.first, d.second};
      compositions_[Key(d.first, d.second)] = d.composite;
      unstable_[d.second] = true;
    }
    for (const Decomposition& d : kExcluded) {
      decompositions_[d.composite] = {d.first, d.second};
      unstable_[d.composite] = true;
    }
    for (const Single& s : kSingles) {
      decompositions_[s.code] = {s.replacement, 0};
      unstable_[s.code] = true;
    }
    for (const CombiningRange& r : kCombining) {
      for (char32_t c = r.first; c <= r.last; ++c) {
        classes_[c] = r.combining_class;
        unstable_[c] = true;
      }
    }
    for (char32_t c = kVBase; c < kVBase + kNumV; ++c) unstable_[c] = true;
    for (char32_t c = kTBase + 1; c < kTBase + kNumT; ++c) unstable_[c] = true;
  }

  uint8_t CombiningClass(char32_t code) const {
    if (code < kFirstCombining) return 0;
    const auto it = classes_.find(code);
    return it == classes_.end() ? 0 : it->second;
  }

  // Whether a text with this character may differ from its NFC.
  bool IsUnstable(char32_t code) const {
    return code >= kFirstCombining && unstable_.contains(code);
  }

  void Decompose(char32_t code, std::vector<char32_t>* out) const {
    if (code >= kHangulBase && code < kHangulBase + kNumHangul) {
      const char32_t index = code - kHangulBase;
      out->push_back(kLBase + index / (kNumV * kNumT));
      out->push_back(kVBase + index % (kNumV * kNumT) / kNumT);
      if (index % kNumT != 0) out->push_back(kTBase + index % kNumT);
      return;
    }
    const auto it = decompositions_.find(code);
    if (it == decompositions_.end()) {
      out->push_back(code);
      return;
    }
    // Only the first part decomposes further, or a single replacement.
    Decompose(it->second.first, out);
    if (it->second.second != 0) Decompose(it->second.second, out);
  }

  // 0 if the two do not compose.
  char32_t Compose(char32_t a, char32_t b) const {
    if (a >= kLBase && a < kLBase + kNumL && b >= kVBase &&
        b < kVBase + kNumV) {
      return kHangulBase + ((a - kLBase) * kNumV + (b - kVBase)) * kNumT;
    }
    if (a >= kHangulBase && a < kHangulBase + kNumHangul &&
        (a - kHangulBase) % kNumT == 0 && b > kTBase && b < kTBase + kNumT) {
      return a + (b - kTBase);
    }
    const auto it = compositions_.find(Key(a, b));
    return it == compositions_.end() ? 0 : it->second;
  }

 private:
  static uint64_t Key(char32_t a, char32_t b) {
    return uint64_t{a} << 32 | uint64_t{b};
  }

  absl::flat_hash_map<char32_t, Pair> decompositions_;
  absl::flat_hash_map<uint64_t, char32_t> compositions_;
  absl::flat_hash_map<char32_t, uint8_t> classes_;
  absl::flat_hash_map<char32_t, bool> unstable_;
};

const Tables& GetTables() {
  static const Tables& tables = *new Tables;
  return tables;
}

// Puts each run of marks into canonical order.
void Reorder(const Tables& tables, std::vector<char32_t>* codes) {
  auto it = codes->begin();
  while (it != codes->end()) {
    if (tables.CombiningClass(*it) == 0) {
      ++it;
      continue;
    }
    auto end = it;
    while (end != codes->end() && tables.CombiningClass(*end) != 0) ++end;
    std::stable_sort(it, end, [&tables](char32_t a, char32_t b) {
      return tables.CombiningClass(a) < tables.CombiningClass(b);
    });
    it = end;
  }
}

void ComposeAll(const Tables& tables, std::vector<char32_t>* codes) {
  constexpr size_t kNone = static_cast<size_t>(-1);
  size_t starter = kNone;  // index of the last starter kept
  size_t size = 0;         // characters kept
  int last_class = 0;      // of the character kept last, if after `starter`
  for (const char32_t code : *codes) {
    const int combining_class = tables.CombiningClass(code);
    const bool adjacent = starter != kNone && size == starter + 1;
    // Blocked if something of the same or a higher class stands between.
    if (starter != kNone && (adjacent || last_class < combining_class)) {
      const char32_t composite = tables.Compose((*codes)[starter], code);
      if (composite != 0) {
        (*codes)[starter] = composite;
        continue;
      }
    }
    if (combining_class == 0) starter = size;
    last_class = combining_class;
    (*codes)[size++] = code;
  }
  codes->resize(size);
}

}  // namespace

bool IsSurelyNfc(absl::string_view text) {
  const Tables& tables = GetTables();
  for (size_t pos = 0; pos < text.size();) {
    // Lead bytes below 0xCC are characters below kFirstCombining.
    if (static_cast<unsigned char>(text[pos]) < 0xCC) {
      ++pos;
      continue;
    }
    const DecodedChar c = DecodeUtf8(text, pos);
    if (c.size == 0) return false;
    if (tables.IsUnstable(c.code)) return false;
    pos += c.size;
  }
  return true;
}

std::string ToNfc(absl::string_view text) {
  const Tables& tables = GetTables();
  std::vector<char32_t> codes;
  codes.reserve(text.size());
  for (size_t pos = 0; pos < text.size();) {
    const DecodedChar c = DecodeUtf8(text, pos);
    if (c.size == 0) break;
    tables.Decompose(c.code, &codes);
    pos += c.size;
  }
  Reorder(tables, &codes);
  ComposeAll(tables, &codes);
  std::string result;
  result.reserve(text.size());
  for (const char32_t code : codes) AppendUtf8(code, &result);
  return result;
}

}  // namespace overture::engine
