#include "engine/engine.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "engine/decoder.h"
#include "engine/scheduler.h"
#include "kernels/selectors/vertical_slash.h"

namespace overture::engine {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// All of the config that rotates keys, with every digit.
std::string RopeText(const ModelConfig& config) {
  const RopeScaling& scaling = config.rope_scaling;
  std::string text = absl::StrFormat("theta=%.17g max_positions=%d",
                                     config.rope_theta, config.max_positions);
  switch (scaling.kind) {
    case RopeScaling::Kind::kNone:
      break;
    case RopeScaling::Kind::kLinear:
      absl::StrAppendFormat(&text, " linear factor=%.17g", scaling.factor);
      break;
    case RopeScaling::Kind::kLlama3:
      absl::StrAppendFormat(
          &text, " llama3 factor=%.17g low=%.17g high=%.17g original=%d",
          scaling.factor, scaling.low_freq_factor, scaling.high_freq_factor,
          scaling.original_max_positions);
      break;
  }
  return text;
}

// Commits that were begun and not yet published.
class PendingCommits {
 public:
  void Begin() {
    const std::lock_guard lock(mutex_);
    ++count_;
  }
  void End() {
    {
      const std::lock_guard lock(mutex_);
      --count_;
    }
    changed_.notify_all();
  }
  // Until none is left, `stop` is requested or `limit` has passed.
  void Wait(const std::stop_token& stop, Clock::duration limit) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, stop, limit, [this] { return count_ == 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  int count_ = 0;  // guarded by mutex_
};

// A request that follows on the same document should find it stored, so it
// waits for the commit before it; a disk that stalls holds it up no longer.
constexpr auto kMaxCommitWait = std::chrono::seconds(2);

class EngineImpl final : public Engine {
 public:
  EngineImpl(const EngineOptions& options, cache::RootDescriptor descriptor,
             int64_t max_prompt_tokens, std::unique_ptr<Backend> backend,
             cache::KvCache* cache)
      : options_(options),
        descriptor_(std::move(descriptor)),
        max_prompt_tokens_(max_prompt_tokens),
        backend_(std::move(backend)),
        cache_(cache),
        scheduler_(options.max_queued) {}

  absl::StatusOr<PrefillResult> Prefill(PrefillRequest request,
                                        PrefillObserver* observer) override;
  absl::Status Validate(const PrefillRequest& request) const override;
  cache::ChainPolicy ChainPolicyFor(
      const SelectorSpec& selector) const override;

  absl::Status Health() const override { return backend_->Health(); }
  const Backend& backend() const override { return *backend_; }
  int64_t max_prompt_tokens() const override { return max_prompt_tokens_; }
  int32_t num_queued() const override { return scheduler_.num_queued(); }
  int32_t num_running() const override { return scheduler_.num_running(); }

 private:
  // What one attempt found, computed and is about to store.
  struct Attempt {
    cache::PrefixMatch match;
    std::vector<cache::SpanInfo> new_spans;
    std::unique_ptr<cache::KvCache::Writer> writer;  // null: nothing new
    absl::Status writer_status;
    PrefillOutput output;
  };

  class Io;

  absl::StatusOr<PrefillResult> RunInTurn(const PrefillRequest& request,
                                          Scheduler::Ticket ticket,
                                          Clock::time_point begin,
                                          PrefillObserver* observer);
  absl::Status Compute(const PrefillRequest& request,
                       const cache::ChainPolicy& policy,
                       PrefillObserver* observer, PrefillStats* stats,
                       Attempt* attempt);
  // One try with at most `max_reused` tokens from the cache. Sets `damaged` if
  // it failed for want of the prefix's KV.
  absl::Status TryCompute(const PrefillRequest& request,
                          const cache::ChainPolicy& policy, int64_t max_reused,
                          PrefillObserver* observer, PrefillStats* stats,
                          Attempt* attempt, bool* damaged);
  absl::Status Store(const PrefillRequest& request, Attempt* attempt,
                     PrefillResult* result);

  const EngineOptions options_;
  const cache::RootDescriptor descriptor_;  // attention_policy empty
  const int64_t max_prompt_tokens_;
  const std::unique_ptr<Backend> backend_;
  cache::KvCache* const cache_;
  Scheduler scheduler_;
  PendingCommits pending_commits_;
};

// Carries KV between the cache and the back end.
class EngineImpl::Io final : public PrefillIo {
 public:
  Io(const EngineImpl& engine, const cache::PrefixMatch& match,
     cache::KvCache::Writer* writer, PrefillObserver* observer)
      : engine_(engine), match_(match), writer_(writer), observer_(observer) {}

