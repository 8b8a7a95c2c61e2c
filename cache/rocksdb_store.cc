// Both stores in one RocksDB 7.8 of two column families:
//
//   default    metadata: levelled, Bloom, WAL synced at every commit
//   payload    BlobDB: values of 64 KiB and more go to blob files; no WAL, so
//              that each byte is written once; durable by Flush
//
// A commit's order is the caller's: Flush of the payload, then Commit of the
// metadata. Options and the traps of this version: docs/kv_format.md.
#include <fcntl.h>
#include <rocksdb/convenience.h>
#include <rocksdb/db.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>
#include <rocksdb/utilities/debug.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "cache/kv_cache.h"

namespace overture::cache {
namespace {

// A record of a short tail stays in the tables: a blob file reference and its
// own read cost more than 64 KiB of write amplification.
constexpr uint64_t kMinBlobBytes = 64 << 10;
// What one flush makes at most, and how many may wait for it: 256 MiB of
// memory. Buffers of 256 MiB were no faster in cache_bench, and RocksDB resumes
// after a full disk only once one buffer's size is free.
constexpr size_t kWriteBufferBytes = size_t{64} << 20;
constexpr int kMaxWriteBuffers = 4;
// Free space that is never written into: RocksDB 7.8 recovers poorly from a
// full device. Two write buffers, or 5% of a small file system.
constexpr uint64_t kReserveBytes = 2 * kWriteBufferBytes;
constexpr uint64_t kReserveDivisor = 20;
// The part of the reserve that a start needs: 16 MiB, or 0.6%. It writes a new
// MANIFEST and the log's content, and where that meets a full device this
// version's assertions abort the process.
constexpr uint64_t kStartDivisor = 8;

rocksdb::Slice ToSlice(absl::string_view s) { return {s.data(), s.size()}; }
absl::string_view ToView(const rocksdb::Slice& s) {
  return {s.data(), s.size()};
}

absl::Status WriteError(const rocksdb::Status& s, absl::string_view what) {
  if (s.ok()) return absl::OkStatus();
  const std::string text = absl::StrCat("RocksDB ", what, ": ", s.ToString());
  if (s.IsNoSpace()) return absl::ResourceExhaustedError(text);
  if (s.IsCorruption()) return absl::DataLossError(text);
  return absl::UnavailableError(text);
}

// A read error is damage to that value: the medium does not give it back.
absl::Status ReadError(const rocksdb::Status& s, absl::string_view key) {
  const std::string text = absl::StrCat(
      "RocksDB read of ", absl::BytesToHexString(key), ": ", s.ToString());
  if (s.IsNotFound()) return absl::NotFoundError(text);
  if (s.IsBusy() || s.IsTimedOut() || s.IsShutdownInProgress()) {
    return absl::UnavailableError(text);
  }
  return absl::DataLossError(text);
}

// tmpfs and some network file systems refuse O_DIRECT.
bool SupportsDirectIo(const std::string& folder) {
  const std::string probe = absl::StrCat(folder, "/direct_io_probe");
  const int fd = open(probe.c_str(), O_CREAT | O_RDWR | O_DIRECT | O_CLOEXEC,
                      S_IRUSR | S_IWUSR);
  if (fd >= 0) close(fd);
  unlink(probe.c_str());
  return fd >= 0;
}

// RESOURCE_EXHAUSTED if less than the reserve, divided by `divisor`, is free.
absl::Status CheckFreeSpace(const std::string& folder, uint64_t divisor) {
  struct statvfs fs;
  if (statvfs(folder.c_str(), &fs) != 0) return absl::OkStatus();
  const uint64_t free = uint64_t{fs.f_bavail} * fs.f_frsize;
  const uint64_t size = uint64_t{fs.f_blocks} * fs.f_frsize;
  const uint64_t reserve =
      std::min(kReserveBytes, size / kReserveDivisor) / divisor;
  if (free >= reserve) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat(folder, " has ", free, " bytes free, the last ", reserve,
                   " are not written"));
}

rocksdb::DBOptions MakeDbOptions(bool direct_io) {
  rocksdb::DBOptions options;
  options.create_if_missing = true;
  options.create_missing_column_families = true;
  options.use_direct_reads = direct_io;
  options.use_direct_io_for_flush_and_compaction = direct_io;
  options.max_background_jobs =
      std::max(2, static_cast<int>(std::thread::hardware_concurrency() / 4));
  options.max_subcompactions = 2;
  options.compaction_readahead_size = 2 << 20;
  options.bytes_per_sync = 1 << 20;
  options.wal_bytes_per_sync = 1 << 20;
  options.avoid_flush_during_shutdown = true;
  // Metadata only. Every payload flush opens a new log and preallocates this
  // much; without a limit it is 1.1 payload write buffers each time.
  options.max_total_wal_size = 16 << 20;
  options.info_log_level = rocksdb::WARN_LEVEL;
  options.keep_log_file_num = 4;
  options.max_log_file_size = 16 << 20;
  return options;
}

rocksdb::ColumnFamilyOptions MakeMetaOptions() {
  rocksdb::ColumnFamilyOptions options;
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(64 << 20);
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.cache_index_and_filter_blocks = true;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.compression = rocksdb::kNoCompression;
  for (rocksdb::CompressionType type : rocksdb::GetSupportedCompressions()) {
    if (type == rocksdb::kLZ4Compression) options.compression = type;
  }
  options.write_buffer_size = 16 << 20;
  return options;
}

rocksdb::ColumnFamilyOptions MakePayloadOptions() {
  rocksdb::ColumnFamilyOptions options;
  rocksdb::BlockBasedTableOptions table;
  // Keys and short tails only; payload is read past every cache.
  table.block_cache = rocksdb::NewLRUCache(32 << 20);
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));
  table.cache_index_and_filter_blocks = true;
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  options.compression = rocksdb::kNoCompression;  // BF16 KV does not compress
  options.blob_compression_type = rocksdb::kNoCompression;
  options.enable_blob_files = true;
  options.min_blob_size = kMinBlobBytes;
  options.blob_file_size = kWriteBufferBytes;
  options.enable_blob_garbage_collection = true;
  options.blob_garbage_collection_age_cutoff = 0.5;
  options.blob_garbage_collection_force_threshold = 0.5;
  options.blob_compaction_readahead_size = 4 << 20;
  options.write_buffer_size = kWriteBufferBytes;
  options.max_write_buffer_number = kMaxWriteBuffers;
  options.target_file_size_base = 16 << 20;
  return options;
}

