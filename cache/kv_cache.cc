#include "cache/kv_cache.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "cache/kv_cache_impl.h"
#include "cache/record_format.h"

namespace overture::cache {

uint32_t CurrentUseBucket() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint32_t>(
      std::chrono::duration_cast<std::chrono::seconds>(now).count() /
      kSecondsPerUseBucket);
}

// --- Lease

Lease& Lease::operator=(Lease&& other) noexcept {
  if (this != &other) {
    Release();
    cache_ = std::exchange(other.cache_, nullptr);
    keys_ = std::exchange(other.keys_, {});
  }
  return *this;
}

void Lease::Release() {
  if (cache_ == nullptr) return;
  std::exchange(cache_, nullptr)->Unlease(keys_);
  keys_.clear();
}

void KvCache::Impl::AddLease(absl::Span<const SpanKey> keys) {
  for (const SpanKey& key : keys) ++lease_counts[key];
}

void KvCache::Impl::DropLease(absl::Span<const SpanKey> keys) {
  for (const SpanKey& key : keys) {
    const auto it = lease_counts.find(key);
    if (it == lease_counts.end() || --it->second > 0) continue;
    lease_counts.erase(it);
    const auto span = held.find(key);
    if (span == held.end()) continue;
    const std::shared_ptr<WriteState> state = span->second.state;
    held.erase(span);
    if (--state->num_held_spans == 0) ReleaseRetained(*state);
  }
}

Lease KvCache::LeaseLocked(std::vector<SpanKey> keys) {
  Lease lease;
  if (keys.empty()) return lease;
  impl_->mu.AssertHeld();
  impl_->AddLease(keys);
  ++impl_->counters.live_leases;
  lease.cache_ = this;
  lease.keys_ = std::move(keys);
  return lease;
}

void KvCache::Unlease(absl::Span<const SpanKey> keys) {
  absl::MutexLock lock(&impl_->mu);
  impl_->DropLease(keys);
  --impl_->counters.live_leases;
}

// --- Opening

KvCache::KvCache(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KvCache::~KvCache() = default;

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Open(
    const Options& options, std::unique_ptr<MetaStore> meta,
    std::unique_ptr<PayloadStore> payload) {
  for (const auto& [name, value] :
       {std::pair("max_bytes", options.max_bytes),
        std::pair("max_queued_bytes", options.max_queued_bytes),
        std::pair("max_memory_bytes", options.max_memory_bytes)}) {
    if (value <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("KV cache: ", name, " is ", value, ", must be above 0"));
    }
  }
  auto impl =
      std::make_unique<Impl>(options, std::move(meta), std::move(payload));
  OVERTURE_RETURN_IF_ERROR(WithContext(impl->Recover(), "opening KV cache"));
  int64_t high = 0, low = 0, stored = 0;
  {
    absl::MutexLock lock(&impl->mu);
    stored = impl->index.stored_bytes();
    high = impl->high_watermark();
    low = impl->low_watermark();
  }
  if (stored > high) impl->EvictTo(low);
  impl->writer = std::thread([raw = impl.get()] { raw->RunWriter(); });
  return std::unique_ptr<KvCache>(new KvCache(std::move(impl)));
}

