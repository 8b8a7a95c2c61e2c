// A session at rest: the bytes that the cache keeps under a session's id.
// docs/session_format.md draws them. Plain data, no state: thread-safe.
//
// Decode believes nothing: DATA_LOSS for bytes that are short, long, damaged
// or inconsistent, UNIMPLEMENTED for another version; FAILED_PRECONDITION if
// the session runs by sizes per head that this server does not hold.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/head_sizes.h"
#include "engine/selector_spec.h"

namespace overture::service {

// Do not reuse a number; add versions at the end.
inline constexpr uint16_t kSessionRecordVersion = 3;

struct SessionRecord {
  // Random, made at creation: a session that was deleted and made again under
  // the same id is another one.
  uint64_t incarnation = 0;
  int32_t num_turns = 0;  // with incarnation, the version of the record
  int64_t created_unix_ms = 0;
  int64_t updated_unix_ms = 0;
  engine::SelectorSpec selector;
  std::vector<int32_t> tokens;
  friend bool operator==(const SessionRecord&, const SessionRecord&) = default;
};

std::string EncodeSessionRecord(const SessionRecord& record);
// The bytes name sizes per head by their digest: `head_sizes` are the server's,
// empty if it holds none. Reads versions 1 and 2, too.
absl::StatusOr<SessionRecord> DecodeSessionRecord(
    absl::string_view bytes, const engine::HeadSizes& head_sizes = {});

}  // namespace overture::service
