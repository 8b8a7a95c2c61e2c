#include "cache/record_format.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "cache/wire_bytes.h"

namespace overture::cache {
namespace {

constexpr uint32_t kMagic = 0x524b564f;  // "OVKR"

constexpr size_t kMagicOffset = 0;
constexpr size_t kVersionOffset = 4;
constexpr size_t kKindOffset = 6;
constexpr size_t kCodecOffset = 7;
constexpr size_t kDTypeOffset = 8;
constexpr size_t kNumLayersOffset = 12;
constexpr size_t kNumKvHeadsOffset = 16;
constexpr size_t kHeadDimOffset = 20;
constexpr size_t kLayerOffset = 24;
constexpr size_t kBlockOffset = 28;
constexpr size_t kNumTokensOffset = 32;
constexpr size_t kPutIdOffset = 40;
constexpr size_t kSpanKeyOffset = 48;
constexpr size_t kPayloadSizeOffset = 80;
constexpr size_t kPayloadSumOffset = 88;
constexpr size_t kReservedOffset = 96;
constexpr size_t kHeaderSumOffset = 120;
static_assert(kHeaderSumOffset + sizeof(uint64_t) == kRecordHeaderBytes);

absl::Status Damaged(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("KV record: ", what));
}

bool AllZero(absl::string_view bytes) {
  for (char c : bytes) {
    if (c != 0) return false;
  }
  return true;
}

}  // namespace

void SealRecord(const RecordHeader& header, std::string& record) {
  const absl::string_view payload =
      absl::string_view(record).substr(kRecordHeaderBytes);
  const uint64_t payload_sum = Xxh3(payload);
  std::memset(record.data(), 0, kRecordHeaderBytes);
  StoreLittle<uint32_t>(kMagic, kMagicOffset, record);
  StoreLittle<uint16_t>(kRecordVersion, kVersionOffset, record);
  StoreLittle(static_cast<uint8_t>(header.kind), kKindOffset, record);
  StoreLittle(static_cast<uint8_t>(header.codec), kCodecOffset, record);
  StoreLittle(static_cast<uint8_t>(header.layout.dtype), kDTypeOffset, record);
  StoreLittle(header.layout.num_layers, kNumLayersOffset, record);
  StoreLittle(header.layout.num_kv_heads, kNumKvHeadsOffset, record);
  StoreLittle(header.layout.head_dim, kHeadDimOffset, record);
  StoreLittle(header.layer, kLayerOffset, record);
  StoreLittle(header.block, kBlockOffset, record);
  StoreLittle(header.num_tokens, kNumTokensOffset, record);
  StoreLittle(header.put_id, kPutIdOffset, record);
  std::memcpy(record.data() + kSpanKeyOffset, header.span_key.bytes.data(),
              header.span_key.bytes.size());
  StoreLittle<uint64_t>(payload.size(), kPayloadSizeOffset, record);
  StoreLittle(payload_sum, kPayloadSumOffset, record);
  StoreLittle(Xxh3(record.data(), kHeaderSumOffset), kHeaderSumOffset, record);
}

