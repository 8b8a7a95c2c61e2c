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

std::string SizesText(const SelectorSpec& spec) {
  if (!spec.head_sizes.empty()) {
    return absl::StrCat("heads=", spec.head_sizes.digest().Hex());
  }
  const kernels::VerticalSlashSize& size = spec.vertical_slash;
  return absl::StrCat("vertical=", size.vertical, " slash=", size.slash);
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
      if (spec.head_sizes.empty()) {
        const kernels::VerticalSlashSize& size = spec.vertical_slash;
        OVERTURE_RETURN_IF_ERROR(
            CheckRange("vertical_slash.vertical", size.vertical, 1, kMax));
        OVERTURE_RETURN_IF_ERROR(
            CheckRange("vertical_slash.slash", size.slash, 1, kMax));
        // The policy's text does not name them.
        constexpr kernels::VerticalSlashSize kDefault;
        if (size.forced_columns != kDefault.forced_columns ||
            size.forced_distances != kDefault.forced_distances) {
          return absl::InvalidArgumentError(absl::StrCat(
              "selector.vertical_slash forces ", size.forced_columns,
              " columns and ", size.forced_distances,
              " distances, one size for all heads must force ",
              kDefault.forced_columns, " and ", kDefault.forced_distances));
        }
      }
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

absl::Status Validate(const SelectorSpec& spec, const ModelConfig& config) {
  OVERTURE_RETURN_IF_ERROR(Validate(spec));
  const HeadSizes& sizes = spec.head_sizes;
  if (sizes.empty() || (sizes.num_layers() == config.num_layers &&
                        sizes.num_q_heads() == config.num_q_heads)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("selector.head_sizes is for ", sizes.num_layers(),
                   " layers of ", sizes.num_q_heads(), " heads, the model has ",
                   config.num_layers, " of ", config.num_q_heads));
}

std::string PolicyText(const SelectorSpec& spec) {
  switch (spec.kind) {
    case SelectorSpec::Kind::kDense:
      return "dense";
    case SelectorSpec::Kind::kAShape:
      return absl::StrCat("a_shape/1 initial=", spec.num_initial,
                          " local=", spec.num_local);
    case SelectorSpec::Kind::kVerticalSlash:
      return absl::StrCat("vertical_slash/3 ", SizesText(spec),
                          " segment=", spec.segment_tokens, " pure aligned");
  }
  OVERTURE_CHECK(false);  // REQUIRES Validate(spec).ok()
}

std::vector<kernels::VerticalSlashSize> SizesOfLayer(const SelectorSpec& spec,
                                                     int32_t layer,
                                                     int32_t num_q_heads) {
  if (spec.head_sizes.empty()) {
    return std::vector<kernels::VerticalSlashSize>(num_q_heads,
                                                   spec.vertical_slash);
  }
  const auto sizes = spec.head_sizes.layer(layer);
  return {sizes.begin(), sizes.end()};
}

SegmentRule SegmentsOf(const SelectorSpec& spec) {
  const int64_t tokens = spec.segment_tokens;
  return {
      .tokens = tokens,
      .long_from = 8 * tokens,
      .long_tokens = std::max(tokens, std::min(4 * tokens, kMaxSegmentTokens))};
}

bool IsTokenPure(const SelectorSpec& spec) {
  return spec.kind != SelectorSpec::Kind::kVerticalSlash;
}

}  // namespace overture::engine
