#include "service/convert.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace overture::service {

static_assert(static_cast<int>(DType::kF32) == v1::DTYPE_F32);
static_assert(static_cast<int>(DType::kF16) == v1::DTYPE_F16);
static_assert(static_cast<int>(DType::kBF16) == v1::DTYPE_BF16);

namespace {

using Kind = engine::SelectorSpec::Kind;
using VerticalSlashSize = kernels::VerticalSlashSize;

// What Blocks keeps where a message does not say.
constexpr float kBlockThreshold = 0.1f;
constexpr int32_t kBlocksInitial = 256;
constexpr int32_t kBlocksLocal = 512;

template <typename T>
void SetUnlessZero(T value, T* field) {
  if (value != 0) *field = value;
}

absl::Status SizesFromProto(const v1::Selector::VerticalSlash& in,
                            const engine::HeadSizes& head_sizes,
                            engine::SelectorSpec* spec) {
  spec->whole_prompt = in.whole_prompt();
  if (in.per_head()) {
    v1::Selector::VerticalSlash alone;
    alone.set_per_head(true);
    alone.set_whole_prompt(in.whole_prompt());
    if (in.SerializeAsString() != alone.SerializeAsString()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "selector.vertical_slash: per_head and sizes (vertical ",
          in.vertical(), ", slash ", in.slash(), ", mass ", in.mass(),
          ", threshold ", in.threshold(), ", count ", in.count(),
          ", correct_means ", in.correct_means(), ") exclude each other"));
    }
    if (head_sizes.empty()) {
      return absl::FailedPreconditionError(
          "selector.vertical_slash.per_head: this server holds no sizes "
          "per head, it was started without minference_config");
    }
    spec->head_sizes = head_sizes;
    return absl::OkStatus();
  }
  VerticalSlashSize& size = spec->vertical_slash;
  SetUnlessZero(in.vertical(), &size.vertical);
  SetUnlessZero(in.slash(), &size.slash);
  size.mass = in.mass();
  size.blocks.threshold = in.threshold();
  size.blocks.count = in.count();
  size.blocks.correct_means = in.correct_means();
  return absl::OkStatus();
}

absl::Status BlocksFromProto(const v1::Selector::Blocks& in,
                             VerticalSlashSize* out) {
  for (const auto& [name, value] :
       {std::pair<absl::string_view, int32_t>{"num_initial", in.num_initial()},
        {"num_local", in.num_local()}}) {
    if (value >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "selector.blocks.", name, " is ", value, ", must be at least 0"));
  }
  int32_t num_initial = kBlocksInitial;
  int32_t num_local = kBlocksLocal;
  SetUnlessZero(in.num_initial(), &num_initial);
  SetUnlessZero(in.num_local(), &num_local);
  VerticalSlashSize size = kernels::StaticSize(num_initial, num_local);
  size.blocks.threshold = in.threshold();
  size.blocks.count = in.count();
  if (in.threshold() == 0 && in.count() == 0) {
    size.blocks.threshold = kBlockThreshold;
  }
  size.blocks.correct_means = in.correct_means();
  *out = size;
  return absl::OkStatus();
}

void SizesToProto(const engine::SelectorSpec& spec, v1::Selector* selector) {
  const VerticalSlashSize& size = spec.vertical_slash;
  constexpr VerticalSlashSize kDefault;
  // Only Blocks says how many are forced.
  if (size.forced_columns != kDefault.forced_columns ||
      size.forced_distances != kDefault.forced_distances) {
    v1::Selector::Blocks* out = selector->mutable_blocks();
    out->set_threshold(size.blocks.threshold);
    out->set_count(size.blocks.count);
    out->set_correct_means(size.blocks.correct_means);
    out->set_num_initial(size.vertical);
    out->set_num_local(size.slash);
    return;
  }
  v1::Selector::VerticalSlash* out = selector->mutable_vertical_slash();
  out->set_whole_prompt(spec.whole_prompt);
  if (!spec.head_sizes.empty()) {
    out->set_per_head(true);
    return;
  }
  out->set_vertical(size.vertical);
  out->set_slash(size.slash);
  out->set_mass(size.mass);
  out->set_threshold(size.blocks.threshold);
  out->set_count(size.blocks.count);
  out->set_correct_means(size.blocks.correct_means);
}

}  // namespace

