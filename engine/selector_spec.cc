#include "engine/selector_spec.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/kv_layout.h"
#include "base/status_macros.h"

namespace overture::engine {
namespace {

constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// With every digit, since it enters a cache root.
void AppendShare(absl::string_view name, float value, std::string* text) {
  if (value > 0) absl::StrAppendFormat(text, " %s=%.9g", name, value);
}

absl::Status CheckRange(absl::string_view field, int64_t value, int64_t least,
                        int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("selector.", field, " is ",
                                                 value, ", must be in [", least,
                                                 ", ", most, "]"));
}

absl::Status CheckShare(absl::string_view field, float value, bool may_be_0,
                        bool may_be_1) {
  // False for a NaN.
  if ((may_be_0 ? value >= 0 : value > 0) &&
      (may_be_1 ? value <= 1 : value < 1)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("selector.", field, " is ", value, ", must be within ",
                   may_be_0 ? "[0, 1" : "(0, 1", may_be_1 ? "]" : ")"));
}

absl::Status CheckBlockMultiple(absl::string_view field, int64_t value) {
  if (value % kTokensPerBlock == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("selector.", field, " is ", value,
                   ", must be a multiple of ", kTokensPerBlock));
}

// Of a_shape and tri_shape.
absl::Status CheckWindow(absl::string_view kind, const SelectorSpec& spec) {
  OVERTURE_RETURN_IF_ERROR(CheckRange(absl::StrCat(kind, ".num_initial"),
                                      spec.num_initial, 0, kMaxInt32));
  return CheckRange(absl::StrCat(kind, ".num_local"), spec.num_local, 1,
                    kMaxInt32);
}

absl::Status CheckKind(const SelectorSpec& spec) {
  using Kind = SelectorSpec::Kind;
  switch (spec.kind) {
    case Kind::kDense:
      return absl::OkStatus();
    case Kind::kTriShape:
      OVERTURE_RETURN_IF_ERROR(
          CheckRange("tri_shape.num_last", spec.num_last, 1, kMaxInt32));
      return CheckWindow("tri_shape", spec);
    case Kind::kAShape:
      return CheckWindow("a_shape", spec);
    case Kind::kDynamic:
      if (!spec.head_sizes.empty()) return absl::OkStatus();
      OVERTURE_RETURN_IF_ERROR(WithContext(
          kernels::Validate(spec.vertical_slash), "selector.vertical_slash"));
      // Zero is what a message has that does not say.
      OVERTURE_RETURN_IF_ERROR(CheckRange("vertical_slash.vertical",
                                          spec.vertical_slash.vertical, 1,
                                          kMaxInt32));
      return CheckRange("vertical_slash.slash", spec.vertical_slash.slash, 1,
                        kMaxInt32);
    case Kind::kRandomBlocks:
      return CheckShare("random_blocks.density", spec.block_density, false,
                        true);
    case Kind::kOracle:
      return CheckShare("oracle.density", spec.block_density, false, true);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "selector.kind is ", static_cast<int>(spec.kind), ", must be 0 to 5"));
}

// What has a value beside its default, each after a space.
std::string SizeText(const kernels::VerticalSlashSize& size) {
  std::string text =
      absl::StrCat(" vertical=", size.vertical, " slash=", size.slash,
                   " forced=", size.forced_columns, ",", size.forced_distances);
  AppendShare("mass", size.mass, &text);
  AppendShare("threshold", size.blocks.threshold, &text);
  if (size.blocks.count > 0) {
    absl::StrAppend(&text, " count=", size.blocks.count);
  }
  if (size.blocks.correct_means) absl::StrAppend(&text, " means");
  return text;
}

