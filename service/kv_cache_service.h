// overture.v1.KvCacheService: looks prefixes up, streams the KV of handles.
#pragma once

#include "overture/v1/kv_cache.grpc.pb.h"
#include "service/context.h"

namespace overture::service {

class KvCacheService final : public v1::KvCacheService::CallbackService {
 public:
  explicit KvCacheService(const ServiceContext* context) : context_(context) {}

  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* call,
                                   const v1::LookupRequest* request,
                                   v1::LookupResponse* response) override;
  grpc::ServerWriteReactor<v1::KvChunk>* Fetch(
      grpc::CallbackServerContext* call,
      const v1::FetchRequest* request) override;
  grpc::ServerUnaryReactor* Describe(grpc::CallbackServerContext* call,
                                     const v1::DescribeRequest* request,
                                     v1::DescribeResponse* response) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* call,
                                    const v1::ReleaseRequest* request,
                                    v1::ReleaseResponse* response) override;

 private:
  const ServiceContext* const context_;
};

}  // namespace overture::service
