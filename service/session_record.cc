#include "service/session_record.h"

#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "overture/v1/common.pb.h"
#include "service/convert.h"

namespace overture::service {
namespace {

constexpr absl::string_view kMagic = "OVSS";
constexpr size_t kHeaderBytes = 16;  // magic, version, zero, checksum

template <typename T>
void Put(std::string& out, T value) {
  const auto bits = static_cast<std::make_unsigned_t<T>>(value);
  for (size_t i = 0; i < sizeof(T); ++i) {
    out.push_back(static_cast<char>((bits >> (8 * i)) & 0xff));
  }
}

// REQUIRES bytes.size() >= sizeof(T).
template <typename T>
T Take(absl::string_view& bytes) {
  std::make_unsigned_t<T> bits = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    bits |= static_cast<std::make_unsigned_t<T>>(
        static_cast<std::make_unsigned_t<T>>(
            static_cast<unsigned char>(bytes[i]))
        << (8 * i));
  }
  bytes.remove_prefix(sizeof(T));
  return static_cast<T>(bits);
}

constexpr size_t kDigestBytes = sizeof(Sha256Digest::bytes);

// Without tokens, and from version 3 on without the selector's message.
constexpr size_t FixedBodyBytes(uint16_t version) {
  constexpr size_t kAlways = 8 + 4 + 8 + 8 + 8 + 8;
  switch (version) {
    case 1:
      return kAlways + 5 * 4;
    case 2:
      return kAlways + 5 * 4 + kDigestBytes;
    default:
      return kAlways + 4 + kDigestBytes;
  }
}

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("session record: ", what));
}

// Kind and sizes as versions 1 and 2 have them.
absl::Status TakeOldSelector(absl::string_view& bytes,
                             engine::SelectorSpec* selector) {
  using Kind = engine::SelectorSpec::Kind;
  const uint32_t kind = Take<uint32_t>(bytes);
  if (kind > static_cast<uint32_t>(Kind::kDynamic)) {
    return Damaged(absl::StrCat("selector kind ", kind));
  }
  selector->kind = static_cast<Kind>(kind);
  selector->num_initial = Take<int32_t>(bytes);
  selector->num_local = Take<int32_t>(bytes);
  selector->vertical_slash.vertical = Take<int32_t>(bytes);
  selector->vertical_slash.slash = Take<int32_t>(bytes);
  return absl::OkStatus();
}

absl::StatusOr<v1::Selector> TakeMessage(absl::string_view& bytes) {
  const uint32_t size = Take<uint32_t>(bytes);
  // What follows has a fixed part, of which the caller has checked the bytes
  // together with this message's.
  v1::Selector message;
  if (size > bytes.size() ||
      !message.ParseFromArray(bytes.data(), static_cast<int>(size)) ||
      message.kind_case() == v1::Selector::KIND_NOT_SET) {
    return Damaged("selector");
  }
  bytes.remove_prefix(size);
  return message;
}

}  // namespace

std::string EncodeSessionRecord(const SessionRecord& record) {
  std::string body;
  body.reserve(FixedBodyBytes(kSessionRecordVersion) +
               4 * record.tokens.size());
  Put<uint64_t>(body, record.incarnation);
  Put<int32_t>(body, record.num_turns);
  Put<int64_t>(body, record.created_unix_ms);
  Put<int64_t>(body, record.updated_unix_ms);
  const engine::SelectorSpec& selector = record.selector;
  v1::Selector message;
  SelectorToProto(selector, &message);
  const std::string message_bytes = message.SerializeAsString();
  Put<uint32_t>(body, static_cast<uint32_t>(message_bytes.size()));
  body += message_bytes;
  Put<int64_t>(body, selector.segment_tokens);
  const Sha256Digest digest = selector.head_sizes.digest();
  body.append(digest.AsStringView().data(), kDigestBytes);
  Put<uint64_t>(body, record.tokens.size());
  for (int32_t id : record.tokens) Put<int32_t>(body, id);

  std::string out(kMagic);
  out.reserve(kHeaderBytes + body.size());
  Put<uint16_t>(out, kSessionRecordVersion);
  Put<uint16_t>(out, 0);
  Put<uint64_t>(out, Xxh3(body));
  out += body;
  return out;
}

absl::StatusOr<SessionRecord> DecodeSessionRecord(
    absl::string_view bytes, const engine::HeadSizes& head_sizes) {
  if (bytes.size() < kHeaderBytes || bytes.substr(0, kMagic.size()) != kMagic) {
    return Damaged("no header");
  }
  bytes.remove_prefix(kMagic.size());
  const uint16_t version = Take<uint16_t>(bytes);
  if (version < 1 || version > kSessionRecordVersion) {
    return absl::UnimplementedError(
        absl::StrCat("session record: version ", version,
                     ", this server reads 1 to ", kSessionRecordVersion));
  }
  Take<uint16_t>(bytes);
  const uint64_t checksum = Take<uint64_t>(bytes);
  if (checksum != Xxh3(bytes)) return Damaged("checksum differs");
  if (bytes.size() < FixedBodyBytes(version)) return Damaged("short body");

  SessionRecord record;
  record.incarnation = Take<uint64_t>(bytes);
  record.num_turns = Take<int32_t>(bytes);
  record.created_unix_ms = Take<int64_t>(bytes);
  record.updated_unix_ms = Take<int64_t>(bytes);
  engine::SelectorSpec& selector = record.selector;
  v1::Selector message;
  if (version < 3) {
    OVERTURE_RETURN_IF_ERROR(TakeOldSelector(bytes, &selector));
  } else {
    OVERTURE_ASSIGN_OR_RETURN(message, TakeMessage(bytes));
    if (bytes.size() < 8 + kDigestBytes + 8) return Damaged("short body");
  }
  selector.segment_tokens = Take<int64_t>(bytes);
  engine::HeadSizes sizes;
  if (version > 1) {
    OVERTURE_ASSIGN_OR_RETURN(const Sha256Digest digest,
                              DigestFromBytes(bytes.substr(0, kDigestBytes)));
    bytes.remove_prefix(kDigestBytes);
    if (digest == head_sizes.digest()) {
      sizes = head_sizes;
    } else if (digest != Sha256Digest()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "session record: runs by sizes per head with digest ", digest.Hex(),
          head_sizes.empty()
              ? ", this server holds none"
              : absl::StrCat(", this server's are ", head_sizes.digest().Hex()),
          "; start it with the minference_config of then"));
    }
  }
  if (version < 3) {
    selector.head_sizes = std::move(sizes);
  } else {
    absl::StatusOr<engine::SelectorSpec> spec =
        SelectorFromProto(message, selector, sizes);
    if (!spec.ok()) return Damaged(spec.status().message());
    selector = *std::move(spec);
  }
  const uint64_t num_tokens = Take<uint64_t>(bytes);
  if (bytes.size() % 4 != 0 || num_tokens != bytes.size() / 4) {
    return Damaged(
        absl::StrCat(num_tokens, " tokens in ", bytes.size(), " bytes"));
  }
  record.tokens.reserve(num_tokens);
  for (uint64_t i = 0; i < num_tokens; ++i) {
    record.tokens.push_back(Take<int32_t>(bytes));
  }
  return record;
}

}  // namespace overture::service