std::string KindText(const SelectorSpec& spec) {
  using Kind = SelectorSpec::Kind;
  switch (spec.kind) {
    case Kind::kDense:
      return "dense";
    case Kind::kAShape:
      return absl::StrCat("a_shape/1 initial=", spec.num_initial,
                          " local=", spec.num_local);
    case Kind::kTriShape:
      return absl::StrCat("tri_shape/1 initial=", spec.num_initial,
                          " local=", spec.num_local, " last=", spec.num_last);
    case Kind::kDynamic:
      return absl::StrCat(
          "vertical_slash/5",
          spec.head_sizes.empty()
              ? SizeText(spec.vertical_slash)
              : absl::StrCat(" heads=", spec.head_sizes.digest().Hex()));
    case Kind::kRandomBlocks: {
      std::string text = absl::StrCat("random_blocks/1 seed=", spec.seed);
      AppendShare("density", spec.block_density, &text);
      return text;
    }
    case Kind::kOracle: {
      std::string text = "oracle/1";
      AppendShare("density", spec.block_density, &text);
      return text;
    }
  }
  OVERTURE_CHECK(false);  // REQUIRES Validate(spec).ok()
}

}  // namespace

absl::Status Validate(const SelectorSpec& spec) {
  OVERTURE_RETURN_IF_ERROR(CheckKind(spec));
  OVERTURE_RETURN_IF_ERROR(
      CheckShare("skip_threshold", spec.skip_threshold, true, false));
  if (spec.kind == SelectorSpec::Kind::kDense) return absl::OkStatus();
  OVERTURE_RETURN_IF_ERROR(
      CheckRange("dense_until", spec.dense_until, 0, kMaxInt32));
  OVERTURE_RETURN_IF_ERROR(CheckBlockMultiple("dense_until", spec.dense_until));
  if (IsTokenPure(spec)) return absl::OkStatus();
  OVERTURE_RETURN_IF_ERROR(CheckRange("segment_tokens", spec.segment_tokens,
                                      kTokensPerBlock, kMaxSegmentTokens));
  return CheckBlockMultiple("segment_tokens", spec.segment_tokens);
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
  std::string text = KindText(spec);
  if (!IsTokenPure(spec)) {
    if (spec.whole_prompt) {
      absl::StrAppend(&text, " whole_prompt impure");
    } else {
      absl::StrAppend(&text, " segment=", spec.segment_tokens, " pure");
    }
  }
  if (spec.kind != SelectorSpec::Kind::kDense && spec.dense_until > 0) {
    absl::StrAppend(&text, " dense_until=", spec.dense_until);
  }
  AppendShare("skip", spec.skip_threshold, &text);
  return text;
}

absl::Status CheckLength(const SelectorSpec& spec, int64_t num_tokens) {
  if (!spec.whole_prompt || num_tokens <= kMaxSegmentTokens) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat(
      "selector.whole_prompt chooses over at most ", kMaxSegmentTokens,
      " tokens at once, the prompt has ", num_tokens));
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

bool IsDenseSegment(const SelectorSpec& spec, int64_t end) {
  return !IsTokenPure(spec) && end <= spec.dense_until;
}

kernels::DenseRows DenseRowsOf(const SelectorSpec& spec, int64_t end) {
  kernels::DenseRows dense;
  if (IsTokenPure(spec)) dense.until = spec.dense_until;
  if (spec.kind == SelectorSpec::Kind::kTriShape) {
    dense.from = end - spec.num_last;
  }
  return dense;
}

absl::Status NotYet(absl::string_view field) {
  return absl::UnimplementedError(absl::StrCat(
      "selector.", field, " is not implemented by this back end yet"));
}

SegmentRule SegmentsOf(const SelectorSpec& spec) {
  if (spec.whole_prompt) return SegmentRule::Uniform(kMaxSegmentTokens);
  return {.tokens = spec.segment_tokens, .max_tokens = kMaxSegmentTokens};
}

bool IsTokenPure(const SelectorSpec& spec) {
  using Kind = SelectorSpec::Kind;
  return spec.kind == Kind::kDense || spec.kind == Kind::kAShape ||
         spec.kind == Kind::kRandomBlocks;
}

}  // namespace overture::engine