absl::Status KvCache::Impl::Recover() {
  StoreFormat format;
  const absl::StatusOr<std::string> stored_format = meta->Get(kFormatKey);
  if (stored_format.ok()) {
    OVERTURE_ASSIGN_OR_RETURN(format, ParseStoreFormat(*stored_format));
  } else if (!absl::IsNotFound(stored_format.status())) {
    return stored_format.status();
  }
  // 24 bits of epoch, 40 of counter.
  if (++format.epoch >= uint64_t{1} << 24) {
    return absl::FailedPreconditionError(
        "store was opened 2^24 times: its put ids are used up");
  }

  // What each write left behind.
  absl::flat_hash_map<uint64_t, int64_t> num_records;
  std::vector<std::string> garbage;
  OVERTURE_RETURN_IF_ERROR(payload->ForEachKey([&](absl::string_view key) {
    if (const auto id = PutIdOfRecordKey(key)) {
      ++num_records[*id];
    } else {
      garbage.emplace_back(key);
    }
  }));

  // Damaged entries and entries without all their records go.
  std::vector<DirectoryEntry> entries;
  std::vector<MetaStore::Write> batch;
  int64_t num_damaged = 0, num_incomplete = 0;
  OVERTURE_RETURN_IF_ERROR(meta->Scan(
      kEntryPrefix, [&](absl::string_view key, absl::string_view value) {
        absl::StatusOr<DirectoryEntry> entry = ParseEntry(key, value);
        bool keep = entry.ok();
        if (!keep) {
          ++num_damaged;
        } else if (const auto found = num_records.find(entry->put_id);
                   found == num_records.end() ||
                   found->second != entry->num_records()) {
          ++num_incomplete;
          keep = false;
        }
        if (keep) {
          entries.push_back(*std::move(entry));
        } else {
          batch.push_back({.key = std::string(key), .is_delete = true});
        }
      }));
  // A child begins after its parent does.
  std::sort(entries.begin(), entries.end(),
            [](const DirectoryEntry& a, const DirectoryEntry& b) {
              return a.span.token_begin < b.span.token_begin;
            });

  absl::MutexLock meta_lock(&meta_mu);
  absl::MutexLock lock(&mu);
  next_put_id = format.epoch << 40;
  int64_t num_orphans = 0;
  for (const DirectoryEntry& entry : entries) {
    if (index.Insert(entry, uint64_t{entry.last_use_bucket} << 32)) {
      num_records.erase(entry.put_id);
    } else {
      ++num_orphans;
      batch.push_back({.key = EntryKey(entry.span.key), .is_delete = true});
    }
  }
  OVERTURE_RETURN_IF_ERROR(
      meta->Scan(kSessionPrefix, [&](absl::string_view key, absl::string_view) {
        mu.AssertHeld();
        session_ids.emplace(key.substr(kSessionPrefix.size()));
      }));
  batch.push_back(
      {.key = std::string(kFormatKey), .value = EncodeStoreFormat(format)});
  OVERTURE_RETURN_IF_ERROR(meta->Commit(batch));

  // Payload without an entry: writes that were never acknowledged.
  std::vector<uint64_t> unfinished;
  for (const auto& [id, unused_count] : num_records) unfinished.push_back(id);
  DeletePayload(std::move(unfinished));
  for (const std::string& key : garbage) {
    OVERTURE_RETURN_IF_ERROR(payload->DeleteRange(
        key, absl::StrCat(key, absl::string_view("\0", 1))));
  }
  // Else every start would find them again. A full disk is no reason not to
  // serve what is there.
  if (!num_records.empty() || !garbage.empty()) {
    if (absl::Status status = payload->Flush(); !status.ok()) {
      Log(Severity::kWarning,
          absl::StrCat("cache: recovery: ", status.ToString()));
    }
  }
  counters.dropped_entries = num_damaged + num_incomplete + num_orphans;
  if (counters.dropped_entries > 0 || !num_records.empty() ||
      !garbage.empty()) {
    Log(Severity::kWarning,
        absl::StrCat("cache: recovery dropped ", num_damaged,
                     " damaged entries, ", num_incomplete,
                     " without their payload, ", num_orphans,
                     " without their parent; deleted ", num_records.size(),
                     " unfinished writes, ", garbage.size(), " foreign keys"));
  }
  return absl::OkStatus();
}

// --- Matching

PrefixIndex::UseTime KvCache::Impl::NextUseTime() {
  return uint64_t{CurrentUseBucket()} << 32 | ++use_counter;
}

PrefixMatch KvCache::Match(const ChainPolicy& policy,
                           absl::Span<const int32_t> tokens,
                           int64_t max_tokens) {
  PrefixMatch match;
  match.spans = Lookup(policy, tokens, max_tokens);

  absl::MutexLock lock(&impl_->mu);
  // Eviction may have come between the walk and this lock.
  const PrefixIndex::UseTime now = impl_->NextUseTime();
  const uint32_t bucket = CurrentUseBucket();
  std::vector<SpanKey> keys;
  for (const SpanUse& use : match.spans) {
    const DirectoryEntry* entry = impl_->index.Find(use.span.key);
    if (entry == nullptr) break;
    if (entry->last_use_bucket != bucket) {
      impl_->stale_buckets.insert(use.span.key);
    }
    impl_->index.Touch(use.span.key, now);
    keys.push_back(use.span.key);
    match.num_tokens += use.use_tokens;
  }
  match.spans.resize(keys.size());
  impl_->counters.tokens_asked += static_cast<int64_t>(tokens.size());
  impl_->counters.tokens_matched += match.num_tokens;
  match.lease = LeaseLocked(std::move(keys));
  return match;
}

