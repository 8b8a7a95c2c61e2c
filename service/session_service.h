// overture.v1.SessionService over SessionStore.
#pragma once

#include "overture/v1/session.grpc.pb.h"
#include "service/context.h"

namespace overture::service {

class SessionService final : public v1::SessionService::CallbackService {
 public:
  explicit SessionService(const ServiceContext* context) : context_(context) {}

  grpc::ServerUnaryReactor* CreateSession(
      grpc::CallbackServerContext* call,
      const v1::CreateSessionRequest* request, v1::Session* response) override;
  grpc::ServerUnaryReactor* GetSession(grpc::CallbackServerContext* call,
                                       const v1::GetSessionRequest* request,
                                       v1::Session* response) override;
  grpc::ServerUnaryReactor* ListSessions(
      grpc::CallbackServerContext* call, const v1::ListSessionsRequest* request,
      v1::ListSessionsResponse* response) override;
  grpc::ServerUnaryReactor* DeleteSession(
      grpc::CallbackServerContext* call,
      const v1::DeleteSessionRequest* request,
      v1::DeleteSessionResponse* response) override;

 private:
  const ServiceContext* const context_;
};

}  // namespace overture::service
