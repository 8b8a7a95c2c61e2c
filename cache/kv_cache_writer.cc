#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "cache/kv_cache.h"
#include "cache/kv_cache_impl.h"
#include "cache/record_format.h"

namespace overture::cache {
namespace {

// Recency that a commit may carry along: a batch stays below about 200 KiB.
constexpr size_t kMaxBucketsPerCommit = 1024;

std::vector<uint64_t> PutIds(absl::Span<const DirectoryEntry> entries) {
  std::vector<uint64_t> ids;
  for (const DirectoryEntry& entry : entries) ids.push_back(entry.put_id);
  return ids;
}

}  // namespace

KvCache::Impl::~Impl() {
  {
    absl::MutexLock lock(&mu);
    stopping = true;
  }
  if (writer.joinable()) writer.join();
}

// --- The writer thread

void KvCache::Impl::RunWriter() {
  for (;;) {
    Task task;
    {
      absl::MutexLock lock(&mu);
      mu.Await(absl::Condition(this, &Impl::HasWork));
      if (stopping) return;
      task = std::move(queue.front());
      queue.pop_front();
    }
    WriteState& state = *task.state;
    switch (task.kind) {
      case Task::Kind::kRecord:
        PutRecord(state, task.key, task.record);
        break;
      case Task::Kind::kSync:
        SyncWrite(state);
        task.done->Notify();
        break;
      case Task::Kind::kAbandon: {
        bool admitted = false;
        {
          absl::MutexLock lock(&mu);
          admitted = state.admitted;  // nothing was put before
        }
        if (admitted) DeletePayload(PutIds(state.entries));
        absl::MutexLock lock(&mu);
        ReleaseReservation(state);
        break;
      }
    }
  }
}

void KvCache::Impl::PutRecord(WriteState& state, const std::string& key,
                              const SharedRecord& record) {
  bool wanted = false, admitted = false;
  {
    absl::MutexLock lock(&mu);
    wanted = state.status.ok() && !state.abandoned;
    admitted = state.admitted;
  }
  absl::Status status;
  if (wanted && !admitted) status = Admit(state);
  if (wanted && status.ok()) {
    status = payload->Put(key, *record);
    ++num_puts;
  }
  absl::MutexLock lock(&mu);
  queued_bytes -= static_cast<int64_t>(record->size());
  if (!status.ok()) Fail(state, std::move(status));
}

void KvCache::Impl::SyncWrite(WriteState& state) {
  {
    absl::MutexLock lock(&mu);
    if (!state.status.ok()) return;
  }
  if (num_puts == num_flushed_puts) return;
  absl::Status status = payload->Flush();
  if (status.ok()) {
    num_flushed_puts = num_puts;
    return;
  }
  absl::MutexLock lock(&mu);
  Fail(state, std::move(status));
}

void KvCache::Impl::Fail(WriteState& state, absl::Status status) {
  if (!state.status.ok()) return;
  Log(Severity::kWarning,
      absl::StrCat("cache: dropped a write of ", state.bytes_needed,
                   " bytes: ", status.ToString()));
  state.status = std::move(status);
  ++counters.dropped_writes;
}

void KvCache::Impl::ReleaseReservation(WriteState& state) {
  if (!state.admitted) return;
  state.admitted = false;
  reserved_bytes -= state.bytes_needed;
}

void KvCache::Impl::ReleaseRetained(WriteState& state) {
  state.retained = false;
  state.records.clear();
  counters.memory_bytes -= state.retained_bytes;
  state.retained_bytes = 0;
}

void KvCache::Impl::DeletePayload(std::vector<uint64_t> put_ids) {
  // The spans of one write have consecutive ids: one range for all of them,
  // since RocksDB pays for every range at every read until it is compacted.
  std::sort(put_ids.begin(), put_ids.end());
  for (size_t i = 0; i < put_ids.size();) {
    const uint64_t begin = put_ids[i];
    uint64_t end = begin;
    while (i < put_ids.size() && put_ids[i] == end) ++end, ++i;
    const absl::Status status =
        payload->DeleteRange(FirstRecordKey(begin), FirstRecordKey(end));
    // Bytes that no entry names: the next start deletes them.
    if (!status.ok()) {
      Log(Severity::kWarning,
          absl::StrCat("cache: left payload of puts ", begin, " to ", end - 1,
                       " behind: ", status.ToString()));
    }
  }
}

// --- Room

absl::Status KvCache::Impl::Admit(WriteState& state) {
  const int64_t need = state.bytes_needed;
  int64_t others = 0, stored = 0;
  {
    absl::MutexLock lock(&mu);
    others = reserved_bytes;
    stored = index.stored_bytes();
  }
  const auto too_much = [&](absl::string_view what, int64_t bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("KV cache: ", what, " would be ", bytes,
                     " bytes, the limit (max_bytes) is ", options.max_bytes));
  };
  // Nothing is evicted for a write that cannot fit.
  if (others + need > options.max_bytes) {
    return too_much("writes under way", others + need);
  }
  if (stored + others + need > high_watermark()) {
    EvictTo(low_watermark() - others - need);
    absl::MutexLock lock(&mu);
    stored = index.stored_bytes();
  }
  if (stored + others + need > options.max_bytes) {
    return too_much("leased and new records", stored + others + need);
  }
  const int64_t room = options.max_bytes - others - need;
  if (payload->PhysicalBytes() > room) {
    {
      absl::MutexLock meta_lock(&meta_mu);
      if (!unerased.empty()) Erase({});
    }
    if (absl::Status status = payload->Reclaim(room); !status.ok()) {
      Log(Severity::kWarning,
          absl::StrCat("cache: could not reclaim space: ", status.ToString()));
    }
    const int64_t physical = payload->PhysicalBytes();
    if (physical > room) {
      return too_much("payload on the medium, garbage included,",
                      physical + others + need);
    }
  }
  absl::MutexLock lock(&mu);
  state.admitted = true;
  reserved_bytes += need;
  return absl::OkStatus();
}

