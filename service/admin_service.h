// overture.v1.AdminService: who is answering, and text to ids and back.
#pragma once

#include "overture/v1/admin.grpc.pb.h"
#include "service/context.h"

namespace overture::service {

class AdminService final : public v1::AdminService::CallbackService {
 public:
  explicit AdminService(const ServiceContext* context) : context_(context) {}

  grpc::ServerUnaryReactor* GetServerInfo(
      grpc::CallbackServerContext* call,
      const v1::GetServerInfoRequest* request,
      v1::ServerInfo* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* call,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(
      grpc::CallbackServerContext* call, const v1::DetokenizeRequest* request,
      v1::DetokenizeResponse* response) override;

 private:
  const ServiceContext* const context_;
};

}  // namespace overture::service
