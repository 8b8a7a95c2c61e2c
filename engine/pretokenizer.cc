#include "engine/pretokenizer.h"

#include "engine/unicode.h"

namespace overture::engine {
namespace {

// Reads characters with their classes. Past the end the size is 0; an
// ill-formed byte is one character of class kOther, so a scan always advances.
class Reader {
 public:
  explicit Reader(absl::string_view text) : text_(text) {}

  struct Char {
    char32_t code = 0;
    CharClass char_class = CharClass::kOther;
    size_t size = 0;
    bool IsNewline() const {
      return size == 1 && (code == '\r' || code == '\n');
    }
    bool Is(CharClass c) const { return size > 0 && char_class == c; }
  };

  Char At(size_t pos) const {
    if (pos >= text_.size()) return {};
    const auto byte = static_cast<unsigned char>(text_[pos]);
    if (byte < 0x80) return {byte, AsciiClass(byte), 1};
    const DecodedChar c = DecodeUtf8(text_, pos);
    if (c.size == 0) return {byte, CharClass::kOther, 1};
    return {c.code, ClassOf(c.code), c.size};
  }

  // End of the run of `c` that starts at `pos`, at most `max_chars` long.
  size_t RunEnd(size_t pos, CharClass c, size_t max_chars = SIZE_MAX) const {
    for (; max_chars > 0; --max_chars) {
      const Char next = At(pos);
      if (!next.Is(c)) break;
      pos += next.size;
    }
    return pos;
  }

  size_t NewlinesEnd(size_t pos) const {
    while (At(pos).IsNewline()) ++pos;
    return pos;
  }

  // `\s+(?!\S)|\s+` at white space: a run gives its last character to what
  // follows, unless it is alone or nothing follows.
  size_t SpacesEnd(size_t pos) const {
    size_t last = pos, end = pos;
    for (Char c = At(pos); c.Is(CharClass::kSpace); c = At(end)) {
      last = end;
      end += c.size;
    }
    return end == text_.size() || last == pos ? end : last;
  }

  // `\s*[\r\n]+` at white space: through the last newline of the run, or `pos`
  // if it has none.
  size_t ThroughLastNewline(size_t pos) const {
    size_t newline_end = pos;
    for (Char c = At(pos); c.Is(CharClass::kSpace); c = At(pos)) {
      pos += c.size;
      if (c.IsNewline()) newline_end = pos;
    }
    return newline_end;
  }

  // `'s|'t|'re|'ve|'m|'ll|'d` at an apostrophe: its end, or `pos` if none.
  size_t ContractionEnd(size_t pos, bool ignore_case) const {
    const Char a = Fold(At(pos + 1), ignore_case);
    switch (a.code) {
      case 's':
      case 't':
      case 'm':
      case 'd':
        return pos + 1 + a.size;
      case 'r':
      case 'v':
      case 'l': {
        const Char b = Fold(At(pos + 1 + a.size), ignore_case);
        if (b.code == (a.code == 'l' ? U'l' : U'e')) {
          return pos + 1 + a.size + b.size;
        }
        return pos;
      }
      default:
        return pos;
    }
  }

 private:
  static CharClass AsciiClass(unsigned char byte) {
    if ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z') return CharClass::kLetter;
    if (byte >= '0' && byte <= '9') return CharClass::kNumber;
    if (byte == ' ' || (byte >= '\t' && byte <= '\r')) return CharClass::kSpace;
    return CharClass::kOther;
  }

  static Char Fold(Char c, bool ignore_case) {
    if (!ignore_case) return c;
    if (c.code >= 'A' && c.code <= 'Z') c.code |= 0x20;
    // LATIN SMALL LETTER LONG S: the only other character whose simple case
    // folding is a letter of a contraction.
    if (c.code == 0x17F) c.code = 's';
    return c;
  }

