#include "proto/selector_text.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace overture::v1 {
namespace {

// Sizes of an A-shape that names none: those of MInference's command line.
constexpr int32_t kInitial = 128;
constexpr int32_t kLocal = 3968;

constexpr absl::string_view kForms =
    "must be dense, a_shape[:INITIAL,LOCAL], tri_shape[:INITIAL,LOCAL[,LAST]], "
    "vertical_slash[:VERTICAL,SLASH][,mass=M][,threshold=T][,count=C][,means]"
    "[,whole_prompt], vertical_slash:per_head[,whole_prompt], "
    "blocks[:threshold=T][,count=C][,means][,initial=I][,local=L], "
    "random_blocks:DENSITY[,SEED] or oracle:DENSITY; all take dense_until=P "
    "and skip=S";

bool ParseNumber(absl::string_view text, float* value) {
  return absl::SimpleAtof(text, value);
}
template <typename T>
bool ParseNumber(absl::string_view text, T* value) {
  return absl::SimpleAtoi(text, value);
}

// The arguments of a selector. Takes them one by one and remembers the first
// thing that was wrong.
class Arguments {
 public:
  explicit Arguments(absl::string_view text) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(text, absl::MaxSplits(':', 1));
    kind_ = all_ = parts.first;
    if (kind_ == text) return;
    all_ = parts.second;
    for (absl::string_view part : absl::StrSplit(parts.second, ',')) {
      const bool is_named = !part.empty() && absl::ascii_isalpha(part[0]);
      if (!is_named && !named_.empty()) Fail(named_[0]);  // numbers come first
      (is_named ? named_ : numbers_).push_back(part);
    }
  }

  absl::string_view kind() const { return kind_; }

  // The i-th of the numbers that come first.
  template <typename T>
  T Number(size_t i, T otherwise) {
    num_asked_ = std::max(num_asked_, i + 1);
    return i < numbers_.size() ? Parse(numbers_[i], numbers_[i], otherwise)
                               : otherwise;
  }
  // Refuses another count of them.
  void Expect(std::initializer_list<size_t> counts) {
    if (std::find(counts.begin(), counts.end(), numbers_.size()) ==
        counts.end()) {
      Fail(numbers_.empty() ? all_ : absl::StrJoin(numbers_, ","));
    }
  }

  bool Word(absl::string_view word) {
    const auto found = std::find(named_.begin(), named_.end(), word);
    if (found == named_.end()) return false;
    named_.erase(found);
    return true;
  }

  bool Has(absl::string_view name) const { return Find(name) != named_.end(); }
  template <typename T>
  T Named(absl::string_view name, T otherwise) {
    const auto found = Find(name);
    if (found == named_.end()) return otherwise;
    const absl::string_view part = *found;
    named_.erase(found);
    return Parse(part, part.substr(name.size() + 1), otherwise);
  }

  void Fail(absl::string_view part) {
    if (wrong_.empty()) wrong_ = absl::StrCat("'", part, "'");
  }
  // Empty, or what is wrong; what nobody took is.
  std::string Wrong() {
    if (!named_.empty()) Fail(named_[0]);
    if (numbers_.size() > num_asked_) Fail(numbers_[num_asked_]);
    return wrong_;
  }

 private:
  std::vector<absl::string_view>::const_iterator Find(
      absl::string_view name) const {
    return std::find_if(
        named_.begin(), named_.end(), [&](absl::string_view part) {
          return part.size() > name.size() && part[name.size()] == '=' &&
                 absl::StartsWith(part, name);
        });
  }
  template <typename T>
  T Parse(absl::string_view part, absl::string_view number, T otherwise) {
    T value = otherwise;
    if (!ParseNumber(number, &value) || !(value >= T{0})) Fail(part);
    return value;
  }

  absl::string_view kind_;
  absl::string_view all_;  // of them, the kind if there are none
  std::vector<absl::string_view> numbers_;
  std::vector<absl::string_view> named_;  // "name=value" or a word
  size_t num_asked_ = 0;
  std::string wrong_;
};

void ParseVerticalSlash(Arguments& in, Selector::VerticalSlash* out) {
  out->set_whole_prompt(in.Word("whole_prompt"));
  if (in.Word("per_head")) {
    out->set_per_head(true);
    return;
  }
  in.Expect({0, 2});
  out->set_vertical(in.Number<int32_t>(0, 0));
  out->set_slash(in.Number<int32_t>(1, 0));
  out->set_mass(in.Named<float>("mass", 0));
  out->set_threshold(in.Named<float>("threshold", 0));
  out->set_count(in.Named<int32_t>("count", 0));
  out->set_correct_means(in.Word("means"));
}

void ParseBlocks(Arguments& in, Selector::Blocks* out) {
  out->set_threshold(in.Named<float>("threshold", 0));
  out->set_count(in.Named<int32_t>("count", 0));
  out->set_correct_means(in.Word("means"));
  out->set_num_initial(in.Named<int32_t>("initial", 0));
  out->set_num_local(in.Named<int32_t>("local", 0));
}

