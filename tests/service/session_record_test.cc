#include "service/session_record.h"

#include "absl/strings/escaping.h"
#include "base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::service {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

SessionRecord Example() {
  SessionRecord record;
  record.incarnation = 0x0123456789abcdef;
  record.num_turns = 3;
  record.created_unix_ms = 1700000000000;
  record.updated_unix_ms = 1700000001000;
  record.selector.kind = engine::SelectorSpec::Kind::kVerticalSlash;
  record.selector.vertical_slash = {.vertical = 500, .slash = 800};
  record.tokens = {1, 2, 49151};
  return record;
}

TEST(SessionRecordTest, ComesBackAsItWasWritten) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const SessionRecord decoded,
      DecodeSessionRecord(EncodeSessionRecord(Example())));
  EXPECT_EQ(decoded, Example());
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const SessionRecord empty,
      DecodeSessionRecord(EncodeSessionRecord(SessionRecord())));
  EXPECT_EQ(empty, SessionRecord());
}

// The bytes of version 1, by hand from docs/session_format.md: a change of them
// is a format change.
TEST(SessionRecordTest, TheBytesAreThoseOfTheDocument) {
  const std::string body = absl::HexStringToBytes(
      "efcdab8967452301"  // incarnation
      "03000000"          // turns
      "0068e5cf8b010000"  // created
      "e86be5cf8b010000"  // updated
      "02000000"          // vertical-slash
      "80000000"
      "800f0000"  // initial 128, local 3968
      "f4010000"
      "20030000"          // vertical 500, slash 800
      "0040000000000000"  // segment of 16,384
      "0300000000000000"  // tokens
      "01000000"
      "02000000"
      "ffbf0000");
  const std::string encoded = EncodeSessionRecord(Example());
  EXPECT_EQ(absl::BytesToHexString(encoded.substr(0, 8)),
            "4f56535301000000");  // OVSS, version 1
  EXPECT_EQ(absl::BytesToHexString(encoded.substr(16)),
            absl::BytesToHexString(body));
  uint64_t checksum = 0;
  for (int i = 7; i >= 0; --i) {
    checksum = checksum << 8 | static_cast<unsigned char>(encoded[8 + i]);
  }
  EXPECT_EQ(checksum, Xxh3(body));
}

TEST(SessionRecordTest, AFlippedBitAnywhereIsDamage) {
  const std::string bytes = EncodeSessionRecord(Example());
  for (size_t i = 0; i < bytes.size(); ++i) {
    // The two zero bytes of the header carry nothing.
    if (i == 6 || i == 7) continue;
    std::string flipped = bytes;
    flipped[i] = static_cast<char>(flipped[i] ^ 0x10);
    const absl::StatusCode expected = i == 4 || i == 5
                                          ? absl::StatusCode::kUnimplemented
                                          : absl::StatusCode::kDataLoss;
    EXPECT_THAT(DecodeSessionRecord(flipped), StatusIs(expected)) << i;
  }
}

TEST(SessionRecordTest, EveryTruncationIsDamage) {
  const std::string bytes = EncodeSessionRecord(Example());
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THAT(DecodeSessionRecord(bytes.substr(0, size)),
                StatusIs(absl::StatusCode::kDataLoss))
        << size;
  }
  EXPECT_THAT(DecodeSessionRecord(bytes + "x"),
              StatusIs(absl::StatusCode::kDataLoss));
}

// With a right checksum: what a faulty or hostile writer could have left.
std::string WithBody(const std::string& body) {
  std::string bytes = EncodeSessionRecord(SessionRecord()).substr(0, 8);
  const uint64_t checksum = Xxh3(body);
  for (int i = 0; i < 8; ++i) {
    bytes.push_back(static_cast<char>(checksum >> (8 * i)));
  }
  return bytes + body;
}

TEST(SessionRecordTest, ConsistentChecksumsDoNotMakeNonsenseGood) {
  const std::string body = EncodeSessionRecord(Example()).substr(16);
  OVERTURE_EXPECT_OK(DecodeSessionRecord(WithBody(body)).status());
  EXPECT_THAT(DecodeSessionRecord(WithBody("")),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("short body")));
  std::string kind = body;
  kind[28] = 9;
  EXPECT_THAT(DecodeSessionRecord(WithBody(kind)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("kind 9")));
  std::string count = body;
  count[56 + 7] = 0x40;  // 2^62 tokens: no allocation follows
  EXPECT_THAT(DecodeSessionRecord(WithBody(count)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("tokens in")));
}

}  // namespace
}  // namespace overture::service
