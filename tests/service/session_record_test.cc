#include "service/session_record.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
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
  record.selector.kind = engine::SelectorSpec::Kind::kDynamic;
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

engine::HeadSizes SomeSizes(int32_t vertical) {
  auto sizes = engine::HeadSizes::Create({{{vertical, 800}, {}}});
  OVERTURE_CHECK(sizes.ok());
  return *sizes;
}

TEST(SessionRecordTest, SizesPerHeadAreNamedByTheirDigest) {
  SessionRecord record = Example();
  record.selector.vertical_slash = {};
  record.selector.head_sizes = SomeSizes(30);
  const std::string bytes = EncodeSessionRecord(record);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const SessionRecord decoded,
                                DecodeSessionRecord(bytes, SomeSizes(30)));
  EXPECT_EQ(decoded, record);
  EXPECT_FALSE(decoded.selector.head_sizes.empty());
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(DecodeSessionRecord(bytes, SomeSizes(31)),
              StatusIs(kPrecondition, HasSubstr("this server's are")));
  EXPECT_THAT(DecodeSessionRecord(bytes),
              StatusIs(kPrecondition, HasSubstr("this server holds none")));
  // A session with one size for all heads does not take the server's table.
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const SessionRecord other,
      DecodeSessionRecord(EncodeSessionRecord(Example()), SomeSizes(30)));
  EXPECT_EQ(other, Example());
}

// The first and the second half of Example's bytes, by hand from
// docs/session_format.md: a change of them is a format change. From version 2
// on the digest of sizes per head stands between them.
std::string FirstHalf(uint16_t version = kSessionRecordVersion) {
  const std::string selector = version < 3 ? "02000000"  // vertical-slash
                                             "80000000"
                                             "800f0000"  // 128, 3968
                                             "f4010000"
                                             "20030000"  // 500, 800
                                           : "0a000000"
                                             "1a0608f40310a006"
                                             "4000";
  return absl::HexStringToBytes(
      absl::StrCat("efcdab8967452301"   // incarnation
                   "03000000"           // turns
                   "0068e5cf8b010000"   // created
                   "e86be5cf8b010000",  // updated
                   selector,
                   "0040000000000000"));  // segment of 16,384
}
std::string SecondHalf() {
  return absl::HexStringToBytes(
      "0300000000000000"  // tokens
      "01000000"
      "02000000"
      "ffbf0000");
}

// With a right checksum: what another version, a faulty or a hostile writer
// could have left.
std::string WithBody(const std::string& body,
                     uint16_t version = kSessionRecordVersion) {
  std::string bytes = EncodeSessionRecord(SessionRecord()).substr(0, 8);
  bytes[4] = static_cast<char>(version);
  const uint64_t checksum = Xxh3(body);
  for (int i = 0; i < 8; ++i) {
    bytes.push_back(static_cast<char>(checksum >> (8 * i)));
  }
  return bytes + body;
}

TEST(SessionRecordTest, TheBytesAreThoseOfTheDocument) {
  const std::string body = FirstHalf() + std::string(32, '\0') + SecondHalf();
  const std::string encoded = EncodeSessionRecord(Example());
  EXPECT_EQ(absl::BytesToHexString(encoded.substr(0, 8)),
            "4f56535303000000");  // OVSS, version 3
  EXPECT_EQ(absl::BytesToHexString(encoded.substr(16)),
            absl::BytesToHexString(body));
  uint64_t checksum = 0;
  for (int i = 7; i >= 0; --i) {
    checksum = checksum << 8 | static_cast<unsigned char>(encoded[8 + i]);
  }
  EXPECT_EQ(checksum, Xxh3(body));
}

TEST(SessionRecordTest, OldVersionsAreStillRead) {
  for (const uint16_t version : {1, 2}) {
    const std::string digest(version == 2 ? 32 : 0, '\0');
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const SessionRecord decoded,
        DecodeSessionRecord(
            WithBody(FirstHalf(version) + digest + SecondHalf(), version)));
    EXPECT_EQ(decoded, Example());
  }
  for (const uint16_t version : {0, 4}) {
    EXPECT_THAT(
        DecodeSessionRecord(WithBody(FirstHalf() + SecondHalf(), version)),
        StatusIs(absl::StatusCode::kUnimplemented,
                 HasSubstr("this server reads 1 to 3")));
  }
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

TEST(SessionRecordTest, ConsistentChecksumsDoNotMakeNonsenseGood) {
  const std::string body = EncodeSessionRecord(Example()).substr(16);
  OVERTURE_EXPECT_OK(DecodeSessionRecord(WithBody(body)).status());
  EXPECT_THAT(DecodeSessionRecord(WithBody("")),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("short body")));
  std::string kind = FirstHalf(2) + std::string(32, '\0') + SecondHalf();
  kind[28] = 9;
  EXPECT_THAT(DecodeSessionRecord(WithBody(kind, 2)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("kind 9")));
  std::string length = body;
  length[31] = 0x40;  // a selector of 1 GB
  EXPECT_THAT(DecodeSessionRecord(WithBody(length)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("selector")));
  std::string vertical = body;
  vertical[33] = 0x7f;  // no message
  EXPECT_THAT(DecodeSessionRecord(WithBody(vertical)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("selector")));
  std::string count = body;
  count[count.size() - 3 * 4 - 1] = 0x40;  // 2^62 tokens: no allocation follows
  EXPECT_THAT(DecodeSessionRecord(WithBody(count)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("tokens in")));
}

}  // namespace
}  // namespace overture::service