std::vector<SpanUse> KvCache::Lookup(const ChainPolicy& policy,
                                     absl::Span<const int32_t> tokens,
                                     int64_t max_tokens) const {
  absl::ReaderMutexLock lock(&impl_->mu);
  return impl_->index.Match(policy, tokens, max_tokens);
}

absl::StatusOr<Lease> KvCache::Pin(absl::Span<const SpanKey> keys) {
  absl::MutexLock lock(&impl_->mu);
  for (const SpanKey& key : keys) {
    if (impl_->index.Find(key) == nullptr && !impl_->held.contains(key)) {
      return absl::NotFoundError(
          absl::StrCat("span ", key.Hex(), " is not stored"));
    }
  }
  return LeaseLocked({keys.begin(), keys.end()});
}

// --- Reading

void KvCache::Impl::DropDamaged(const DirectoryEntry& entry,
                                const absl::Status& why) {
  absl::MutexLock meta_lock(&meta_mu);
  std::vector<DirectoryEntry> removed;
  {
    absl::MutexLock lock(&mu);
    const DirectoryEntry* current = index.Find(entry.span.key);
    if (current == nullptr || current->put_id != entry.put_id) return;
    removed = index.RemoveSubtree(entry.span.key);
    ++counters.damaged_records;
  }
  Log(Severity::kError,
      absl::StrCat(
          "cache: removed ", removed.size(),
          " spans that a damaged record made useless: ", why.message()));
  Erase(std::move(removed));
}

absl::StatusOr<absl::string_view> KvCache::Impl::ReadPayload(
    const KvLayout& layout, const SpanInfo& span, int32_t layer, int32_t block,
    std::string& record) {
  if (layer < 0 || layer >= layout.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer is ", layer, ", must be 0 to ", layout.num_layers - 1));
  }
  if (block < 0 || block >= span.num_blocks()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "block is ", block, ", must be 0 to ", span.num_blocks() - 1));
  }

  DirectoryEntry entry;
  SharedRecord in_memory;
  {
    absl::MutexLock lock(&mu);
    const DirectoryEntry* found = index.Find(span.key);
    const auto kept = held.find(span.key);
    if (found != nullptr) {
      entry = *found;
      ++lease_counts[span.key];  // eviction waits for this read
    } else if (kept != held.end()) {
      const WriteState& state = *kept->second.state;
      entry = state.entries[kept->second.entry];
      if (entry.span == span) {
        in_memory =
            state.records[state.RecordIndex(kept->second.entry, layer, block)];
      }
    } else {
      return absl::NotFoundError(
          absl::StrCat("span ", span.key.Hex(), " is not stored"));
    }
  }

  absl::StatusOr<absl::string_view> result;
  if (entry.layout != layout || entry.span != span) {
    result = absl::FailedPreconditionError(absl::StrCat(
        "span ", span.key.Hex(), " is stored as ", entry.span.num_tokens,
        " tokens, ", ToString(entry.layout), "; asked for ", span.num_tokens,
        " tokens, ", ToString(layout)));
    if (in_memory != nullptr) return result;
  } else {
    const RecordHeader expected = {.layout = layout,
                                   .span_key = span.key,
                                   .put_id = entry.put_id,
                                   .layer = layer,
                                   .block = block,
                                   .num_tokens = entry.block_tokens(block)};
    if (in_memory != nullptr) {
      record = *in_memory;
      return OpenRecord(expected, record);
    }
    absl::StatusOr<std::string> bytes =
        payload->Get(RecordKey(entry.put_id, layer, block));
    if (bytes.ok()) {
      record = *std::move(bytes);
      result = OpenRecord(expected, record);
    } else {
      result = bytes.status();
    }
  }

  bool still_stored = false;
  {
    absl::MutexLock lock(&mu);
    DropLease({&span.key, 1});
    const DirectoryEntry* now = index.Find(span.key);
    still_stored = now != nullptr && now->put_id == entry.put_id;
  }
  if (result.ok()) return result;
  // A record that the directory names and the store does not have is lost; one
  // that went with its span while this read ran is merely gone.
  if (absl::IsNotFound(result.status()) && still_stored) {
    result = absl::DataLossError(
        absl::StrCat("KV record is missing: ", result.status().message()));
  }
  if (absl::IsDataLoss(result.status())) {
    const absl::Status status = WithContext(
        result.status(), absl::StrCat("span ", span.key.Hex(), " layer ", layer,
                                      " block ", block));
    DropDamaged(entry, status);
    return status;
  }
  return result;
}