// False for no such kind.
bool ParseKind(Arguments& in, Selector* out) {
  const absl::string_view kind = in.kind();
  if (kind == "dense") {
    out->mutable_dense();
  } else if (kind == "a_shape") {
    in.Expect({0, 2});
    out->mutable_a_shape()->set_num_initial(in.Number(0, kInitial));
    out->mutable_a_shape()->set_num_local(in.Number(1, kLocal));
  } else if (kind == "tri_shape") {
    in.Expect({0, 2, 3});
    out->mutable_tri_shape()->set_num_initial(in.Number(0, kInitial));
    out->mutable_tri_shape()->set_num_local(in.Number(1, kLocal));
    out->mutable_tri_shape()->set_num_last(in.Number<int32_t>(2, 0));
  } else if (kind == "vertical_slash") {
    ParseVerticalSlash(in, out->mutable_vertical_slash());
  } else if (kind == "blocks") {
    ParseBlocks(in, out->mutable_blocks());
  } else if (kind == "random_blocks") {
    in.Expect({1, 2});
    out->mutable_random_blocks()->set_density(in.Number<float>(0, 0));
    out->mutable_random_blocks()->set_seed(in.Number<uint32_t>(1, 0));
  } else if (kind == "oracle") {
    in.Expect({1});
    out->mutable_oracle()->set_density(in.Number<float>(0, 0));
  } else {
    return false;
  }
  return true;
}

// "name=value" of what is set, and words, in one order.
class Writer {
 public:
  explicit Writer(absl::string_view kind) : text_(kind) {}
  template <typename T>
  void Number(T value) {
    Append(Digits(value));
  }
  template <typename T>
  void Named(absl::string_view name, T value) {
    if (value != T{0}) NamedAlways(name, value);
  }
  // For fields of which zero is not the same as none.
  template <typename T>
  void NamedAlways(absl::string_view name, T value) {
    Append(absl::StrCat(name, "=", Digits(value)));
  }
  void Word(absl::string_view name, bool stands) {
    if (stands) Append(name);
  }
  std::string text() const { return text_; }

 private:
  // As few digits as are read as the same number.
  template <typename T>
  static std::string Digits(T value) {
    char buffer[32];
    return {buffer, std::to_chars(buffer, std::end(buffer), value).ptr};
  }
  void Append(absl::string_view part) {
    absl::StrAppend(&text_, has_arguments_ ? "," : ":", part);
    has_arguments_ = true;
  }
  std::string text_;
  bool has_arguments_ = false;
};

void WriteVerticalSlash(const Selector::VerticalSlash& in, Writer& out) {
  if (in.per_head()) {
    out.Word("per_head", true);
  } else if (in.vertical() != 0 || in.slash() != 0) {
    out.Number(in.vertical());
    out.Number(in.slash());
  }
  out.Named("mass", in.mass());
  out.Named("threshold", in.threshold());
  out.Named("count", in.count());
  out.Word("means", in.correct_means());
  out.Word("whole_prompt", in.whole_prompt());
}

void WriteBlocks(const Selector::Blocks& in, Writer& out) {
  out.Named("threshold", in.threshold());
  out.Named("count", in.count());
  out.Word("means", in.correct_means());
  out.Named("initial", in.num_initial());
  out.Named("local", in.num_local());
}

}  // namespace

absl::StatusOr<Selector> ParseSelector(absl::string_view text) {
  Arguments in(text);
  Selector selector;
  const bool is_known = ParseKind(in, &selector);
  if (in.Has("dense_until")) {
    selector.set_dense_until(in.Named<int64_t>("dense_until", 0));
  }
  selector.set_skip_threshold(in.Named<float>("skip", 0));
  const std::string wrong = in.Wrong();
  if (is_known && wrong.empty()) return selector;
  return absl::InvalidArgumentError(
      absl::StrCat("selector '", text, "'",
                   is_known ? absl::StrCat(", at ", wrong) : "", ": ", kForms));
}

std::string SelectorText(const Selector& selector) {
  const auto* field = selector.GetDescriptor()->FindFieldByNumber(
      static_cast<int>(selector.kind_case()));
  if (field == nullptr) return "default";
  // The kinds' names are those of their fields.
  Writer out(field->name());
  switch (selector.kind_case()) {
    case Selector::kDense:
    case Selector::KIND_NOT_SET:
      break;
    case Selector::kAShape:
      out.Number(selector.a_shape().num_initial());
      out.Number(selector.a_shape().num_local());
      break;
    case Selector::kTriShape:
      out.Number(selector.tri_shape().num_initial());
      out.Number(selector.tri_shape().num_local());
      if (selector.tri_shape().num_last() != 0) {
        out.Number(selector.tri_shape().num_last());
      }
      break;
    case Selector::kVerticalSlash:
      WriteVerticalSlash(selector.vertical_slash(), out);
      break;
    case Selector::kBlocks:
      WriteBlocks(selector.blocks(), out);
      break;
    case Selector::kRandomBlocks:
      out.Number(selector.random_blocks().density());
      out.Number(selector.random_blocks().seed());
      break;
    case Selector::kOracle:
      out.Number(selector.oracle().density());
      break;
  }
  if (selector.has_dense_until()) {
    out.NamedAlways("dense_until", selector.dense_until());
  }
  out.Named("skip", selector.skip_threshold());
  return out.text();
}

}  // namespace overture::v1