  absl::Status ReadPrefix(int32_t layer,
                          const MutableLayerKvView& dst) override {
    const absl::Status status = engine_.cache_->ReadLayer(
        engine_.backend_->kv_layout(), match_.spans, layer, dst);
    prefix_failed_ = !status.ok();
    return status;
  }

  void LayerDone(int32_t layer, const LayerKvView& kv) override {
    if (writer_ != nullptr) writer_->PutLayer(layer, kv);
    ++layers_done_;
    if (observer_ != nullptr) {
      observer_->LayerDone(layers_done_, engine_.backend_->config().num_layers);
    }
  }

  bool prefix_failed() const { return prefix_failed_; }

 private:
  const EngineImpl& engine_;
  const cache::PrefixMatch& match_;
  cache::KvCache::Writer* const writer_;
  PrefillObserver* const observer_;
  int32_t layers_done_ = 0;
  bool prefix_failed_ = false;
};

absl::Status EngineImpl::Validate(const PrefillRequest& request) const {
  OVERTURE_RETURN_IF_ERROR(Health());
  const int64_t n = static_cast<int64_t>(request.tokens.size());
  if (n == 0) return absl::InvalidArgumentError("tokens is empty");
  if (n > max_prompt_tokens_) {
    return absl::OutOfRangeError(
        absl::StrCat("tokens has ", n, " entries, limit ", max_prompt_tokens_));
  }
  const int64_t vocab = backend_->config().vocab_size;
  for (int64_t i = 0; i < n; ++i) {
    if (request.tokens[i] < 0 || request.tokens[i] >= vocab) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokens[", i, "] is ", request.tokens[i],
                       ", must be in [0, ", vocab, ")"));
    }
  }
  OVERTURE_RETURN_IF_ERROR(
      engine::Validate(request.selector, backend_->config()));
  OVERTURE_RETURN_IF_ERROR(CheckLength(request.selector, n));
  OVERTURE_RETURN_IF_ERROR(backend_->Supports(request.selector));
  OVERTURE_RETURN_IF_ERROR(CheckAuditRows(request.audit_rows));
  int64_t view_bytes = 0;
  if (request.view.has_value()) {
    OVERTURE_RETURN_IF_ERROR(compress::Validate(*request.view));
    view_bytes = backend_->kv_layout().TotalBytes(
        std::min<int64_t>(n, request.view->capacity));
  }
  const int64_t need = backend_->WorkspaceBytes(n) + view_bytes;
  if (options_.max_workspace_bytes > 0 && need > options_.max_workspace_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a prompt of ", n, " tokens needs ", need,
        " bytes of workspace, limit ", options_.max_workspace_bytes));
  }
  return absl::OkStatus();
}

cache::ChainPolicy EngineImpl::ChainPolicyFor(
    const SelectorSpec& selector) const {
  cache::RootDescriptor descriptor = descriptor_;
  descriptor.attention_policy = PolicyText(selector);
  const bool pure = IsTokenPure(selector);
  return {.root = cache::ComputeRoot(descriptor),
          .layout = descriptor.layout,
          .spans = pure ? SegmentRule::Uniform(kTokensPerBlock)
                        : SegmentsOf(selector),
          .token_pure = pure && backend_->attention_is_token_pure()};
}

absl::StatusOr<PrefillResult> EngineImpl::Prefill(PrefillRequest request,
                                                  PrefillObserver* observer) {
  const Clock::time_point begin = Clock::now();
  OVERTURE_RETURN_IF_ERROR(Validate(request));
  try {
    OVERTURE_ASSIGN_OR_RETURN(Scheduler::Ticket ticket,
                              scheduler_.Enter(request.priority));
    return RunInTurn(request, std::move(ticket), begin, observer);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "not enough memory for a prompt of ", request.tokens.size(),
        " tokens, about ", backend_->WorkspaceBytes(request.tokens.size()),
        " bytes"));
  }
}