absl::StatusOr<ParsedRecord> ParseRecord(absl::string_view record) {
  if (record.size() < kRecordHeaderBytes) {
    return Damaged(absl::StrCat("has ", record.size(), " bytes, its header ",
                                kRecordHeaderBytes));
  }
  if (LoadLittle<uint32_t>(record, kMagicOffset) != kMagic) {
    return Damaged("magic is not OVKR");
  }
  // The version is read before the checksum, so that a format whose checksum
  // lies elsewhere is still named rather than called damaged.
  const auto version = LoadLittle<uint16_t>(record, kVersionOffset);
  if (version != kRecordVersion) {
    return Damaged(absl::StrCat("version is ", version, ", this build reads ",
                                kRecordVersion));
  }
  if (Xxh3(record.data(), kHeaderSumOffset) !=
      LoadLittle<uint64_t>(record, kHeaderSumOffset)) {
    return Damaged("header checksum differs");
  }

  const auto kind = LoadLittle<uint8_t>(record, kKindOffset);
  if (kind != static_cast<uint8_t>(RecordKind::kLayerKv)) {
    return Damaged(absl::StrCat("kind ", kind, " is unknown"));
  }
  const auto codec = LoadLittle<uint8_t>(record, kCodecOffset);
  if (codec != static_cast<uint8_t>(RecordCodec::kRaw)) {
    return Damaged(absl::StrCat("codec ", codec, " is unknown"));
  }
  const auto dtype = LoadLittle<uint8_t>(record, kDTypeOffset);
  if (!IsValidDType(dtype)) {
    return Damaged(absl::StrCat("dtype ", dtype, " is unknown"));
  }
  if (!AllZero(record.substr(kDTypeOffset + 1, 3)) ||
      !AllZero(record.substr(kNumTokensOffset + 4, 4)) ||
      !AllZero(
          record.substr(kReservedOffset, kHeaderSumOffset - kReservedOffset))) {
    return Damaged("reserved bytes are not zero");
  }

  ParsedRecord parsed;
  RecordHeader& header = parsed.header;
  header.layout = {
      .num_layers = LoadLittle<int32_t>(record, kNumLayersOffset),
      .num_kv_heads = LoadLittle<int32_t>(record, kNumKvHeadsOffset),
      .head_dim = LoadLittle<int32_t>(record, kHeadDimOffset),
      .dtype = static_cast<DType>(dtype)};
  if (absl::Status status = Validate(header.layout); !status.ok()) {
    return Damaged(status.message());
  }
  header.layer = LoadLittle<int32_t>(record, kLayerOffset);
  header.block = LoadLittle<int32_t>(record, kBlockOffset);
  header.num_tokens = LoadLittle<int32_t>(record, kNumTokensOffset);
  header.put_id = LoadLittle<uint64_t>(record, kPutIdOffset);
  std::memcpy(header.span_key.bytes.data(), record.data() + kSpanKeyOffset,
              header.span_key.bytes.size());
  if (header.layer < 0 || header.layer >= header.layout.num_layers) {
    return Damaged(
        absl::StrCat("layer ", header.layer, " of ", header.layout.num_layers));
  }
  if (header.block < 0) {
    return Damaged(absl::StrCat("block is ", header.block));
  }
  if (header.num_tokens < 1 || header.num_tokens > kTokensPerBlock) {
    return Damaged(absl::StrCat("num_tokens is ", header.num_tokens,
                                ", must be 1 to ", kTokensPerBlock));
  }

  parsed.payload = record.substr(kRecordHeaderBytes);
  const auto payload_size = LoadLittle<uint64_t>(record, kPayloadSizeOffset);
  if (payload_size != static_cast<uint64_t>(header.payload_bytes()) ||
      payload_size != parsed.payload.size()) {
    return Damaged(absl::StrCat("payload has ", parsed.payload.size(),
                                " bytes, header says ", payload_size,
                                ", layout ", header.payload_bytes()));
  }
  if (Xxh3(parsed.payload) != LoadLittle<uint64_t>(record, kPayloadSumOffset)) {
    return Damaged("payload checksum differs");
  }
  return parsed;
}

absl::StatusOr<absl::string_view> OpenRecord(const RecordHeader& expected,
                                             absl::string_view record) {
  OVERTURE_ASSIGN_OR_RETURN(const ParsedRecord parsed, ParseRecord(record));
  if (parsed.header != expected) {
    return Damaged(absl::StrCat(
        "is foreign: span ", parsed.header.span_key.Hex(), " put ",
        parsed.header.put_id, " layer ", parsed.header.layer, " block ",
        parsed.header.block, " tokens ", parsed.header.num_tokens, " (",
        ToString(parsed.header.layout), "), expected span ",
        expected.span_key.Hex(), " put ", expected.put_id, " layer ",
        expected.layer, " block ", expected.block, " tokens ",
        expected.num_tokens, " (", ToString(expected.layout), ")"));
  }
  return parsed.payload;
}

}  // namespace overture::cache