void KvCache::Impl::EvictTo(int64_t target_bytes) {
  absl::MutexLock meta_lock(&meta_mu);
  std::vector<DirectoryEntry> evicted;
  int64_t bytes = 0;
  {
    absl::MutexLock lock(&mu);
    while (index.stored_bytes() > target_bytes) {
      std::optional<SpanKey> victim;
      index.ForEachLeaf([&](const DirectoryEntry& entry) {
        mu.AssertHeld();
        if (lease_counts.contains(entry.span.key)) return true;
        victim = entry.span.key;
        return false;
      });
      if (!victim.has_value()) break;
      for (DirectoryEntry& entry : index.RemoveSubtree(*victim)) {
        bytes += entry.stored_bytes();
        evicted.push_back(std::move(entry));
      }
    }
    counters.evicted_bytes += bytes;
  }
  if (evicted.empty()) return;
  Erase(std::move(evicted));
}

void KvCache::Impl::Erase(std::vector<DirectoryEntry> entries) {
  entries.insert(entries.end(), unerased.begin(), unerased.end());
  unerased.clear();
  std::vector<MetaStore::Write> batch;
  {
    absl::MutexLock lock(&mu);
    for (const DirectoryEntry& entry : entries) {
      stale_buckets.erase(entry.span.key);
      // Stored anew since: the entry on disk is the new one.
      if (index.Find(entry.span.key) != nullptr) continue;
      batch.push_back({.key = EntryKey(entry.span.key), .is_delete = true});
    }
  }
  if (absl::Status status = meta->Commit(batch); !status.ok()) {
    Log(Severity::kError, absl::StrCat("cache: cannot remove ", entries.size(),
                                       " entries: ", status.ToString()));
    unerased = std::move(entries);
    return;
  }
  DeletePayload(PutIds(entries));
}

// --- Writer

