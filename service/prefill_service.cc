#include "service/prefill_service.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "service/convert.h"
#include "service/event_stream.h"
#include "service/server_call.h"

namespace overture::service {
namespace {

// One call, from admission to its last event. Shared by the worker that runs it
// and the stream's last callback, whichever goes last.
class PrefillCall final : public engine::PrefillObserver {
 public:
  PrefillCall(const ServiceContext* context, grpc::CallbackServerContext* call,
              const v1::PrefillRequest* request)
      : context_(*context), call_(call), request_(*request) {}

  void set_stream(EventStream* stream) { stream_ = stream; }

  // On a pool's thread. The stream, the call and the request may be gone after
  // it.
  void Run();
  // The stream's end: a handle that nobody got to know is dropped.
  void Done(bool delivered);

  void Queued(int32_t ahead) override;
  void Matched(int64_t reused, int64_t computed) override;
  void LayerDone(int32_t layers_done, int32_t num_layers) override;
  void FirstToken(int32_t token, float log_probability,
                  double ttft_seconds) override;

 private:
  absl::Status Prefill();
  // Fills in what the request says, session history first.
  absl::StatusOr<engine::PrefillRequest> Prepare();
  absl::StatusOr<std::vector<int32_t>> NewTokens(bool at_start) const;
  absl::Status Finish(engine::PrefillResult result,
                      HandleRegistry::Reservation reservation,
                      absl::Duration ttl);

  const ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  const v1::PrefillRequest& request_;
  EventStream* stream_ = nullptr;
  std::unique_ptr<SessionStore::Turn> turn_;
  int64_t num_tokens_ = 0;
  std::string handle_;  // set before the stream is closed
};

void PrefillCall::Run() {
  absl::Status status = Prefill();
  // Gives the session back before the caller can ask for the next turn.
  turn_.reset();
  if (!status.ok() && stream_->stop_token().stop_requested()) {
    status = absl::CancelledError("stopped: cancelled, or its deadline passed");
  }
  if (absl::IsInternal(status)) {
    Log(Severity::kError,
        absl::StrCat("service: prefill failed: ", status.message()));
  }
  // Before the caller knows: who asks for health next is told.
  if (const absl::Status health = context_.engine->Health(); !health.ok()) {
    context_.set_prefills_unhealthy(health);
  }
  AddRetryDelay(call_, status, context_.retry->Millis());
  context_.prefills->Leave();
  stream_->Close(ToGrpc(status));
}

void PrefillCall::Done(bool delivered) {
  if (!delivered && !handle_.empty()) context_.handles->Release({handle_});
}

absl::StatusOr<std::vector<int32_t>> PrefillCall::NewTokens(
    bool at_start) const {
  std::vector<int32_t> tokens;
  switch (request_.prompt_case()) {
    case v1::PrefillRequest::kTokens: {
      const auto& ids = request_.tokens().ids();
      OVERTURE_RETURN_IF_ERROR(
          ValidateTokenIds(ids, context_.model().vocab_size, "tokens.ids"));
      tokens.assign(ids.begin(), ids.end());
      break;
    }
    case v1::PrefillRequest::kText:
      if (context_.tokenizer == nullptr) {
        return absl::FailedPreconditionError(
            "text: the served model has no tokenizer, send tokens");
      }
      tokens = context_.tokenizer->Encode(request_.text(),
                                          {.add_special_tokens = at_start});
      break;
    case v1::PrefillRequest::PROMPT_NOT_SET:
      return absl::InvalidArgumentError("prompt: needs tokens or text");
  }
  if (tokens.empty()) {
    return absl::InvalidArgumentError("prompt: 0 tokens, must be at least 1");
  }
  return tokens;
}

absl::StatusOr<engine::PrefillRequest> PrefillCall::Prepare() {
  engine::PrefillRequest out;
  OVERTURE_RETURN_IF_ERROR(ValidatePriority(request_.priority()));
  OVERTURE_ASSIGN_OR_RETURN(out.reuse, ReuseFromProto(request_.reuse()));
  OVERTURE_ASSIGN_OR_RETURN(out.view, ViewFromProto(request_.view()));
  engine::SelectorSpec fallback = context_.limits.default_selector;
  const bool in_session = !request_.session_id().empty();
  if (in_session) {
    OVERTURE_RETURN_IF_ERROR(
        ValidateSessionId(request_.session_id(), "session_id"));
    OVERTURE_ASSIGN_OR_RETURN(turn_,
                              context_.sessions->Begin(request_.session_id()));
    fallback = turn_->record().selector;
  }
  OVERTURE_ASSIGN_OR_RETURN(out.selector,
                            SelectorFromProto(request_.selector(), fallback,
                                              context_.limits.head_sizes));
  if (in_session && !(out.selector == fallback)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "selector: ", engine::PolicyText(out.selector),
        " differs from the session's ", engine::PolicyText(fallback)));
  }
  std::vector<int32_t> history;
  if (in_session) history = turn_->record().tokens;
  OVERTURE_ASSIGN_OR_RETURN(std::vector<int32_t> tokens,
                            NewTokens(history.empty()));
  const int64_t total = static_cast<int64_t>(history.size() + tokens.size());
  if (total > context_.engine->max_prompt_tokens()) {
    return absl::OutOfRangeError(absl::StrCat(
        "prompt: ", total, " tokens, session history included, limit ",
        context_.engine->max_prompt_tokens()));
  }
  if (history.empty()) {
    history = std::move(tokens);
  } else {
    history.insert(history.end(), tokens.begin(), tokens.end());
  }
  out.tokens = std::move(history);
  out.store = !request_.no_store();
  out.priority = request_.priority();
  out.audit_rows =
      request_.has_audit_rows() ? request_.audit_rows() : kDefaultAuditRows;
  out.stop = stream_->stop_token();
  if (in_session) {
    out.session = cache::KvCache::Writer::SessionUpdate{
        request_.session_id(), turn_->Bytes(out.tokens)};
    // A caller that left has not seen this turn: it is not part of the history.
    out.may_commit_session = [this, stop = out.stop] {
      return !stop.stop_requested() && turn_->Claim();
    };
  }
  OVERTURE_RETURN_IF_ERROR(context_.engine->Validate(out));
  return out;
}

