#include "service/convert.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace overture::service {

static_assert(static_cast<int>(DType::kF32) == v1::DTYPE_F32);
static_assert(static_cast<int>(DType::kF16) == v1::DTYPE_F16);
static_assert(static_cast<int>(DType::kBF16) == v1::DTYPE_BF16);

absl::StatusOr<engine::SelectorSpec> SelectorFromProto(
    const v1::Selector& selector, const engine::SelectorSpec& fallback,
    const engine::HeadSizes& head_sizes) {
  using Kind = engine::SelectorSpec::Kind;
  engine::SelectorSpec spec;
  spec.segment_tokens = fallback.segment_tokens;
  switch (selector.kind_case()) {
    case v1::Selector::KIND_NOT_SET:
      return fallback;
    case v1::Selector::kDense:
      spec.kind = Kind::kDense;
      break;
    case v1::Selector::kAShape:
      spec.kind = Kind::kAShape;
      spec.num_initial = selector.a_shape().num_initial();
      spec.num_local = selector.a_shape().num_local();
      break;
    case v1::Selector::kVerticalSlash: {
      spec.kind = Kind::kVerticalSlash;
      const auto& size = selector.vertical_slash();
      if (size.per_head()) {
        if (size.vertical() != 0 || size.slash() != 0) {
          return absl::InvalidArgumentError(absl::StrCat(
              "selector.vertical_slash: per_head and sizes (vertical ",
              size.vertical(), ", slash ", size.slash(),
              ") exclude each other"));
        }
        if (head_sizes.empty()) {
          return absl::FailedPreconditionError(
              "selector.vertical_slash.per_head: this server holds no sizes "
              "per head, it was started without minference_config");
        }
        spec.head_sizes = head_sizes;
      }
      if (size.vertical() != 0) spec.vertical_slash.vertical = size.vertical();
      if (size.slash() != 0) spec.vertical_slash.slash = size.slash();
      break;
    }
  }
  OVERTURE_RETURN_IF_ERROR(WithContext(engine::Validate(spec), "selector"));
  return spec;
}

void SelectorToProto(const engine::SelectorSpec& spec, v1::Selector* out) {
  out->Clear();
  switch (spec.kind) {
    case engine::SelectorSpec::Kind::kDense:
      out->mutable_dense();
      break;
    case engine::SelectorSpec::Kind::kAShape:
      out->mutable_a_shape()->set_num_initial(spec.num_initial);
      out->mutable_a_shape()->set_num_local(spec.num_local);
      break;
    case engine::SelectorSpec::Kind::kVerticalSlash:
      if (!spec.head_sizes.empty()) {
        out->mutable_vertical_slash()->set_per_head(true);
        break;
      }
      out->mutable_vertical_slash()->set_vertical(spec.vertical_slash.vertical);
      out->mutable_vertical_slash()->set_slash(spec.vertical_slash.slash);
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
