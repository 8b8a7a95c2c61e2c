#include "cache/record_format.h"

#include <cstring>
#include <string>

#include "absl/strings/escaping.h"
#include "base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::cache {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

RecordHeader Header() {
  RecordHeader header;
  header.layout = {
      .num_layers = 4, .num_kv_heads = 1, .head_dim = 2, .dtype = DType::kBF16};
  header.span_key.bytes.fill(0xab);
  header.put_id = 0x0102030405060708;
  header.layer = 3;
  header.block = 2;
  header.num_tokens = 5;
  return header;
}

std::string Record() {
  return MakeRecord(Header(), [](std::byte* dst) {
    for (int i = 0; i < 2 * 5 * 2 * 2; ++i) dst[i] = std::byte(i);
  });
}

// Makes the header's checksum right again after a test changed a field.
void Reseal(std::string& record) {
  const uint64_t sum = Xxh3(record.data(), 120);
  std::memcpy(record.data() + 120, &sum, 8);
}

TEST(RecordFormatTest, ARecordReadsBack) {
  const std::string record = Record();
  EXPECT_EQ(record.size(), RecordBytes(Header().layout, 5));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const ParsedRecord parsed, ParseRecord(record));
  EXPECT_EQ(parsed.header, Header());
  EXPECT_EQ(parsed.payload, absl::string_view(record).substr(128));
  OVERTURE_EXPECT_OK(OpenRecord(Header(), record));
}

// The bytes that docs/kv_format.md draws. A change here is a new version.
TEST(RecordFormatTest, TheHeaderIsTheDocumentedOne) {
  EXPECT_EQ(absl::BytesToHexString(Record().substr(0, 80)),
            "4f564b52"          // magic
            "0100"              // version
            "01"                // kind
            "01"                // codec
            "03000000"          // dtype, zero
            "04000000"          // layers
            "01000000"          // KV heads
            "02000000"          // head dim
            "03000000"          // layer
            "02000000"          // block
            "05000000"          // tokens
            "00000000"          // zero
            "0807060504030201"  // put id
            "abababababababababababababababab"
            "abababababababababababababababab");
  EXPECT_EQ(absl::BytesToHexString(Record().substr(80, 8)), "2800000000000000");
}

TEST(RecordFormatTest, EveryFlippedBitIsDataLoss) {
  const std::string intact = Record();
  for (size_t i = 0; i < intact.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string record = intact;
      record[i] ^= static_cast<char>(1 << bit);
      EXPECT_THAT(ParseRecord(record), StatusIs(kDataLoss)) << i;
    }
  }
}

TEST(RecordFormatTest, EveryTruncationAndExtensionIsDataLoss) {
  const std::string intact = Record();
  for (size_t size = 0; size < intact.size(); ++size) {
    EXPECT_THAT(ParseRecord(intact.substr(0, size)), StatusIs(kDataLoss));
  }
  EXPECT_THAT(ParseRecord(intact + "x"), StatusIs(kDataLoss));
}

TEST(RecordFormatTest, AnUnknownVersionIsNamedBesideTheKnownOne) {
  std::string record = Record();
  record[4] = 9;
  EXPECT_THAT(
      ParseRecord(record),
      StatusIs(kDataLoss, HasSubstr("version is 9, this build reads 1")));
}

TEST(RecordFormatTest, FieldsOutOfRangeAreDataLossEvenWithARightChecksum) {
  const struct {
    size_t offset;
    char value;
  } kCases[] = {
      {6, 2},        // kind
      {7, 9},        // codec
      {8, 0},        // dtype
      {9, 1},        // reserved
      {15, '\x7f'},  // 2^31 layers
      {16, 0},       // no KV heads
      {24, 4},       // layer beyond the layout
      {27, '\xff'},  // negative layer
      {31, '\xff'},  // negative block
      {32, 0},       // no tokens
      {32, 6},       // tokens that do not fit the payload
      {33, 2},       // more tokens than a block has
      {36, 1},       // reserved
      {80, 1},       // payload size
      {87, '\x7f'},  // payload of 2^62 bytes
      {119, 1},      // reserved
  };
  for (const auto& c : kCases) {
    std::string record = Record();
    record[c.offset] = c.value;
    Reseal(record);
    EXPECT_THAT(ParseRecord(record), StatusIs(kDataLoss)) << c.offset;
  }
}

TEST(RecordFormatTest, AForeignRecordIsDataLoss) {
  const std::string record = Record();
  RecordHeader other = Header();
  other.span_key.bytes[31] ^= 1;
  EXPECT_THAT(OpenRecord(other, record),
              StatusIs(kDataLoss, HasSubstr("foreign")));
  other = Header();
  ++other.put_id;
  EXPECT_THAT(OpenRecord(other, record), StatusIs(kDataLoss));
  other = Header();
  --other.layer;
  EXPECT_THAT(OpenRecord(other, record), StatusIs(kDataLoss));
  other = Header();
  ++other.block;
  EXPECT_THAT(OpenRecord(other, record), StatusIs(kDataLoss));
  other = Header();
  other.layout.dtype = DType::kF16;
  EXPECT_THAT(OpenRecord(other, record), StatusIs(kDataLoss));
}

}  // namespace
}  // namespace overture::cache
