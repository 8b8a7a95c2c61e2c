#include "tests/clients/fake_server.h"

#include <chrono>
#include <utility>

#include "base/check.h"

namespace overture::testing {
namespace {

grpc::Status Unimplemented() {
  return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "");
}

}  // namespace

class FakeServer::Admin : public v1::AdminService::Service {
 public:
  explicit Admin(const Handlers* handlers) : handlers_(handlers) {}
  grpc::Status GetServerInfo(grpc::ServerContext*,
                             const v1::GetServerInfoRequest*,
                             v1::ServerInfo* info) override {
    return handlers_->info ? handlers_->info(info) : Unimplemented();
  }

 private:
  const Handlers* handlers_;
};

class FakeServer::Kv : public v1::KvCacheService::Service {
 public:
  explicit Kv(const Handlers* handlers) : handlers_(handlers) {}
  grpc::Status Describe(grpc::ServerContext*, const v1::DescribeRequest*,
                        v1::DescribeResponse* response) override {
    return handlers_->describe ? handlers_->describe(response)
                               : Unimplemented();
  }
  grpc::Status Fetch(grpc::ServerContext*, const v1::FetchRequest* request,
                     grpc::ServerWriter<v1::KvChunk>* writer) override {
    return handlers_->fetch ? handlers_->fetch(*request, writer)
                            : Unimplemented();
  }
  grpc::Status Lookup(grpc::ServerContext* context, const v1::LookupRequest*,
                      v1::LookupResponse* response) override {
    return handlers_->lookup ? handlers_->lookup(context, response)
                             : Unimplemented();
  }

 private:
  const Handlers* handlers_;
};

class FakeServer::PrefillImpl : public v1::PrefillService::Service {
 public:
  explicit PrefillImpl(const Handlers* handlers) : handlers_(handlers) {}
  grpc::Status Prefill(grpc::ServerContext* context, const v1::PrefillRequest*,
                       grpc::ServerWriter<v1::PrefillEvent>* writer) override {
    return handlers_->prefill ? handlers_->prefill(context, writer)
                              : Unimplemented();
  }

 private:
  const Handlers* handlers_;
};

FakeServer::FakeServer(Handlers handlers)
    : handlers_(std::move(handlers)),
      admin_(std::make_unique<Admin>(&handlers_)),
      kv_(std::make_unique<Kv>(&handlers_)),
      prefill_(std::make_unique<PrefillImpl>(&handlers_)) {
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(),
                           &port);
  builder.RegisterService(admin_.get());
  builder.RegisterService(kv_.get());
  builder.RegisterService(prefill_.get());
  server_ = builder.BuildAndStart();
  OVERTURE_CHECK(server_ != nullptr);
  address_ = "127.0.0.1:" + std::to_string(port);
}

FakeServer::~FakeServer() {
  // A deadline in the past cancels what still runs.
  server_->Shutdown(std::chrono::system_clock::now());
}

}  // namespace overture::testing