  absl::string_view text_;
};

size_t Gpt2End(const Reader& reader, size_t pos) {
  const Reader::Char first = reader.At(pos);
  if (first.code == '\'') {
    const size_t end = reader.ContractionEnd(pos, /*ignore_case=*/false);
    if (end != pos) return end;
  }
  // ` ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+`
  const size_t start = first.code == ' ' ? pos + 1 : pos;
  const Reader::Char next = reader.At(start);
  if (next.size > 0 && next.char_class != CharClass::kSpace) {
    return reader.RunEnd(start, next.char_class);
  }
  return reader.SpacesEnd(pos);
}

size_t Llama3End(const Reader& reader, size_t pos, size_t max_digits) {
  const Reader::Char first = reader.At(pos);
  if (first.code == '\'') {
    const size_t end = reader.ContractionEnd(pos, /*ignore_case=*/true);
    if (end != pos) return end;
  }
  // `[^\r\n\p{L}\p{N}]?\p{L}+`
  if (first.Is(CharClass::kLetter)) {
    return reader.RunEnd(pos, CharClass::kLetter);
  }
  if (!first.IsNewline() && !first.Is(CharClass::kNumber)) {
    const size_t end = reader.RunEnd(pos + first.size, CharClass::kLetter);
    if (end != pos + first.size) return end;
  }
  // `\p{N}{1,3}` or `\p{N}`
  if (first.Is(CharClass::kNumber)) {
    return reader.RunEnd(pos, CharClass::kNumber, max_digits);
  }
  // ` ?[^\s\p{L}\p{N}]+[\r\n]*`
  const size_t start = first.code == ' ' ? pos + 1 : pos;
  if (reader.At(start).Is(CharClass::kOther)) {
    return reader.NewlinesEnd(reader.RunEnd(start, CharClass::kOther));
  }
  // `\s*[\r\n]+|\s+(?!\S)|\s+`
  const size_t end = reader.ThroughLastNewline(pos);
  return end != pos ? end : reader.SpacesEnd(pos);
}

size_t DigitsEnd(const Reader& reader, size_t pos, size_t max_digits) {
  if (reader.At(pos).Is(CharClass::kNumber)) {
    return reader.RunEnd(pos, CharClass::kNumber, max_digits);
  }
  for (;;) {
    const Reader::Char c = reader.At(pos);
    if (c.size == 0 || c.char_class == CharClass::kNumber) return pos;
    pos += c.size;
  }
}

size_t WordEnd(const Reader& reader, size_t pos) {
  for (;;) {
    const Reader::Char c = reader.At(pos);
    if (c.size == 0 || c.char_class == CharClass::kSpace) return pos;
    pos += c.size;
  }
}

}  // namespace

void PreTokenizer::SplitFrom(size_t step_idx, absl::string_view text,
                             Sink sink) const {
  if (text.empty()) return;
  if (step_idx == steps_.size()) {
    sink(text);
    return;
  }
  const Step step = steps_[step_idx];
  if (step == Step::kPrefixSpace) {
    if (text[0] == ' ') {
      SplitFrom(step_idx + 1, text, sink);
    } else {
      std::string with_space(1, ' ');
      with_space.append(text.data(), text.size());
      SplitFrom(step_idx + 1, with_space, sink);
    }
    return;
  }
  const Reader reader(text);
  const bool is_last = step_idx + 1 == steps_.size();
  for (size_t pos = 0; pos < text.size();) {
    size_t end = pos;
    switch (step) {
      case Step::kGpt2:
        end = Gpt2End(reader, pos);
        break;
      case Step::kLlama3:
        end = Llama3End(reader, pos, /*max_digits=*/3);
        break;
      case Step::kQwen2:
        end = Llama3End(reader, pos, /*max_digits=*/1);
        break;
      case Step::kDigits:
        end = DigitsEnd(reader, pos, /*max_digits=*/1);
        break;
      case Step::kDigitRuns:
        end = DigitsEnd(reader, pos, /*max_digits=*/SIZE_MAX);
        break;
      case Step::kWhitespace:
        pos = reader.RunEnd(pos, CharClass::kSpace);
        end = WordEnd(reader, pos);
        break;
      case Step::kPrefixSpace:
        break;  // above
    }
    if (end == pos) break;  // only white space was left for kWhitespace
    const absl::string_view piece = text.substr(pos, end - pos);
    if (is_last) {
      sink(piece);
    } else {
      SplitFrom(step_idx + 1, piece, sink);
    }
    pos = end;
  }
}

}  // namespace overture::engine
