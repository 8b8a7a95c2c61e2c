#include "service/session_service.h"

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "service/convert.h"
#include "service/server_call.h"

namespace overture::service {
namespace {

void ToProto(const std::string& id, const SessionRecord& record,
             bool include_tokens, v1::Session* out) {
  out->set_id(id);
  SelectorToProto(record.selector, out->mutable_selector());
  out->set_num_tokens(static_cast<int64_t>(record.tokens.size()));
  out->set_num_turns(record.num_turns);
  out->set_created_unix_ms(record.created_unix_ms);
  out->set_updated_unix_ms(record.updated_unix_ms);
  if (include_tokens) {
    out->mutable_token_ids()->Assign(record.tokens.begin(),
                                     record.tokens.end());
  }
}

absl::Status Create(const ServiceContext& context,
                    const v1::CreateSessionRequest& request,
                    v1::Session* response) {
  if (!request.id().empty()) {
    OVERTURE_RETURN_IF_ERROR(ValidateSessionId(request.id(), "id"));
  }
  OVERTURE_ASSIGN_OR_RETURN(
      const engine::SelectorSpec selector,
      SelectorFromProto(request.selector(), context.limits.default_selector,
                        context.limits.head_sizes));
  OVERTURE_ASSIGN_OR_RETURN(const std::string id,
                            context.sessions->Create(request.id(), selector));
  OVERTURE_ASSIGN_OR_RETURN(const SessionRecord record,
                            context.sessions->Get(id));
  ToProto(id, record, /*include_tokens=*/false, response);
  return absl::OkStatus();
}

absl::Status Get(const ServiceContext& context,
                 const v1::GetSessionRequest& request, v1::Session* response) {
  OVERTURE_RETURN_IF_ERROR(ValidateSessionId(request.id(), "id"));
  OVERTURE_ASSIGN_OR_RETURN(const SessionRecord record,
                            context.sessions->Get(request.id()));
  ToProto(request.id(), record, request.include_tokens(), response);
  return absl::OkStatus();
}

absl::Status List(const ServiceContext& context,
                  v1::ListSessionsResponse* response) {
  for (const std::string& id : context.sessions->List()) {
    const absl::StatusOr<SessionRecord> record = context.sessions->Get(id);
    if (record.ok()) {
      ToProto(id, *record, /*include_tokens=*/false, response->add_sessions());
    } else if (!absl::IsNotFound(record.status())) {
      // Deleted meanwhile is no news; damage is, and does not hide the others.
      Log(Severity::kWarning,
          absl::StrCat("service: ", record.status().message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* SessionService::CreateSession(
    grpc::CallbackServerContext* call, const v1::CreateSessionRequest* request,
    v1::Session* response) {
  return RunUnary(call, context_->unary_pool, [=, this] {
    const absl::Status status = Create(*context_, *request, response);
    AddRetryDelay(call, status, context_->retry->Millis());
    return status;
  });
}

grpc::ServerUnaryReactor* SessionService::GetSession(
    grpc::CallbackServerContext* call, const v1::GetSessionRequest* request,
    v1::Session* response) {
  return RunUnary(call, context_->unary_pool, [this, request, response] {
    return Get(*context_, *request, response);
  });
}

grpc::ServerUnaryReactor* SessionService::ListSessions(
    grpc::CallbackServerContext* call, const v1::ListSessionsRequest*,
    v1::ListSessionsResponse* response) {
  return RunUnary(call, context_->unary_pool,
                  [this, response] { return List(*context_, response); });
}

grpc::ServerUnaryReactor* SessionService::DeleteSession(
    grpc::CallbackServerContext* call, const v1::DeleteSessionRequest* request,
    v1::DeleteSessionResponse*) {
  return RunUnary(
      call, context_->unary_pool, [this, request]() -> absl::Status {
        OVERTURE_RETURN_IF_ERROR(ValidateSessionId(request->id(), "id"));
        return context_->sessions->Delete(request->id());
      });
}

}  // namespace overture::service
