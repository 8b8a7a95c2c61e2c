// Between the wire's messages and the engine's structs, with the checks that
// depend on one field alone. Errors are INVALID_ARGUMENT naming the field, the
// value and the limit. No state: thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/kv_layout.h"
#include "compress/view.h"
#include "engine/engine.h"
#include "engine/head_sizes.h"
#include "engine/selector_spec.h"
#include "overture/v1/common.pb.h"
#include "overture/v1/prefill.pb.h"

namespace overture::service {

inline constexpr int32_t kMaxPriority = 100;
inline constexpr int32_t kDefaultAuditRows = 8;
inline constexpr absl::Duration kMaxHandleTtl = absl::Hours(24);

// A selector without a kind is `fallback`; one that asks for the model's sizes
// per head gets `head_sizes`, FAILED_PRECONDITION if these are empty.
absl::StatusOr<engine::SelectorSpec> SelectorFromProto(
    const v1::Selector& selector, const engine::SelectorSpec& fallback,
    const engine::HeadSizes& head_sizes);
void SelectorToProto(const engine::SelectorSpec& spec, v1::Selector* out);

// Nothing if `view` has no kind.
absl::StatusOr<std::optional<compress::SnapKvOptions>> ViewFromProto(
    const v1::ViewSpec& view);

void LayoutToProto(const KvLayout& layout, v1::KvLayout* out);
void StatsToProto(const engine::PrefillStats& stats, v1::PrefillStats* out);

// Every id in [0, vocab_size); names the first that is not by its index.
absl::Status ValidateTokenIds(absl::Span<const int32_t> ids, int64_t vocab_size,
                              absl::string_view field);

// 1 to 128 of [A-Za-z0-9_.-].
absl::Status ValidateSessionId(absl::string_view id, absl::string_view field);

absl::Status ValidatePriority(int32_t priority);
// 0 is `fallback`.
absl::StatusOr<absl::Duration> HandleTtl(int32_t handle_ttl_ms,
                                         absl::Duration fallback);
absl::StatusOr<engine::Reuse> ReuseFromProto(v1::PrefillRequest::Reuse reuse);

// A text of a request as it may be shown in a message: at most 64 bytes,
// escaped.
std::string Quoted(absl::string_view text);

}  // namespace overture::service
