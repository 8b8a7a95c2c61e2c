#include "engine/selector_spec.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/kv_layout.h"
#include "base/status_macros.h"

namespace overture::engine {
namespace {

// Queries of a whole segment are held at once, which admission counts on.
constexpr int64_t kMaxSegmentTokens = 65536;

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t least,
                        int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("selector.", field, " is ",
                                                 value, ", must be in [", least,
                                                 ", ", most, "]"));
}

}  // namespace

absl::Status Validate(const SelectorSpec& spec) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  switch (spec.kind) {
    case SelectorSpec::Kind::kDense:
      return absl::OkStatus();
    case SelectorSpec::Kind::kAShape:
      OVERTURE_RETURN_IF_ERROR(
          CheckRange("num_initial", spec.num_initial, 0, kMax));
      return CheckRange("num_local", spec.num_local, 1, kMax);
    case SelectorSpec::Kind::kVerticalSlash:
      OVERTURE_RETURN_IF_ERROR(CheckRange(
          "vertical_slash.vertical", spec.vertical_slash.vertical, 1, kMax));
      OVERTURE_RETURN_IF_ERROR(CheckRange("vertical_slash.slash",
                                          spec.vertical_slash.slash, 1, kMax));
      OVERTURE_RETURN_IF_ERROR(CheckRange("segment_tokens", spec.segment_tokens,
                                          kTokensPerBlock, kMaxSegmentTokens));
      if (spec.segment_tokens % kTokensPerBlock != 0) {
        return absl::InvalidArgumentError(
            absl::StrCat("selector.segment_tokens is ", spec.segment_tokens,
                         ", must be a multiple of ", kTokensPerBlock));
      }
      return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "selector.kind is ", static_cast<int>(spec.kind), ", must be 0 to 2"));
}

std::string PolicyText(const SelectorSpec& spec) {
  switch (spec.kind) {
    case SelectorSpec::Kind::kDense:
      return "dense";
    case SelectorSpec::Kind::kAShape:
      return absl::StrCat("a_shape/1 initial=", spec.num_initial,
                          " local=", spec.num_local);
    case SelectorSpec::Kind::kVerticalSlash:
      return absl::StrCat(
          "vertical_slash/2 vertical=", spec.vertical_slash.vertical,
          " slash=", spec.vertical_slash.slash,
          " segment=", spec.segment_tokens, " pure aligned");
  }
  OVERTURE_CHECK(false);  // REQUIRES Validate(spec).ok()
}

bool IsTokenPure(const SelectorSpec& spec) {
  return spec.kind != SelectorSpec::Kind::kVerticalSlash;
}

}  // namespace overture::engine