absl::StatusOr<PrefillResult> EngineImpl::RunInTurn(
    const PrefillRequest& request, Scheduler::Ticket ticket,
    Clock::time_point begin, PrefillObserver* observer) {
  if (observer != nullptr) observer->Queued(ticket.ahead());
  OVERTURE_RETURN_IF_ERROR(ticket.Wait(request.stop));
  // The prefill before this one may have cost the device.
  OVERTURE_RETURN_IF_ERROR(Health());
  pending_commits_.Wait(request.stop, kMaxCommitWait);

  PrefillResult result;
  PrefillStats& stats = result.stats;
  stats.queue_seconds = SecondsSince(begin);
  stats.attention_policy = PolicyText(request.selector);
  const cache::ChainPolicy policy = ChainPolicyFor(request.selector);
  Attempt attempt;
  OVERTURE_RETURN_IF_ERROR(
      Compute(request, policy, observer, &stats, &attempt));
  // The next request computes while this one's records reach the disk.
  pending_commits_.Begin();
  const absl::Cleanup end_commit = [this] { pending_commits_.End(); };
  ticket.Leave();

  PrefillOutput& output = attempt.output;
  result.logits = std::move(output.logits);
  result.view = std::move(output.view);
  result.first_token = Argmax(result.logits);
  stats.density = output.density;
  stats.kept_mass = Summarize(output.audit);
  stats.selector_seconds = output.selector_seconds;
  stats.attention_seconds = output.attention_seconds;
  stats.linear_seconds = output.linear_seconds;
  stats.audit_seconds = output.audit_seconds;
  stats.kv_bytes =
      policy.layout.TotalBytes(static_cast<int64_t>(request.tokens.size()));
  if (result.view.has_value()) stats.view_bytes = result.view->TotalBytes();
  stats.ttft_seconds = SecondsSince(begin);
  if (observer != nullptr) {
    observer->FirstToken(result.first_token,
                         LogProbability(result.logits, result.first_token),
                         stats.ttft_seconds);
  }
  const Clock::time_point store_begin = Clock::now();
  OVERTURE_RETURN_IF_ERROR(Store(request, &attempt, &result));
  stats.store_seconds = SecondsSince(store_begin);
  return result;
}

absl::Status EngineImpl::Compute(const PrefillRequest& request,
                                 const cache::ChainPolicy& policy,
                                 PrefillObserver* observer, PrefillStats* stats,
                                 Attempt* attempt) {
  const int64_t n = static_cast<int64_t>(request.tokens.size());
  int64_t max_reused =
      request.reuse == Reuse::kExact
          ? std::max<int64_t>(0, n - UncachedTail(request.view))
          : 0;
  // The cache has dropped what was damaged, so the second try matches what
  // lies before it; should that fail as well, the third reads nothing.
  for (const int64_t limit : {max_reused, max_reused, int64_t{0}}) {
    bool damaged = false;
    const absl::Status status =
        TryCompute(request, policy, limit, observer, stats, attempt, &damaged);
    if (!damaged) return status;
    Log(Severity::kWarning,
        absl::StrCat("engine: stored prefix is unusable, computing again: ",
                     status.ToString()));
  }
  return absl::InternalError("a prefill without prefix failed to read it");
}

absl::Status EngineImpl::TryCompute(const PrefillRequest& request,
                                    const cache::ChainPolicy& policy,
                                    int64_t max_reused,
                                    PrefillObserver* observer,
                                    PrefillStats* stats, Attempt* attempt,
                                    bool* damaged) {
  *attempt = Attempt();
  const Clock::time_point match_begin = Clock::now();
  if (max_reused > 0) {
    attempt->match = cache_->Match(policy, request.tokens, max_reused);
  }
  stats->match_seconds += SecondsSince(match_begin);
  stats->reused_tokens = attempt->match.num_tokens;
  stats->computed_tokens =
      static_cast<int64_t>(request.tokens.size()) - stats->reused_tokens;
  if (observer != nullptr) {
    observer->Matched(stats->reused_tokens, stats->computed_tokens);
  }
  attempt->new_spans =
      cache::PlanSpans(policy, attempt->match.spans, request.tokens);
  if (!attempt->new_spans.empty()) {
    using Keep = cache::KvCache::Keep;
    // A store that cannot write is no reason not to answer.
    absl::StatusOr<std::unique_ptr<cache::KvCache::Writer>> writer =
        cache_->NewWriter(policy, attempt->new_spans,
                          request.store ? Keep::kStore : Keep::kHold);
    if (writer.ok()) {
      attempt->writer = *std::move(writer);
    } else {
      attempt->writer_status = writer.status();
    }
  }
  Io io(*this, attempt->match, attempt->writer.get(), observer);
  const PrefillJob job{.tokens = request.tokens,
                       .num_cached = attempt->match.num_tokens,
                       .selector = request.selector,
                       .view = request.view,
                       .audit_rows = request.audit_rows,
                       .io = &io,
                       .stop = request.stop};
  const Clock::time_point compute_begin = Clock::now();
  absl::StatusOr<PrefillOutput> output = backend_->Prefill(job);
  stats->compute_seconds += SecondsSince(compute_begin);
  *damaged = io.prefix_failed();
  if (!output.ok()) return output.status();
  stats->match_seconds += output->prefix_seconds;
  attempt->output = *std::move(output);
  return absl::OkStatus();
}