absl::Status PrefillCall::Prefill() {
  OVERTURE_ASSIGN_OR_RETURN(
      const absl::Duration ttl,
      HandleTtl(request_.handle_ttl_ms(), context_.limits.handle_ttl));
  OVERTURE_ASSIGN_OR_RETURN(engine::PrefillRequest prefill, Prepare());
  num_tokens_ = static_cast<int64_t>(prefill.tokens.size());
  int64_t view_bytes = 0;
  if (prefill.view.has_value()) {
    view_bytes = context_.layout().TotalBytes(
        std::min<int64_t>(num_tokens_, prefill.view->capacity));
  }
  OVERTURE_ASSIGN_OR_RETURN(HandleRegistry::Reservation reservation,
                            context_.handles->Reserve(view_bytes));
  const absl::Time begin = absl::Now();
  absl::StatusOr<engine::PrefillResult> result =
      context_.engine->Prefill(std::move(prefill), this);
  if (!result.ok()) return result.status();
  context_.retry->Note(absl::Now() - begin);
  return Finish(*std::move(result), std::move(reservation), ttl);
}

absl::Status PrefillCall::Finish(engine::PrefillResult result,
                                 HandleRegistry::Reservation reservation,
                                 absl::Duration ttl) {
  if (turn_ != nullptr) OVERTURE_RETURN_IF_ERROR(turn_->End());
  if (!request_.no_store()) context_.set_kv_writes_healthy(result.persisted);
  const engine::PrefillStats& stats = result.stats;
  Log(result.persisted || request_.no_store() ? Severity::kInfo
                                              : Severity::kWarning,
      absl::StrFormat("service: prefill of %d tokens, %d reused, %s, first "
                      "token after %.3f s, %s",
                      num_tokens_, stats.reused_tokens, stats.attention_policy,
                      stats.ttft_seconds,
                      result.persisted ? "persisted"
                      : request_.no_store()
                          ? "not to be stored"
                          : absl::StrCat("not persisted: ",
                                         result.store_status.ToString())));

  v1::PrefillEvent event;
  v1::PrefillEvent::Done* done = event.mutable_done();
  done->set_num_tokens(num_tokens_);
  StatsToProto(stats, done->mutable_stats());
  done->set_persisted(result.persisted);
  if (!result.store_status.ok()) {
    done->set_store_error(result.store_status.ToString());
  }
  handle_ = context_.handles->Add(
      std::move(reservation),
      HandleData{.layout = context_.layout(),
                 .logical_length = num_tokens_,
                 .spans = std::move(result.spans),
                 .leases = std::move(result.leases),
                 .view = std::move(result.view),
                 .attention_policy = stats.attention_policy,
                 .first_token = result.first_token,
                 .persisted = result.persisted,
                 .session_id = request_.session_id()},
      ttl);
  done->set_handle(handle_);
  stream_->Write(std::move(event));
  return absl::OkStatus();
}

void PrefillCall::Queued(int32_t ahead) {
  v1::PrefillEvent event;
  event.mutable_queued()->set_ahead(ahead);
  event.mutable_queued()->set_num_tokens(num_tokens_);
  stream_->Write(std::move(event));
}

void PrefillCall::Matched(int64_t reused, int64_t computed) {
  v1::PrefillEvent event;
  event.mutable_matched()->set_reused_tokens(reused);
  event.mutable_matched()->set_computed_tokens(computed);
  stream_->Write(std::move(event));
}

void PrefillCall::LayerDone(int32_t layers_done, int32_t num_layers) {
  v1::PrefillEvent event;
  event.mutable_progress()->set_layers_done(layers_done);
  event.mutable_progress()->set_num_layers(num_layers);
  stream_->Write(std::move(event));
}

void PrefillCall::FirstToken(int32_t token, float log_probability,
                             double ttft_seconds) {
  v1::PrefillEvent event;
  event.mutable_first_token()->set_token(token);
  event.mutable_first_token()->set_log_probability(log_probability);
  event.mutable_first_token()->set_ttft_seconds(ttft_seconds);
  stream_->Write(std::move(event));
}

}  // namespace

grpc::ServerWriteReactor<v1::PrefillEvent>* PrefillService::Prefill(
    grpc::CallbackServerContext* call, const v1::PrefillRequest* request) {
  auto prefill = std::make_shared<PrefillCall>(context_, call, request);
  // Never refused: this gate does not drain and has no limit.
  (void)context_->prefill_streams->Enter();
  auto* stream =
      new EventStream([prefill, gate = context_->prefill_streams](bool ok) {
        prefill->Done(ok);
        gate->Leave();
      });
  prefill->set_stream(stream);
  if (absl::Status status = context_->prefills->Enter(); !status.ok()) {
    AddRetryDelay(call, status, context_->retry->Millis());
    stream->Close(ToGrpc(status));
    return stream;
  }
  context_->prefill_pool->Run([prefill] { prefill->Run(); });
  return stream;
}

}  // namespace overture::service