// The open database. Shared by its two stores; the last one closes it.
class Database {
 public:
  static absl::StatusOr<std::shared_ptr<Database>> Open(
      const std::string& folder) {
    if (mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST) {
      return absl::UnavailableError(absl::StrCat("cannot make folder ", folder,
                                                 ": ", std::strerror(errno)));
    }
    OVERTURE_RETURN_IF_ERROR(
        WithContext(CheckFreeSpace(folder, kStartDivisor),
                    "a start needs free space, remove something"));
    const bool direct_io = SupportsDirectIo(folder);
    if (!direct_io) {
      Log(Severity::kWarning,
          absl::StrCat("cache: ", folder,
                       " does not support direct I/O; using buffered"));
    }
    auto database = std::shared_ptr<Database>(new Database(folder));
    std::vector<rocksdb::ColumnFamilyHandle*> handles;
    const rocksdb::Status status = rocksdb::DB::Open(
        MakeDbOptions(direct_io), folder,
        {{rocksdb::kDefaultColumnFamilyName, MakeMetaOptions()},
         {"payload", MakePayloadOptions()}},
        &handles, &database->db_);
    // A path that is missing is one that CURRENT or a table list names.
    if (status.IsCorruption() || status.IsPathNotFound() ||
        status.IsNotFound()) {
      // Not emptied by us: other tables may hold what was acknowledged.
      return absl::DataLossError(
          absl::StrCat("RocksDB open of ", folder, ": ", status.ToString(),
                       "; move the folder away to start with an empty cache"));
    }
    if (!status.ok()) {
      return WriteError(status, absl::StrCat("open of ", folder));
    }
    database->meta_ = handles[0];
    database->payload_ = handles[1];
    return database;
  }

  ~Database() {
    if (db_ == nullptr) return;
    for (rocksdb::ColumnFamilyHandle* handle : {meta_, payload_}) {
      db_->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
    }
    // Not flushed: payload that was not flushed belongs to no entry.
    db_->Close().PermitUncheckedError();
    delete db_;
  }

  // RESOURCE_EXHAUSTED while the medium is nearly full. Asked before payload
  // only: metadata is small, and its deletions make room.
  absl::Status CheckSpace() const { return CheckFreeSpace(folder_, 1); }

