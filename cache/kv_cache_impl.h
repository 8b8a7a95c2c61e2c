// State of KvCache, shared by kv_cache.cc (recovery, match, read, sessions) and
// kv_cache_writer.cc (writes, eviction). Internal to cache/.
//
// Locks: `meta_mu` before `mu`. `meta_mu` is held over every change of the
// metadata store together with the change of the index that it stands for, so
// that the two never disagree about a key; `mu` is never held over I/O.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "cache/directory_format.h"
#include "cache/kv_cache.h"
#include "cache/prefix_index.h"

namespace overture::cache {

using SharedRecord = std::shared_ptr<const std::string>;

// One write. Shared by its Writer, its tasks in the queue and, if it failed,
// the table of held spans. What is not const is guarded by Impl::mu.
struct WriteState {
  std::vector<DirectoryEntry> entries;  // const once made
  std::vector<size_t> first_record;     // const; per entry, into `records`
  int64_t bytes_needed = 0;             // const

  // Why it cannot be persisted; the first reason stays.
  absl::Status status;
  bool abandoned = false;  // by its Writer, without Commit
  bool admitted = false;   // bytes_needed is part of Impl::reserved_bytes
  // [entry][layer][block]; empty once given up or no longer needed.
  std::vector<SharedRecord> records;
  bool retained = true;
  int64_t retained_bytes = 0;
  int64_t num_held_spans = 0;

  size_t RecordIndex(size_t entry, int32_t layer, int32_t block) const {
    return first_record[entry] +
           static_cast<size_t>(layer) * entries[entry].span.num_blocks() +
           block;
  }
};

struct KvCache::Impl {
  Impl(const Options& options_in, std::unique_ptr<MetaStore> meta_in,
       std::unique_ptr<PayloadStore> payload_in)
      : options(options_in),
        meta(std::move(meta_in)),
        payload(std::move(payload_in)) {}
  ~Impl();

  // --- kv_cache.cc
  absl::Status Recover();
  PrefixIndex::UseTime NextUseTime() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void AddLease(absl::Span<const SpanKey> keys)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void DropLease(absl::Span<const SpanKey> keys)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // The payload of one record, as a view into `record`, which it fills.
  absl::StatusOr<absl::string_view> ReadPayload(const KvLayout& layout,
                                                const SpanInfo& span,
                                                int32_t layer, int32_t block,
                                                std::string& record);
  // Counts, logs and removes a damaged span with all below it, if it still is
  // the write that was read.
  void DropDamaged(const DirectoryEntry& entry, const absl::Status& why);

  // --- kv_cache_writer.cc
  void RunWriter();
  void PutRecord(WriteState& state, const std::string& key,
                 const SharedRecord& record);
  void SyncWrite(WriteState& state);
  absl::Status Admit(WriteState& state);
  void Fail(WriteState& state, absl::Status status)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void ReleaseReservation(WriteState& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void ReleaseRetained(WriteState& state) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  // The records of these puts; best effort.
  void DeletePayload(std::vector<uint64_t> put_ids);
  // Evicts unleased leaves until at most `target_bytes` of records are stored
  // or none is left.
  void EvictTo(int64_t target_bytes) ABSL_LOCKS_EXCLUDED(meta_mu, mu);
  // Metadata, then bytes, of entries that the index no longer holds.
  void Erase(std::vector<DirectoryEntry> entries)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(meta_mu);

  int64_t high_watermark() const { return options.max_bytes / 10 * 9; }
  int64_t low_watermark() const { return options.max_bytes / 20 * 17; }

  struct Task {
    enum class Kind { kRecord, kSync, kAbandon };
    Kind kind;
    std::shared_ptr<WriteState> state;
    std::string key;
    SharedRecord record;
    absl::Notification* done = nullptr;  // kSync only
  };
  bool HasWork() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    return stopping || !queue.empty();
  }

  struct HeldSpan {
    std::shared_ptr<WriteState> state;
    size_t entry = 0;
  };

  const Options options;
  const std::unique_ptr<MetaStore> meta;
  const std::unique_ptr<PayloadStore> payload;

  absl::Mutex meta_mu ABSL_ACQUIRED_BEFORE(mu);
  // Removed from the index, but the metadata store refused: tried again with
  // the next removal.
  std::vector<DirectoryEntry> unerased ABSL_GUARDED_BY(meta_mu);

  mutable absl::Mutex mu;
  PrefixIndex index ABSL_GUARDED_BY(mu);
  // Apart from the index, since a leased span may be removed (damage) and
  // stored anew while its lease lives.
  absl::flat_hash_map<SpanKey, int64_t> lease_counts ABSL_GUARDED_BY(mu);
  absl::flat_hash_map<SpanKey, HeldSpan> held ABSL_GUARDED_BY(mu);
  absl::flat_hash_set<SpanKey> stale_buckets ABSL_GUARDED_BY(mu);
  std::set<std::string, std::less<>> session_ids ABSL_GUARDED_BY(mu);
  uint64_t next_put_id ABSL_GUARDED_BY(mu) = 0;
  uint32_t use_counter ABSL_GUARDED_BY(mu) = 0;
  int64_t reserved_bytes ABSL_GUARDED_BY(mu) = 0;
  Stats counters ABSL_GUARDED_BY(mu);  // the sums; the rest is filled in stats

  std::deque<Task> queue ABSL_GUARDED_BY(mu);
  int64_t queued_bytes ABSL_GUARDED_BY(mu) = 0;
  bool stopping ABSL_GUARDED_BY(mu) = false;

  // Of the writer thread alone: records put, and how many of them are durable.
  // One flush serves every write whose records lie before it.
  uint64_t num_puts = 0;
  uint64_t num_flushed_puts = 0;

  std::thread writer;  // last: it uses everything above
};

// Now, in units of the directory's last-use buckets.
uint32_t CurrentUseBucket();

}  // namespace overture::cache
