#include "engine/unicode.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <vector>

namespace overture::engine {
namespace {

struct Range {
  char32_t first;
  char32_t last;
};

#include "engine/unicode_classes.inc"

// One class per code point, in blocks of 256 of which equal ones are shared:
// a two-step lookup in about 40 KB instead of 1.1 MB.
class ClassTable {
 public:
  ClassTable() {
    std::vector<CharClass> flat(kNumCodes, CharClass::kOther);
    for (const Range& r : kLetterRanges) Fill(r, CharClass::kLetter, &flat);
    for (const Range& r : kNumberRanges) Fill(r, CharClass::kNumber, &flat);
    for (const Range& r : kSpaceRanges) Fill(r, CharClass::kSpace, &flat);
    for (size_t block = 0; block < kNumCodes / kBlock; ++block) {
      const CharClass* source = &flat[block * kBlock];
      size_t found = 0;
      const size_t num_blocks = data_.size() / kBlock;
      while (found < num_blocks &&
             std::memcmp(&data_[found * kBlock], source, kBlock) != 0) {
        ++found;
      }
      if (found == num_blocks) {
        data_.insert(data_.end(), source, source + kBlock);
      }
      index_[block] = static_cast<uint16_t>(found);
    }
  }

  CharClass operator[](char32_t code) const {
    return data_[index_[code / kBlock] * kBlock + code % kBlock];
  }

  static constexpr size_t kNumCodes = 0x110000;

 private:
  static constexpr size_t kBlock = 256;

  static void Fill(const Range& range, CharClass value,
                   std::vector<CharClass>* flat) {
    for (char32_t c = range.first; c <= range.last; ++c) (*flat)[c] = value;
  }

  std::vector<CharClass> data_;
  std::array<uint16_t, kNumCodes / kBlock> index_{};
};

bool IsContinuation(unsigned char byte) { return (byte & 0xC0) == 0x80; }

// How much of a well-formed sequence stands at text[pos].
struct OpenSequence {
  size_t present = 0;  // bytes; 0 where none can start
  size_t wanted = 0;
};
OpenSequence OpenSequenceAt(absl::string_view text, size_t pos) {
  const auto lead = static_cast<unsigned char>(text[pos]);
  if (lead < 0x80) return {1, 1};
  if (lead < 0xC2 || lead > 0xF4) return {};
  const size_t wanted = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
  // Overlong forms, surrogates and codes above U+10FFFF show in byte two.
  const unsigned char low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  size_t present = 1;
  while (present < wanted && pos + present < text.size()) {
    const auto byte = static_cast<unsigned char>(text[pos + present]);
    const bool fits =
        present == 1 ? byte >= low && byte <= high : IsContinuation(byte);
    if (!fits) break;
    ++present;
  }
  return {present, wanted};
}

}  // namespace

CharClass ClassOf(char32_t code) {
  static const ClassTable& table = *new ClassTable;
  return code < ClassTable::kNumCodes ? table[code] : CharClass::kOther;
}

bool IsWordChar(char32_t code) {
  if (ClassOf(code) == CharClass::kLetter) return true;
  const auto* after = std::upper_bound(
      std::begin(kOtherWordRanges), std::end(kOtherWordRanges), code,
      [](char32_t c, const Range& range) { return c < range.first; });
  return after != std::begin(kOtherWordRanges) && code <= after[-1].last;
}

DecodedChar DecodeUtf8(absl::string_view text, size_t pos) {
  if (pos >= text.size()) return {};
  const auto* p = reinterpret_cast<const unsigned char*>(text.data()) + pos;
  const size_t left = text.size() - pos;
  const unsigned char lead = p[0];
  if (lead < 0x80) return {lead, 1};
  if (lead < 0xC2) return {};  // continuation, or an overlong two-byte form
  if (lead < 0xE0) {
    if (left < 2 || !IsContinuation(p[1])) return {};
    return {char32_t(lead & 0x1F) << 6 | (p[1] & 0x3F), 2};
  }
  if (lead < 0xF0) {
    if (left < 3 || !IsContinuation(p[1]) || !IsContinuation(p[2])) return {};
    const char32_t code =
        char32_t(lead & 0x0F) << 12 | (p[1] & 0x3F) << 6 | (p[2] & 0x3F);
    if (code < 0x800 || (code >= 0xD800 && code < 0xE000)) return {};
    return {code, 3};
  }
  if (lead > 0xF4 || left < 4 || !IsContinuation(p[1]) ||
      !IsContinuation(p[2]) || !IsContinuation(p[3])) {
    return {};
  }
  const char32_t code = char32_t(lead & 0x07) << 18 | (p[1] & 0x3F) << 12 |
                        (p[2] & 0x3F) << 6 | (p[3] & 0x3F);
  if (code < 0x10000 || code > 0x10FFFF) return {};
  return {code, 4};
}

DecodedChar DecodeUtf8Before(absl::string_view text, size_t end) {
  for (size_t size = 1; size <= 4 && size <= end; ++size) {
    const auto byte = static_cast<unsigned char>(text[end - size]);
    if (IsContinuation(byte)) continue;
    const DecodedChar c = DecodeUtf8(text.substr(0, end), end - size);
    return c.size == size ? c : DecodedChar{};
  }
  return {};
}

void AppendUtf8(char32_t code, std::string* out) {
  if (code < 0x80) {
    out->push_back(static_cast<char>(code));
    return;
  }
  if (code < 0x800) {
    out->push_back(static_cast<char>(0xC0 | code >> 6));
  } else {
    if (code < 0x10000) {
      out->push_back(static_cast<char>(0xE0 | code >> 12));
    } else {
      out->push_back(static_cast<char>(0xF0 | code >> 18));
      out->push_back(static_cast<char>(0x80 | (code >> 12 & 0x3F)));
    }
    out->push_back(static_cast<char>(0x80 | (code >> 6 & 0x3F)));
  }
  out->push_back(static_cast<char>(0x80 | (code & 0x3F)));
}

size_t ValidUtf8Prefix(absl::string_view text) {
  size_t pos = 0;
  while (pos < text.size()) {
    // Eight ASCII bytes at a time.
    uint64_t word;
    while (text.size() - pos >= sizeof(word)) {
      std::memcpy(&word, text.data() + pos, sizeof(word));
      if (word & 0x8080808080808080ull) break;
      pos += sizeof(word);
    }
    const size_t size = DecodeUtf8(text, pos).size;
    if (size == 0) break;  // the end, too
    pos += size;
  }
  return pos;
}

size_t CompleteUtf8Prefix(absl::string_view text) {
  // Only the last three bytes can start a sequence that is still open.
  for (size_t back = 1; back <= 3 && back <= text.size(); ++back) {
    const size_t start = text.size() - back;
    const OpenSequence open = OpenSequenceAt(text, start);
    if (open.present == back && open.present < open.wanted) return start;
  }
  return text.size();
}

std::string ReplaceIllFormed(absl::string_view text) {
  std::string result;
  result.reserve(text.size());
  for (;;) {
    const size_t valid = ValidUtf8Prefix(text);
    result.append(text.data(), valid);
    text.remove_prefix(valid);
    if (text.empty()) return result;
    result += "\xEF\xBF\xBD";
    text.remove_prefix(std::max<size_t>(OpenSequenceAt(text, 0).present, 1));
  }
}

}  // namespace overture::engine