  // After a failed write: the way back from RocksDB's read-only state.
  absl::Status ResumeAfterFailure() {
    if (!failed_.exchange(false)) return absl::OkStatus();
    return Note(db_->Resume(), "resume");
  }

  // Remembers a failure for the next ResumeAfterFailure.
  absl::Status Note(const rocksdb::Status& status, absl::string_view what) {
    if (!status.ok()) failed_ = true;
    return WriteError(status, what);
  }

  rocksdb::DB* db() const { return db_; }
  rocksdb::ColumnFamilyHandle* meta() const { return meta_; }
  rocksdb::ColumnFamilyHandle* payload() const { return payload_; }

 private:
  explicit Database(std::string folder) : folder_(std::move(folder)) {}

  const std::string folder_;
  rocksdb::DB* db_ = nullptr;
  rocksdb::ColumnFamilyHandle* meta_ = nullptr;
  rocksdb::ColumnFamilyHandle* payload_ = nullptr;
  std::atomic<bool> failed_{false};
};

class RocksDbMetaStore final : public MetaStore {
 public:
  explicit RocksDbMetaStore(std::shared_ptr<Database> database)
      : database_(std::move(database)) {}

  absl::Status Commit(absl::Span<const Write> batch) override {
    OVERTURE_RETURN_IF_ERROR(database_->ResumeAfterFailure());
    rocksdb::WriteBatch writes;
    for (const Write& write : batch) {
      const rocksdb::Status status =
          write.is_delete
              ? writes.Delete(database_->meta(), write.key)
              : writes.Put(database_->meta(), write.key, write.value);
      OVERTURE_RETURN_IF_ERROR(WriteError(status, "batch"));
    }
    rocksdb::WriteOptions options;
    options.sync = true;
    return database_->Note(database_->db()->Write(options, &writes), "commit");
  }

  absl::StatusOr<std::string> Get(absl::string_view key) const override {
    std::string value;
    const rocksdb::Status status = database_->db()->Get(
        rocksdb::ReadOptions(), database_->meta(), ToSlice(key), &value);
    if (!status.ok()) return ReadError(status, key);
    return value;
  }

  absl::Status Scan(
      absl::string_view prefix,
      const std::function<void(absl::string_view, absl::string_view)>& fn)
      const override {
    const std::unique_ptr<rocksdb::Iterator> it(database_->db()->NewIterator(
        rocksdb::ReadOptions(), database_->meta()));
    for (it->Seek(ToSlice(prefix));
         it->Valid() && it->key().starts_with(ToSlice(prefix)); it->Next()) {
      fn(ToView(it->key()), ToView(it->value()));
    }
    return WriteError(it->status(), "scan");
  }

 private:
  const std::shared_ptr<Database> database_;
};

class RocksDbPayloadStore final : public PayloadStore {
 public:
  explicit RocksDbPayloadStore(std::shared_ptr<Database> database)
      : database_(std::move(database)) {}

  absl::Status Put(absl::string_view key, absl::string_view value) override {
    OVERTURE_RETURN_IF_ERROR(database_->CheckSpace());
    OVERTURE_RETURN_IF_ERROR(database_->ResumeAfterFailure());
    return database_->Note(database_->db()->Put(NoWal(), database_->payload(),
                                                ToSlice(key), ToSlice(value)),
                           "put");
  }

  absl::StatusOr<std::string> Get(absl::string_view key) const override {
    rocksdb::ReadOptions options;
    // The record's own XXH3 covers it; CRC32C runs at 1.4 GB/s per core here.
    options.verify_checksums = false;
    std::string value;
    const rocksdb::Status status = database_->db()->Get(
        options, database_->payload(), ToSlice(key), &value);
    if (!status.ok()) return ReadError(status, key);
    return value;
  }

  absl::Status DeleteRange(absl::string_view begin,
                           absl::string_view end) override {
    const rocksdb::Status status = database_->db()->DeleteRange(
        NoWal(), database_->payload(), ToSlice(begin), ToSlice(end));
    if (!status.ok()) return database_->Note(status, "delete");
    absl::MutexLock lock(&mu_);
    if (deleted_end_.empty() || begin < deleted_begin_) {
      deleted_begin_ = std::string(begin);
    }
    if (end > deleted_end_) deleted_end_ = std::string(end);
    return absl::OkStatus();
  }