absl::StatusOr<std::string> KvCache::ReadRecord(const KvLayout& layout,
                                                const SpanInfo& span,
                                                int32_t layer, int32_t block) {
  std::string record;
  OVERTURE_RETURN_IF_ERROR(
      impl_->ReadPayload(layout, span, layer, block, record).status());
  record.erase(0, kRecordHeaderBytes);
  return record;
}

absl::Status KvCache::ReadLayer(const KvLayout& layout,
                                absl::Span<const SpanUse> spans, int32_t layer,
                                const MutableLayerKvView& dst) {
  std::string record;
  int64_t row = 0;
  for (const SpanUse& use : spans) {
    if (use.use_tokens < 0 || use.use_tokens > use.span.num_tokens ||
        row + use.use_tokens > dst.num_rows) {
      return absl::InvalidArgumentError(absl::StrCat(
          "span use of ", use.use_tokens, " of ", use.span.num_tokens,
          " tokens at row ", row, " does not fit ", dst.num_rows, " rows"));
    }
    for (int64_t begin = 0; begin < use.use_tokens; begin += kTokensPerBlock) {
      const int64_t stored_rows =
          std::min(kTokensPerBlock, use.span.num_tokens - begin);
      const int64_t rows = std::min(stored_rows, use.use_tokens - begin);
      OVERTURE_ASSIGN_OR_RETURN(
          const absl::string_view payload,
          impl_->ReadPayload(layout, use.span, layer,
                             static_cast<int32_t>(begin / kTokensPerBlock),
                             record));
      // The first `rows` of each head of K, then of V.
      const char* src = payload.data();
      for (std::byte* side : {dst.k, dst.v}) {
        for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
          std::memcpy(side + head * dst.head_stride_bytes +
                          layout.HeadBytes(row + begin),
                      src, layout.HeadBytes(rows));
          src += layout.HeadBytes(stored_rows);
        }
      }
    }
    row += use.use_tokens;
  }
  return absl::OkStatus();
}

// --- Sessions

absl::Status KvCache::PutSession(absl::string_view id,
                                 absl::string_view bytes) {
  absl::MutexLock meta_lock(&impl_->meta_mu);
  const MetaStore::Write write = {.key = SessionKey(id),
                                  .value = std::string(bytes)};
  OVERTURE_RETURN_IF_ERROR(impl_->meta->Commit({&write, 1}));
  absl::MutexLock lock(&impl_->mu);
  impl_->session_ids.emplace(id);
  return absl::OkStatus();
}

absl::StatusOr<std::string> KvCache::GetSession(absl::string_view id) const {
  absl::StatusOr<std::string> bytes = impl_->meta->Get(SessionKey(id));
  if (absl::IsNotFound(bytes.status())) {
    return absl::NotFoundError(
        absl::StrCat("session '", id, "' does not exist"));
  }
  return bytes;
}

absl::Status KvCache::DeleteSession(absl::string_view id) {
  absl::MutexLock meta_lock(&impl_->meta_mu);
  const MetaStore::Write write = {.key = SessionKey(id), .is_delete = true};
  OVERTURE_RETURN_IF_ERROR(impl_->meta->Commit({&write, 1}));
  absl::MutexLock lock(&impl_->mu);
  if (const auto it = impl_->session_ids.find(id);
      it != impl_->session_ids.end()) {
    impl_->session_ids.erase(it);
  }
  return absl::OkStatus();
}

std::vector<std::string> KvCache::ListSessions() const {
  absl::ReaderMutexLock lock(&impl_->mu);
  return {impl_->session_ids.begin(), impl_->session_ids.end()};
}

KvCache::Stats KvCache::stats() const {
  const int64_t physical_bytes = impl_->payload->PhysicalBytes();
  absl::ReaderMutexLock lock(&impl_->mu);
  Stats stats = impl_->counters;
  stats.num_spans = impl_->index.num_spans();
  stats.num_sessions = static_cast<int64_t>(impl_->session_ids.size());
  stats.stored_bytes = impl_->index.stored_bytes();
  stats.physical_bytes = physical_bytes;
  return stats;
}

}  // namespace overture::cache
