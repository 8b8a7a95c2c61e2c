#include "cache/directory_format.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::cache {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

DirectoryEntry Entry() {
  DirectoryEntry entry;
  entry.span.key.bytes.fill(1);
  entry.span.parent.bytes.fill(2);
  entry.span.token_begin = 512;
  entry.span.num_tokens = 300;
  entry.span.is_tail = true;
  entry.root.bytes.fill(3);
  entry.layout = {.num_layers = 30,
                  .num_kv_heads = 3,
                  .head_dim = 64,
                  .dtype = DType::kBF16};
  entry.put_id = (uint64_t{5} << 40) + 7;
  entry.last_use_bucket = 2900000;
  return entry;
}

TEST(DirectoryFormatTest, AnEntryReadsBack) {
  const DirectoryEntry entry = Entry();
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const DirectoryEntry parsed,
      ParseEntry(EntryKey(entry.span.key), EncodeEntry(entry)));
  EXPECT_EQ(parsed, entry);
}

TEST(DirectoryFormatTest, AnEntryCountsItsRecordsAndBytes) {
  const DirectoryEntry entry = Entry();
  EXPECT_EQ(entry.num_records(), 60);  // 30 layers, 256 + 44 tokens
  EXPECT_EQ(entry.block_tokens(0), 256);
  EXPECT_EQ(entry.block_tokens(1), 44);
  EXPECT_EQ(entry.stored_bytes(), 60 * 128 + 30 * 300 * 2 * 3 * 64 * 2);
}

TEST(DirectoryFormatTest, BytesBeyondFourGibAreCounted) {
  DirectoryEntry entry = Entry();
  // A segment of a model of 80 layers: 5 GiB. A million tokens: 320 GiB.
  entry.layout = {.num_layers = 80,
                  .num_kv_heads = 8,
                  .head_dim = 128,
                  .dtype = DType::kBF16};
  entry.span.num_tokens = 16384;
  EXPECT_EQ(entry.stored_bytes(), (int64_t{5} << 30) + 80 * 64 * 128);
  entry.span.num_tokens = 1 << 20;
  EXPECT_EQ(entry.stored_bytes(), (int64_t{320} << 30) + 80 * 4096 * 128);
}

TEST(DirectoryFormatTest, EveryFlippedBitOfAnEntryIsDataLoss) {
  const std::string key = EntryKey(Entry().span.key);
  const std::string intact = EncodeEntry(Entry());
  for (size_t i = 0; i < intact.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string value = intact;
      value[i] ^= static_cast<char>(1 << bit);
      EXPECT_THAT(ParseEntry(key, value), StatusIs(absl::StatusCode::kDataLoss))
          << i;
    }
  }
  for (size_t size = 0; size < intact.size(); ++size) {
    EXPECT_THAT(ParseEntry(key, intact.substr(0, size)),
                StatusIs(absl::StatusCode::kDataLoss));
  }
}

TEST(DirectoryFormatTest, AnEntryUnderAnotherKeyIsDataLoss) {
  SpanKey other = Entry().span.key;
  other.bytes[5] ^= 1;
  EXPECT_THAT(ParseEntry(EntryKey(other), EncodeEntry(Entry())),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("checksum")));
  EXPECT_THAT(ParseEntry("e", EncodeEntry(Entry())),
              StatusIs(absl::StatusCode::kDataLoss));
}

TEST(DirectoryFormatTest, EntriesThatCannotBeAreDataLoss) {
  const auto parse = [](const DirectoryEntry& entry) {
    return ParseEntry(EntryKey(entry.span.key), EncodeEntry(entry)).status();
  };
  DirectoryEntry entry = Entry();
  entry.span.num_tokens = 0;
  EXPECT_THAT(parse(entry), StatusIs(absl::StatusCode::kDataLoss));
  entry = Entry();
  entry.span.num_tokens = int64_t{1} << 60;
  EXPECT_THAT(parse(entry), StatusIs(absl::StatusCode::kDataLoss));
  entry = Entry();
  entry.span.token_begin = -1;
  EXPECT_THAT(parse(entry), StatusIs(absl::StatusCode::kDataLoss));
  entry = Entry();
  entry.layout.head_dim = 1 << 20;
  EXPECT_THAT(parse(entry), StatusIs(absl::StatusCode::kDataLoss));
  entry = Entry();
  entry.span.token_begin = 0;  // but its parent is not the root
  EXPECT_THAT(parse(entry), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(DirectoryFormatTest, AnUnknownFormatIsRefusedWithBothVersions) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const StoreFormat parsed,
      ParseStoreFormat(EncodeStoreFormat({.epoch = 77})));
  EXPECT_EQ(parsed.epoch, 77u);
  EXPECT_THAT(ParseStoreFormat(EncodeStoreFormat({.version = 2})),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("format version 2, this build reads 1")));
  EXPECT_THAT(ParseStoreFormat(EncodeStoreFormat(
                  {.checksum = static_cast<ChecksumKind>(3)})),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("checksum kind 3, this build reads 1")));
  std::string damaged = EncodeStoreFormat({.epoch = 77});
  damaged[13] ^= 1;
  EXPECT_THAT(ParseStoreFormat(damaged), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_THAT(ParseStoreFormat(""), StatusIs(absl::StatusCode::kDataLoss));
}

TEST(DirectoryFormatTest, TheRecordsOfOnePutAreOneRange) {
  constexpr uint64_t kId = 0x01ff;
  EXPECT_LT(FirstRecordKey(kId), RecordKey(kId, 0, 1));
  EXPECT_LT(RecordKey(kId, 0, 256), RecordKey(kId, 1, 0));
  EXPECT_LT(RecordKey(kId, 4095, 1 << 30), FirstRecordKey(kId + 1));
  EXPECT_LT(FirstRecordKey(kId + 1), FirstRecordKey(uint64_t{1} << 40));
  EXPECT_EQ(PutIdOfRecordKey(RecordKey(kId, 3, 4)), kId);
  EXPECT_EQ(PutIdOfRecordKey("short"), std::nullopt);
}

}  // namespace
}  // namespace overture::cache