namespace {

absl::Status CheckChain(absl::Span<const SpanInfo> spans) {
  for (size_t i = 0; i < spans.size(); ++i) {
    const SpanInfo& span = spans[i];
    if (span.num_tokens < 1 || span.token_begin < 0) {
      return absl::InvalidArgumentError(absl::StrCat("span ", i, " is tokens [",
                                                     span.token_begin, ", +",
                                                     span.num_tokens, ")"));
    }
    if (i > 0 && (span.parent != spans[i - 1].key ||
                  span.token_begin != spans[i - 1].token_end())) {
      return absl::InvalidArgumentError(absl::StrCat(
          "span ", i, " at token ", span.token_begin,
          " does not continue the one before it, which ends at token ",
          spans[i - 1].token_end()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

class KvCacheWriter final : public KvCache::Writer {
 public:
  KvCacheWriter(KvCache* cache, KvCache::Impl* impl,
                std::shared_ptr<WriteState> state, const KvLayout& layout,
                std::vector<SpanKey> span_keys, Lease lease)
      : cache_(cache),
        impl_(*impl),
        state_(std::move(state)),
        layout_(layout),
        span_keys_(std::move(span_keys)),
        lease_(std::move(lease)),
        layer_put_(layout.num_layers, false) {}

  ~KvCacheWriter() override {
    if (committed_) return;
    absl::MutexLock lock(&impl_.mu);
    state_->abandoned = true;
    impl_.ReleaseRetained(*state_);
    EnqueueAbandon();
  }

  void PutLayer(int32_t layer, const LayerKvView& kv) override;
  CommitResult Commit(std::optional<SessionUpdate> session) override;

 private:
  using Task = KvCache::Impl::Task;

  // Deletes what was put and frees the room it was given.
  void EnqueueAbandon() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_.mu) {
    impl_.queue.push_back({.kind = Task::Kind::kAbandon, .state = state_});
  }
  void PutOne(size_t entry_idx, int32_t layer, int32_t block,
              const LayerKvView& kv);
  // Flushes what was put. The state's status says what came of it.
  absl::Status Sync();
  // Whether `entries` may be published: ABORTED if what they continue is gone.
  // Removes from `fresh` what another writer published meanwhile.
  absl::Status CheckPublishable(std::vector<DirectoryEntry>& fresh)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_.mu);
  // Entries, session and stale recency in one batch.
  absl::Status CommitMetadata(absl::Span<const DirectoryEntry> fresh,
                              const std::optional<SessionUpdate>& session)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_.meta_mu);
  void Hold() ABSL_EXCLUSIVE_LOCKS_REQUIRED(impl_.mu);

  KvCache* const cache_;
  KvCache::Impl& impl_;
  const std::shared_ptr<WriteState> state_;
  const KvLayout layout_;
  const std::vector<SpanKey> span_keys_;  // those stored before included
  Lease lease_;  // on the parent and on spans that were stored before
  std::vector<bool> layer_put_;
  bool committed_ = false;
};

absl::StatusOr<std::unique_ptr<KvCache::Writer>> KvCache::NewWriter(
    const ChainPolicy& policy, absl::Span<const SpanInfo> spans, Keep keep) {
  OVERTURE_RETURN_IF_ERROR(Validate(policy.layout));
  OVERTURE_RETURN_IF_ERROR(CheckChain(spans));
  auto state = std::make_shared<WriteState>();
  if (keep == Keep::kHold) {
    // A write that failed before it began: kept in memory, never queued.
    state->status = absl::CancelledError("held in memory only, as asked for");
  }
  std::vector<SpanKey> span_keys, to_lease;
  absl::MutexLock lock(&impl_->mu);
  if (!spans.empty() && impl_->index.Find(spans[0].parent) != nullptr) {
    to_lease.push_back(spans[0].parent);
  }
  size_t num_records = 0;
  for (const SpanInfo& span : spans) {
    span_keys.push_back(span.key);
    if (impl_->index.Find(span.key) != nullptr) {
      to_lease.push_back(span.key);
      continue;
    }
    DirectoryEntry entry = {.span = span,
                            .root = policy.root,
                            .layout = policy.layout,
                            .put_id = impl_->next_put_id++,
                            .last_use_bucket = CurrentUseBucket()};
    state->first_record.push_back(num_records);
    state->bytes_needed += entry.stored_bytes();
    num_records += static_cast<size_t>(entry.num_records());
    state->entries.push_back(std::move(entry));
  }
  state->records.resize(num_records);
  return std::make_unique<KvCacheWriter>(this, impl_.get(), std::move(state),
                                         policy.layout, std::move(span_keys),
                                         LeaseLocked(std::move(to_lease)));
}

void KvCacheWriter::PutLayer(int32_t layer, const LayerKvView& kv) {
  OVERTURE_CHECK(!committed_ && layer >= 0 && layer < layout_.num_layers &&
                 !layer_put_[layer]);
  layer_put_[layer] = true;
  for (size_t i = 0; i < state_->entries.size(); ++i) {
    const SpanInfo& span = state_->entries[i].span;
    OVERTURE_CHECK(span.token_end() <= kv.num_rows);
    for (int32_t block = 0; block < span.num_blocks(); ++block) {
      PutOne(i, layer, block, kv);
    }
  }
}

void KvCacheWriter::PutOne(size_t entry_idx, int32_t layer, int32_t block,
                           const LayerKvView& kv) {
  const DirectoryEntry& entry = state_->entries[entry_idx];
  {
    absl::MutexLock lock(&impl_.mu);
    if (!state_->status.ok() && !state_->retained) return;  // for nobody
  }
  const RecordHeader header = {.layout = layout_,
                               .span_key = entry.span.key,
                               .put_id = entry.put_id,
                               .layer = layer,
                               .block = block,
                               .num_tokens = entry.block_tokens(block)};
  auto record = std::make_shared<const std::string>(
      MakeRecord(header, [&](std::byte* dst) {
        GatherRows(layout_, kv,
                   entry.span.token_begin + block * kTokensPerBlock,
                   header.num_tokens, dst);
      }));
  const int64_t bytes = static_cast<int64_t>(record->size());

  absl::MutexLock lock(&impl_.mu);
  if (state_->retained) {
    if (impl_.counters.memory_bytes + bytes > impl_.options.max_memory_bytes) {
      impl_.ReleaseRetained(*state_);
    } else {
      impl_.counters.memory_bytes += bytes;
      state_->retained_bytes += bytes;
      state_->records[state_->RecordIndex(entry_idx, layer, block)] = record;
    }
  }
  if (!state_->status.ok()) return;
  if (impl_.queued_bytes + bytes > impl_.options.max_queued_bytes) {
    impl_.Fail(*state_, absl::ResourceExhaustedError(absl::StrCat(
                            "KV cache: write queue holds ", impl_.queued_bytes,
                            " bytes, the limit (max_queued_bytes) is ",
                            impl_.options.max_queued_bytes)));
    return;
  }
  impl_.queued_bytes += bytes;
  impl_.queue.push_back({.kind = Task::Kind::kRecord,
                         .state = state_,
                         .key = RecordKey(entry.put_id, layer, block),
                         .record = std::move(record)});
}

absl::Status KvCacheWriter::Sync() {
  absl::Notification done;
  {
    absl::MutexLock lock(&impl_.mu);
    for (size_t layer = 0; layer < layer_put_.size(); ++layer) {
      if (layer_put_[layer] || state_->entries.empty()) continue;
      impl_.ReleaseRetained(*state_);
      return absl::FailedPreconditionError(absl::StrCat(
          "commit of a KV write whose layer ", layer, " was not put"));
    }
    // A write that was dropped does not wait behind a slow disk.
    if (!state_->status.ok() || state_->entries.empty()) return state_->status;
    impl_.queue.push_back(
        {.kind = Task::Kind::kSync, .state = state_, .done = &done});
  }
  done.WaitForNotification();
  absl::MutexLock lock(&impl_.mu);
  return state_->status;
}

absl::Status KvCacheWriter::CheckPublishable(
    std::vector<DirectoryEntry>& fresh) {
  for (const DirectoryEntry& entry : state_->entries) {
    if (impl_.index.Find(entry.span.key) != nullptr) continue;
    const SpanKey& parent = entry.span.parent;
    if (fresh.empty() && entry.span.token_begin > 0) {
      const DirectoryEntry* above = impl_.index.Find(parent);
      if (above == nullptr ||
          entry.span.token_begin <= above->span.token_begin ||
          entry.span.token_begin > above->span.token_end()) {
        return absl::AbortedError(
            absl::StrCat("span ", parent.Hex(), ", which this write continues ",
                         "at token ", entry.span.token_begin, ", is gone"));
      }
    }
    fresh.push_back(entry);
  }
  return absl::OkStatus();
}

absl::Status KvCacheWriter::CommitMetadata(
    absl::Span<const DirectoryEntry> fresh,
    const std::optional<SessionUpdate>& session) {
  std::vector<MetaStore::Write> batch;
  for (const DirectoryEntry& entry : fresh) {
    batch.push_back(
        {.key = EntryKey(entry.span.key), .value = EncodeEntry(entry)});
  }
  if (session.has_value()) {
    batch.push_back({.key = SessionKey(session->id), .value = session->bytes});
  }
  if (batch.empty()) return absl::OkStatus();

  std::vector<SpanKey> renewed;
  const uint32_t bucket = CurrentUseBucket();
  {
    absl::MutexLock lock(&impl_.mu);
    for (const SpanKey& key : impl_.stale_buckets) {
      if (renewed.size() == kMaxBucketsPerCommit) break;
      renewed.push_back(key);
      const DirectoryEntry* found = impl_.index.Find(key);
      if (found == nullptr) continue;
      DirectoryEntry entry = *found;
      entry.last_use_bucket = bucket;
      batch.push_back({.key = EntryKey(key), .value = EncodeEntry(entry)});
    }
  }
  OVERTURE_RETURN_IF_ERROR(impl_.meta->Commit(batch));
  absl::MutexLock lock(&impl_.mu);
  for (const SpanKey& key : renewed) {
    impl_.stale_buckets.erase(key);
    impl_.index.SetUseBucket(key, bucket);
  }
  if (session.has_value()) impl_.session_ids.insert(session->id);
  return absl::OkStatus();
}

// Makes a failed write readable for those who lease its spans.
void KvCacheWriter::Hold() {
  for (size_t i = 0; i < state_->entries.size(); ++i) {
    const SpanKey& key = state_->entries[i].span.key;
    if (impl_.index.Find(key) != nullptr || impl_.held.contains(key)) continue;
    impl_.held[key] = {.state = state_, .entry = i};
    ++state_->num_held_spans;
  }
}

CommitResult KvCacheWriter::Commit(std::optional<SessionUpdate> session) {
  OVERTURE_CHECK(!committed_);
  committed_ = true;
  CommitResult result;
  result.status = Sync();

  std::vector<DirectoryEntry> fresh, twice;
  absl::MutexLock meta_lock(&impl_.meta_mu);
  if (result.status.ok()) {
    absl::MutexLock lock(&impl_.mu);
    result.status = CheckPublishable(fresh);
  }
  if (result.status.ok()) {
    result.status = CommitMetadata(fresh, session);
    result.session_persisted = result.status.ok() && session.has_value();
  } else if (session.has_value()) {
    result.session_persisted = CommitMetadata({}, session).ok();
  }
  result.persisted = result.status.ok();

  {
    absl::MutexLock lock(&impl_.mu);
    if (result.persisted) {
      const PrefixIndex::UseTime now = impl_.NextUseTime();
      for (const DirectoryEntry& entry : state_->entries) {
        if (impl_.index.Find(entry.span.key) != nullptr) {
          twice.push_back(entry);
          continue;
        }
        OVERTURE_CHECK(impl_.index.Insert(entry, now));
        result.bytes_written += entry.stored_bytes();
      }
      impl_.ReleaseReservation(*state_);
      impl_.ReleaseRetained(*state_);
      result.readable = true;
    } else {
      impl_.Fail(*state_, result.status);
      result.readable = state_->retained;
      if (!result.readable && absl::IsCancelled(result.status)) {
        result.status = absl::ResourceExhaustedError(absl::StrCat(
            "KV cache: ", state_->bytes_needed,
            " bytes to hold do not fit, the limit (max_memory_bytes) is ",
            impl_.options.max_memory_bytes));
      }
      if (state_->retained) Hold();
      if (state_->num_held_spans == 0) impl_.ReleaseRetained(*state_);
      EnqueueAbandon();
    }
    std::vector<SpanKey> keys;
    for (const SpanKey& key : span_keys_) {
      if (impl_.index.Find(key) != nullptr || impl_.held.contains(key)) {
        keys.push_back(key);
      }
    }
    result.lease = cache_->LeaseLocked(std::move(keys));
  }
  // Another request stored these meanwhile; its records are the ones named.
  impl_.DeletePayload(PutIds(twice));
  lease_.Release();
  return result;
}

}  // namespace overture::cache
