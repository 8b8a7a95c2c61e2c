#include <cstring>
#include <string>

#include "base/hash.h"
#include "cache/directory_format.h"
#include "cache/record_format.h"
#include "gtest/gtest.h"
#include "tests/fuzz/corpus_runner.h"

namespace overture::testing {
namespace {

using cache::DirectoryEntry;
using cache::RecordHeader;

constexpr KvLayout kLayout = {
    .num_layers = 4, .num_kv_heads = 1, .head_dim = 2, .dtype = DType::kBF16};

std::string Record(int32_t num_tokens) {
  const RecordHeader header = {.layout = kLayout,
                               .put_id = 7,
                               .layer = 3,
                               .block = 2,
                               .num_tokens = num_tokens};
  return cache::MakeRecord(header, [&](std::byte* dst) {
    std::memset(dst, 0x5a, header.payload_bytes());
  });
}

// A record whose fields lie, under a checksum that does not.
std::string Resealed(size_t offset, uint32_t value) {
  std::string record = Record(3);
  std::memcpy(record.data() + offset, &value, sizeof(value));
  const uint64_t sum = Xxh3(record.data(), 120);
  std::memcpy(record.data() + 120, &sum, sizeof(sum));
  return record;
}

TEST(KvRecordFuzzTest, DamagedRecordsNeitherCrashNorCostMemory) {
  DirectoryEntry entry;
  entry.span.num_tokens = 300;
  entry.layout = kLayout;
  RunCorpus(
      {.name = "kv_record",
       .seeds = {Record(1), Record(5),
                 // Layers, heads, head dim, tokens, payload size.
                 Resealed(12, 0x7fffffff), Resealed(16, 0x7fffffff),
                 Resealed(20, 0x7fffffff), Resealed(32, 0xffffffff),
                 Resealed(84, 0x7fffffff),
                 cache::EntryKey(entry.span.key) + cache::EncodeEntry(entry),
                 cache::EncodeStoreFormat({.epoch = 3}),
                 cache::RecordKey(1, 2, 3)},
       .dictionary = {"OVKR", "OVKF", "e"}});
}

}  // namespace
}  // namespace overture::testing
