// An Overture server in this process whose answers a test writes. Listens on a
// free port of 127.0.0.1. Thread-safe once started.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "overture/v1/admin.grpc.pb.h"
#include "overture/v1/kv_cache.grpc.pb.h"
#include "overture/v1/prefill.grpc.pb.h"

namespace overture::testing {

class FakeServer {
 public:
  // Unset handlers answer UNIMPLEMENTED, as an older server would.
  struct Handlers {
    std::function<grpc::Status(v1::ServerInfo*)> info = [](v1::ServerInfo*) {
      return grpc::Status::OK;
    };
    std::function<grpc::Status(grpc::ServerContext*,
                               grpc::ServerWriter<v1::PrefillEvent>*)>
        prefill;
    std::function<grpc::Status(v1::DescribeResponse*)> describe;
    std::function<grpc::Status(const v1::FetchRequest&,
                               grpc::ServerWriter<v1::KvChunk>*)>
        fetch;
    std::function<grpc::Status(grpc::ServerContext*, v1::LookupResponse*)>
        lookup;
  };

  explicit FakeServer(Handlers handlers);
  ~FakeServer();
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;

  const std::string& address() const { return address_; }

 private:
  class Admin;
  class Kv;
  class PrefillImpl;
  Handlers handlers_;
  std::unique_ptr<Admin> admin_;
  std::unique_ptr<Kv> kv_;
  std::unique_ptr<PrefillImpl> prefill_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

}  // namespace overture::testing