  absl::Status Flush() override {
    OVERTURE_RETURN_IF_ERROR(database_->ResumeAfterFailure());
    rocksdb::FlushOptions options;
    options.allow_write_stall = true;  // durability is waited for anyway
    return database_->Note(
        database_->db()->Flush(options, database_->payload()), "flush");
  }

  // Keys by way of the internal iterator: a plain one of this version reads
  // every blob that it passes.
  absl::Status ForEachKey(
      const std::function<void(absl::string_view)>& fn) const override {
    constexpr size_t kPage = 4096;
    std::string begin, last;
    for (;;) {
      std::vector<rocksdb::KeyVersion> page;
      const rocksdb::Status status =
          rocksdb::GetAllKeyVersions(database_->db(), database_->payload(),
                                     begin, rocksdb::Slice(), kPage, &page);
      if (!status.ok()) return WriteError(status, "key scan");
      for (const rocksdb::KeyVersion& version : page) {
        constexpr int kTypeValue = 0x1, kTypeBlobIndex = 0x11;
        if (version.type != kTypeValue && version.type != kTypeBlobIndex) {
          continue;
        }
        if (version.user_key == last) continue;
        last = version.user_key;
        fn(last);
      }
      if (page.size() < kPage) return absl::OkStatus();
      begin = absl::StrCat(page.back().user_key, absl::string_view("\0", 1));
    }
  }

  int64_t PhysicalBytes() const override {
    uint64_t tables = 0, blobs = 0;
    database_->db()->GetIntProperty(database_->payload(),
                                    rocksdb::DB::Properties::kTotalSstFilesSize,
                                    &tables);
    database_->db()->GetIntProperty(database_->payload(),
                                    rocksdb::DB::Properties::kTotalBlobFileSize,
                                    &blobs);
    return static_cast<int64_t>(tables + blobs);
  }

  // Compaction drops deleted keys and with them the blob files that hold
  // nothing else. First where keys were deleted, rewriting the oldest half of
  // the blob files there; if that is not enough, all that holds garbage.
  absl::Status Reclaim(int64_t target_bytes) override {
    std::string begin, end;
    {
      absl::MutexLock lock(&mu_);
      begin = std::exchange(deleted_begin_, {});
      end = std::exchange(deleted_end_, {});
    }
    OVERTURE_RETURN_IF_ERROR(Flush());
    if (begin < end) {
      OVERTURE_RETURN_IF_ERROR(Compact(0.5, begin, end));
    }
    if (PhysicalBytes() <= target_bytes) return absl::OkStatus();
    uint64_t garbage = 0;
    database_->db()->GetIntProperty(
        database_->payload(), rocksdb::DB::Properties::kLiveBlobFileGarbageSize,
        &garbage);
    if (garbage == 0) return absl::OkStatus();
    return Compact(1.0, {}, kAfterEveryKey);
  }

 private:
  static rocksdb::WriteOptions NoWal() {
    rocksdb::WriteOptions options;
    options.disableWAL = true;
    return options;
  }

  absl::Status Compact(double age_cutoff, const std::string& begin,
                       const std::string& end) {
    rocksdb::CompactRangeOptions options;
    options.blob_garbage_collection_policy =
        rocksdb::BlobGarbageCollectionPolicy::kForce;
    options.blob_garbage_collection_age_cutoff = age_cutoff;
    options.bottommost_level_compaction =
        rocksdb::BottommostLevelCompaction::kForceOptimized;
    const rocksdb::Slice from = begin, to = end;
    return database_->Note(database_->db()->CompactRange(
                               options, database_->payload(), &from, &to),
                           "compaction");
  }

  // Record keys are 16 bytes, their first 3 an epoch below 2^24 - 1.
  static constexpr char kAfterEveryKey[] = "\xff\xff\xff\xff\xff";

  const std::shared_ptr<Database> database_;
  absl::Mutex mu_;
  // What was deleted since the last Reclaim lies inside; at first anything may
  // have been, before the restart.
  std::string deleted_begin_ ABSL_GUARDED_BY(mu_);
  std::string deleted_end_ ABSL_GUARDED_BY(mu_) = kAfterEveryKey;
};

}  // namespace

absl::StatusOr<Stores> OpenRocksDbStores(absl::string_view path) {
  OVERTURE_ASSIGN_OR_RETURN(const std::shared_ptr<Database> database,
                            Database::Open(std::string(path)));
  return Stores{.meta = std::make_unique<RocksDbMetaStore>(database),
                .payload = std::make_unique<RocksDbPayloadStore>(database)};
}

}  // namespace overture::cache