absl::StatusOr<engine::SelectorSpec> SelectorFromProto(
    const v1::Selector& selector, const engine::SelectorSpec& fallback,
    const engine::HeadSizes& head_sizes) {
  engine::SelectorSpec spec;
  spec.segment_tokens = fallback.segment_tokens;
  spec.dense_until = selector.has_dense_until() ? selector.dense_until()
                                                : fallback.dense_until;
  spec.skip_threshold = selector.skip_threshold();
  switch (selector.kind_case()) {
    case v1::Selector::KIND_NOT_SET:
      if (selector.ByteSizeLong() > 0) {
        return absl::InvalidArgumentError(
            "selector: dense_until, skip_threshold or what this server does "
            "not know, without a kind that it knows");
      }
      return fallback;
    case v1::Selector::kDense:
      spec.dense_until = 0;
      break;
    case v1::Selector::kAShape:
      spec.kind = Kind::kAShape;
      spec.num_initial = selector.a_shape().num_initial();
      spec.num_local = selector.a_shape().num_local();
      break;
    case v1::Selector::kTriShape:
      spec.kind = Kind::kTriShape;
      spec.num_initial = selector.tri_shape().num_initial();
      spec.num_local = selector.tri_shape().num_local();
      SetUnlessZero(selector.tri_shape().num_last(), &spec.num_last);
      break;
    case v1::Selector::kVerticalSlash:
      spec.kind = Kind::kDynamic;
      OVERTURE_RETURN_IF_ERROR(
          SizesFromProto(selector.vertical_slash(), head_sizes, &spec));
      break;
    case v1::Selector::kBlocks:
      spec.kind = Kind::kDynamic;
      OVERTURE_RETURN_IF_ERROR(
          BlocksFromProto(selector.blocks(), &spec.vertical_slash));
      break;
    case v1::Selector::kRandomBlocks:
      spec.kind = Kind::kRandomBlocks;
      spec.block_density = selector.random_blocks().density();
      spec.seed = selector.random_blocks().seed();
      break;
    case v1::Selector::kOracle:
      spec.kind = Kind::kOracle;
      spec.block_density = selector.oracle().density();
      break;
  }
  OVERTURE_RETURN_IF_ERROR(engine::Validate(spec));
  return spec;
}

void SelectorToProto(const engine::SelectorSpec& spec, v1::Selector* out) {
  out->Clear();
  out->set_skip_threshold(spec.skip_threshold);
  if (spec.kind != Kind::kDense) out->set_dense_until(spec.dense_until);
  switch (spec.kind) {
    case Kind::kDense:
      out->mutable_dense();
      break;
    case Kind::kAShape:
      out->mutable_a_shape()->set_num_initial(spec.num_initial);
      out->mutable_a_shape()->set_num_local(spec.num_local);
      break;
    case Kind::kTriShape:
      out->mutable_tri_shape()->set_num_initial(spec.num_initial);
      out->mutable_tri_shape()->set_num_local(spec.num_local);
      out->mutable_tri_shape()->set_num_last(spec.num_last);
      break;
    case Kind::kDynamic:
      SizesToProto(spec, out);
      break;
    case Kind::kRandomBlocks:
      out->mutable_random_blocks()->set_density(spec.block_density);
      out->mutable_random_blocks()->set_seed(spec.seed);
      break;
    case Kind::kOracle:
      out->mutable_oracle()->set_density(spec.block_density);
      break;
  }
}

absl::StatusOr<std::optional<compress::SnapKvOptions>> ViewFromProto(
    const v1::ViewSpec& view) {
  if (view.kind_case() == v1::ViewSpec::KIND_NOT_SET) return std::nullopt;
  const v1::ViewSpec::SnapKv& in = view.snap_kv();
  compress::SnapKvOptions options;
  if (in.window() != 0) options.window = in.window();
  if (in.capacity() != 0) options.capacity = in.capacity();
  if (in.pooling_width() != 0) options.pooling_width = in.pooling_width();
  switch (in.pooling()) {
    case v1::ViewSpec::SnapKv::POOLING_UNSPECIFIED:
      break;
    case v1::ViewSpec::SnapKv::POOLING_AVERAGE:
      options.pooling = compress::Pooling::kAverage;
      break;
    case v1::ViewSpec::SnapKv::POOLING_MAX:
      options.pooling = compress::Pooling::kMax;
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("view.snap_kv.pooling: ", static_cast<int>(in.pooling()),
                       " is not POOLING_AVERAGE or POOLING_MAX"));
  }
  OVERTURE_RETURN_IF_ERROR(
      WithContext(compress::Validate(options), "view.snap_kv"));
  return options;
}