absl::Status EngineImpl::Store(const PrefillRequest& request, Attempt* attempt,
                               PrefillResult* result) {
  if (request.session.has_value() && request.may_commit_session &&
      !request.may_commit_session()) {
    return absl::AbortedError(absl::StrCat("session ", request.session->id,
                                           " changed during the prefill"));
  }
  const int64_t n = static_cast<int64_t>(request.tokens.size());
  bool readable = false;
  if (attempt->writer != nullptr) {
    cache::CommitResult commit = attempt->writer->Commit(request.session);
    result->persisted = commit.persisted;
    result->store_status = commit.status;
    result->session_persisted = commit.session_persisted;
    readable = commit.readable;
    // Not to be stored, and held as asked: nothing went wrong.
    if (!request.store && readable) result->store_status = absl::OkStatus();
    result->leases.push_back(std::move(commit.lease));
  } else {
    // Nothing new: all is stored already, or nothing can be.
    readable = attempt->writer_status.ok();
    result->persisted = readable;
    result->store_status = attempt->writer_status;
    if (request.session.has_value()) {
      const absl::Status status =
          cache_->PutSession(request.session->id, request.session->bytes);
      result->session_persisted = status.ok();
      result->store_status.Update(status);
    }
  }
  result->leases.push_back(std::move(attempt->match.lease));

  if (!readable) return absl::OkStatus();
  // Each span of the match up to where the next one takes over, which for a
  // continued tail is before its end. The last one may have been used in part
  // only because its end had to be computed: its tokens are the prompt's all
  // the same.
  const std::vector<cache::SpanUse>& uses = attempt->match.spans;
  for (size_t i = 0; i < uses.size(); ++i) {
    const int64_t next_begin =
        i + 1 < uses.size()          ? uses[i + 1].span.token_begin
        : attempt->new_spans.empty() ? n
                                     : attempt->new_spans.front().token_begin;
    const int64_t end = std::min(uses[i].span.token_end(), next_begin);
    if (end <= uses[i].span.token_begin) break;
    result->spans.push_back({uses[i].span, end - uses[i].span.token_begin});
  }
  for (const cache::SpanInfo& span : attempt->new_spans) {
    result->spans.push_back({span, span.num_tokens});
  }
  return absl::OkStatus();
}

}  // namespace

int64_t Engine::UncachedTail(
    const std::optional<compress::SnapKvOptions>& view) {
  constexpr int64_t kLeast = kernels::kProbeRows;
  return view.has_value() ? std::max<int64_t>(kLeast, view->window) : kLeast;
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(
    const EngineOptions& options, const ModelFiles& files,
    const Sha256Digest& tokenizer_digest, std::unique_ptr<Backend> backend,
    cache::KvCache* cache) {
  const ModelConfig& config = backend->config();
  if (options.max_prompt_tokens < 0 ||
      options.max_prompt_tokens > config.max_positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_prompt_tokens is ", options.max_prompt_tokens,
                     ", must be in [0, ", config.max_positions, "]"));
  }
  if (options.max_queued < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_queued is ", options.max_queued, ", must be at least 0"));
  }
  if (options.max_workspace_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrCat("max_workspace_bytes is ",
                                                   options.max_workspace_bytes,
                                                   ", must be at least 0"));
  }
  const int64_t max_prompt_tokens = options.max_prompt_tokens > 0
                                        ? options.max_prompt_tokens
                                        : config.max_positions;
  cache::RootDescriptor descriptor{.tenant_salt = options.tenant_salt,
                                   .model_id = options.model_id,
                                   .weights_digest = files.weights_digest(),
                                   .tokenizer_digest = tokenizer_digest,
                                   .adapters = "",
                                   .rope = RopeText(config),
                                   .numerics = backend->numerics(),
                                   .codec = "raw",
                                   .layout = backend->kv_layout(),
                                   .attention_policy = ""};
  return std::make_unique<EngineImpl>(options, std::move(descriptor),
                                      max_prompt_tokens, std::move(backend),
                                      cache);
}

}  // namespace overture::engine
