// What the services share. Plain aggregate: everything is borrowed from the
// Server, which outlives every call.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/hash.h"
#include "cache/kv_cache.h"
#include "engine/engine.h"
#include "engine/head_sizes.h"
#include "engine/selector_spec.h"
#include "engine/tokenizer.h"
#include "overture/v1/common.pb.h"
#include "service/handle_registry.h"
#include "service/session_store.h"
#include "service/thread_pool.h"

namespace overture::service {

// Counts calls that run, refuses the ones beyond a limit or during a drain, and
// lets a drain wait for the rest. Thread-safe.
class CallGate {
 public:
  // `what` names the calls in messages.
  CallGate(std::string what, int32_t limit)
      : what_(std::move(what)), limit_(limit) {}

  // UNAVAILABLE while draining, RESOURCE_EXHAUSTED at the limit; else the
  // caller owes one Leave().
  absl::Status Enter();
  void Leave();

  // From now on Enter is refused.
  void Drain();
  // False if calls still run at `deadline`.
  bool WaitIdle(absl::Time deadline) const;
  int32_t running() const;

 private:
  const std::string what_;
  const int32_t limit_;
  mutable absl::Mutex mutex_;
  int32_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

// How long a caller that found the queue full should wait: about one prefill,
// as the last ones went. Thread-safe.
class RetryHint {
 public:
  void Note(absl::Duration prefill);
  int64_t Millis() const;  // within [100, 60000]; 1000 before the first

 private:
  std::atomic<int64_t> millis_{1000};
};

// Names the model in answers: what the engine does not know of it.
struct ModelIdentity {
  std::string name;
  Sha256Digest weights_digest;
  Sha256Digest tokenizer_digest;
};

struct ServiceLimits {
  absl::Duration handle_ttl = absl::Minutes(10);
  engine::SelectorSpec default_selector;
  engine::HeadSizes head_sizes;       // of the model; empty: none
  std::string store_name = "memory";  // "rocksdb" or "memory"
  int64_t max_store_bytes = 0;
};

struct ServiceContext {
  engine::Engine* engine = nullptr;
  cache::KvCache* cache = nullptr;
  const engine::Tokenizer* tokenizer = nullptr;  // null: the model has none
  ModelIdentity identity;
  ServiceLimits limits;
  HandleRegistry* handles = nullptr;
  SessionStore* sessions = nullptr;
  ThreadPool* prefill_pool = nullptr;  // one thread per admitted prefill
  ThreadPool* fetch_pool = nullptr;    // record reads
  // Sessions (which may wait for a commit), lookups, tokenising: apart, so that
  // they do not hold up streams.
  ThreadPool* unary_pool = nullptr;
  CallGate* prefills = nullptr;         // admitted and not yet computed
  CallGate* prefill_streams = nullptr;  // until their last event is out
  CallGate* fetches = nullptr;
  RetryHint* retry = nullptr;
  absl::Time started;
  // Whether KV reaches the disk; shown as a health name of its own.
  std::function<void(bool)> set_kv_writes_healthy;
  // The engine's health, once it is not OK.
  std::function<void(const absl::Status&)> set_prefills_unhealthy;

  const engine::ModelConfig& model() const {
    return engine->backend().config();
  }
  const KvLayout& layout() const { return engine->backend().kv_layout(); }
};

void ModelInfoToProto(const ServiceContext& context, v1::ModelInfo* out);

}  // namespace overture::service