void LayoutToProto(const KvLayout& layout, v1::KvLayout* out) {
  out->set_num_layers(layout.num_layers);
  out->set_num_kv_heads(layout.num_kv_heads);
  out->set_head_dim(layout.head_dim);
  out->set_dtype(static_cast<v1::DType>(layout.dtype));
  out->set_tokens_per_block(kTokensPerBlock);
}

void StatsToProto(const engine::PrefillStats& stats, v1::PrefillStats* out) {
  out->set_reused_tokens(stats.reused_tokens);
  out->set_computed_tokens(stats.computed_tokens);
  out->set_density(stats.density);
  out->set_attention_policy(stats.attention_policy);
  out->set_queue_seconds(stats.queue_seconds);
  out->set_match_seconds(stats.match_seconds);
  out->set_selector_seconds(stats.selector_seconds);
  out->set_attention_seconds(stats.attention_seconds);
  out->set_linear_seconds(stats.linear_seconds);
  out->set_compute_seconds(stats.compute_seconds);
  out->set_store_seconds(stats.store_seconds);
  out->set_ttft_seconds(stats.ttft_seconds);
  out->set_kv_bytes(stats.kv_bytes);
  out->set_view_bytes(stats.view_bytes);
  out->set_audit_seconds(stats.audit_seconds);
  if (stats.kept_mass.num_rows == 0) return;
  v1::PrefillStats::KeptMass* kept = out->mutable_kept_mass();
  kept->set_audited_rows(stats.kept_mass.num_rows);
  kept->set_mean(stats.kept_mass.mean);
  kept->set_lowest(stats.kept_mass.lowest);
  kept->set_lowest_layer(stats.kept_mass.layer);
  kept->set_lowest_head(stats.kept_mass.head);
}

absl::Status ValidateTokenIds(absl::Span<const int32_t> ids, int64_t vocab_size,
                              absl::string_view field) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(
          field, "[", i, "]: ", ids[i], " is not in [0, ", vocab_size, ")"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateSessionId(absl::string_view id, absl::string_view field) {
  if (id.empty() || id.size() > 128) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, ": ", id.size(), " characters, must be 1 to 128"));
  }
  for (char c : id) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '_' &&
        c != '.' && c != '-') {
      return absl::InvalidArgumentError(absl::StrCat(
          field, ": ", Quoted(id), " has a character outside [A-Za-z0-9_.-]"));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidatePriority(int32_t priority) {
  if (priority < -kMaxPriority || priority > kMaxPriority) {
    return absl::InvalidArgumentError(
        absl::StrCat("priority: ", priority, " is not in [", -kMaxPriority,
                     ", ", kMaxPriority, "]"));
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Duration> HandleTtl(int32_t handle_ttl_ms,
                                         absl::Duration fallback) {
  if (handle_ttl_ms == 0) return fallback;
  if (handle_ttl_ms < 0 || absl::Milliseconds(handle_ttl_ms) > kMaxHandleTtl) {
    return absl::InvalidArgumentError(
        absl::StrCat("handle_ttl_ms: ", handle_ttl_ms, " is not in [0, ",
                     absl::ToInt64Milliseconds(kMaxHandleTtl), "]"));
  }
  return absl::Milliseconds(handle_ttl_ms);
}

absl::StatusOr<engine::Reuse> ReuseFromProto(v1::PrefillRequest::Reuse reuse) {
  switch (reuse) {
    case v1::PrefillRequest::REUSE_UNSPECIFIED:
    case v1::PrefillRequest::REUSE_EXACT:
      return engine::Reuse::kExact;
    case v1::PrefillRequest::REUSE_NONE:
      return engine::Reuse::kNone;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("reuse: ", static_cast<int>(reuse),
                       " is not REUSE_EXACT or REUSE_NONE"));
  }
}

std::string Quoted(absl::string_view text) {
  constexpr size_t kShown = 64;
  return absl::StrCat("'", absl::CHexEscape(text.substr(0, kShown)),
                      text.size() > kShown ? "...'" : "'");
}

}  // namespace overture::service
