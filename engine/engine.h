// One prefill from token ids to stored KV: matches the prefix in the cache,
// runs the back end on the rest, stores the new spans, chooses the view. Owns
// the queue in front of the back end.
//
// Thread-safe. Prefill blocks its caller until done; calls queue by priority,
// then arrival.
//
// Errors: INVALID_ARGUMENT / OUT_OF_RANGE with field, value and limit;
// RESOURCE_EXHAUSTED when the queue is full or the prompt needs more memory
// than allowed, before anything starts; CANCELLED within one layer of
// request.stop; INTERNAL for our own or the device's failure, of which nothing
// is stored; UNAVAILABLE with the reason for every prefill after a failure that
// has cost the device, those in the queue included. A damaged prefix is not an
// error: it is dropped and recomputed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cache/kv_cache.h"
#include "compress/view.h"
#include "engine/backend.h"
#include "engine/selector_spec.h"

namespace overture::engine {

struct EngineOptions {
  int64_t max_prompt_tokens = 0;  // 0: what the model allows
  // Requests waiting; one more is refused. Longer: more patience, more latency.
  int32_t max_queued = 64;
  // Workspace of the running prefill, weights excluded. 0: no limit.
  int64_t max_workspace_bytes = 0;
  std::string model_id;  // name in cache roots
  std::string tenant_salt;
};

enum class Reuse : uint8_t { kExact = 1, kNone = 2 };

struct PrefillRequest {
  std::vector<int32_t> tokens;  // the whole prompt
  SelectorSpec selector;
  std::optional<compress::SnapKvOptions> view;
  Reuse reuse = Reuse::kExact;
  bool store = true;
  int32_t priority = 0;    // larger first
  int32_t audit_rows = 0;  // as of PrefillJob
  std::stop_token stop;
  // Committed in one batch with the spans. With store = false, alone.
  std::optional<cache::KvCache::Writer::SessionUpdate> session;
  // Called right before the commit, on the engine's thread: false abandons
  // storing the session and fails the request with ABORTED.
  std::function<bool()> may_commit_session;
};

// Called on the thread that runs Prefill, in this order; must not block.
// Matched and LayerDone begin anew when a stored prefix turns out damaged.
class PrefillObserver {
 public:
  virtual ~PrefillObserver() = default;
  virtual void Queued(int32_t ahead) = 0;
  virtual void Matched(int64_t reused, int64_t computed) = 0;
  virtual void LayerDone(int32_t layers_done, int32_t num_layers) = 0;
  virtual void FirstToken(int32_t token, float log_probability,
                          double ttft_seconds) = 0;
};

struct PrefillStats {
  int64_t reused_tokens = 0;
  int64_t computed_tokens = 0;
  double density = 1.0;
  KeptMassSummary kept_mass;
  std::string attention_policy;
  double queue_seconds = 0;
  double match_seconds = 0;  // lookup plus reading the prefix's KV
  double selector_seconds = 0;
  double attention_seconds = 0;
  double linear_seconds = 0;
  double audit_seconds = 0;
  double compute_seconds = 0;  // all of the layer loop
  double store_seconds = 0;    // from the first token until durable
  double ttft_seconds = 0;     // from the call to the first token
  int64_t kv_bytes = 0;
  int64_t view_bytes = 0;
};

struct PrefillResult {
  // The whole prompt's KV: contiguous spans from position 0, leased below.
  // Empty if it cannot be read (not stored, or the store failed).
  std::vector<cache::SpanUse> spans;
  std::vector<cache::Lease> leases;
  std::optional<ViewData> view;
  std::vector<float> logits;  // after the last token
  int32_t first_token = 0;    // greedy
  bool persisted = false;
  absl::Status store_status;       // why not persisted
  bool session_persisted = false;  // the request's session, if it had one
  PrefillStats stats;
};

class Engine {
 public:
  // `cache` outlives the engine.
  static absl::StatusOr<std::unique_ptr<Engine>> Create(
      const EngineOptions& options, const ModelFiles& files,
      const Sha256Digest& tokenizer_digest, std::unique_ptr<Backend> backend,
      cache::KvCache* cache);
  virtual ~Engine() = default;

  virtual absl::StatusOr<PrefillResult> Prefill(PrefillRequest request,
                                                PrefillObserver* observer) = 0;

  // Not OK once no prefill can run any more, as Backend::Health. What is stored
  // can be read all the same.
  virtual absl::Status Health() const = 0;

  // What Prefill would accept, without running: the errors above that depend
  // on the request alone, and Health.
  virtual absl::Status Validate(const PrefillRequest& request) const = 0;

  // Root and chain rules for a selector: what Lookup needs.
  virtual cache::ChainPolicy ChainPolicyFor(
      const SelectorSpec& selector) const = 0;

  // Tokens at the end of a prompt that are always computed: at least 64, so
  // that the observation window and the logits exist.
  static int64_t UncachedTail(
      const std::optional<compress::SnapKvOptions>& view);

  virtual const Backend& backend() const = 0;
  virtual int64_t max_prompt_tokens() const = 0;
  virtual int32_t num_queued() const = 0;
  virtual int32_t num_running() const = 0;
};

}  // namespace overture::engine
