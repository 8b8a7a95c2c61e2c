// Entry point for fuzzing what the cache reads from its medium: the same bytes
// are tried as a record, a directory entry under their own first bytes as key,
// and a format record.
#include <algorithm>
#include <cstdlib>

#include "cache/directory_format.h"
#include "cache/record_format.h"
#include "tests/fuzz/corpus_runner.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace cache = overture::cache;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const auto record = cache::ParseRecord(bytes); record.ok()) {
    // What is accepted is what its layout says, inside of the input.
    if (static_cast<int64_t>(record->payload.size()) !=
            record->header.payload_bytes() ||
        record->payload.data() + record->payload.size() !=
            bytes.data() + bytes.size()) {
      std::abort();
    }
  }
  const size_t key_size = std::min<size_t>(size, 33);
  if (const auto entry =
          cache::ParseEntry(bytes.substr(0, key_size), bytes.substr(key_size));
      entry.ok()) {
    // Whatever it says, the byte counts hold.
    if (entry->num_records() <= 0 || entry->stored_bytes() <= 0) std::abort();
  }
  (void)cache::ParseStoreFormat(bytes);
  (void)cache::PutIdOfRecordKey(bytes);
  return 0;
}
