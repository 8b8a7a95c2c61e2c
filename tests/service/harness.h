// A whole server in one process: real engine, cache and gRPC, a back end that
// computes nothing. Tests talk to it through an in-process channel (over TCP if
// ServerOptions::listen says so), hold its prefills at a gate and move its
// clock; nothing sleeps.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache/kv_cache.h"
#include "engine/engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "overture/v1/admin.grpc.pb.h"
#include "overture/v1/kv_cache.grpc.pb.h"
#include "overture/v1/prefill.grpc.pb.h"
#include "overture/v1/session.grpc.pb.h"
#include "service/server.h"
#include "tests/cache/faulty_store.h"
#include "tests/support/fake_backend.h"

namespace overture::service {

class Harness {
 public:
  struct Options {
    std::string rocksdb_path;  // empty: memory
    bool with_tokenizer = true;
    testing::FakeBackend::Options backend;
    engine::EngineOptions engine;
    ServerOptions server;
  };
  static Options Defaults() {
    Options options;
    options.engine.max_queued = 8;
    options.engine.model_id = "fake";
    options.server.max_queued = 8;
    return options;
  }

  explicit Harness(Options options = Defaults());
  ~Harness();

  Server& server() { return *server_; }
  cache::KvCache& cache() { return *cache_; }
  testing::Gate& gate() { return gate_; }
  // The prefill that passes the gate next, or stands at it, loses the device.
  void LoseDevice() { device_fault_ = true; }
  // As a full disk does; reads go on.
  void FailWrites(bool fail);
  void Advance(absl::Duration by);

  v1::PrefillService::Stub& prefill() { return *prefill_; }
  v1::KvCacheService::Stub& kv() { return *kv_; }
  v1::SessionService::Stub& session() { return *session_; }
  v1::AdminService::Stub& admin() { return *admin_; }
  std::shared_ptr<grpc::Channel> channel() { return channel_; }

 private:
  cache::Faults faults_;
  testing::Gate gate_;
  std::atomic<bool> device_fault_ = false;
  absl::Mutex clock_mutex_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(24 * 365 * 50);
  testing::FakeTokenizer tokenizer_;
  std::unique_ptr<cache::KvCache> cache_;
  std::unique_ptr<engine::Engine> engine_;
  std::unique_ptr<Server> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::PrefillService::Stub> prefill_;
  std::unique_ptr<v1::KvCacheService::Stub> kv_;
  std::unique_ptr<v1::SessionService::Stub> session_;
  std::unique_ptr<v1::AdminService::Stub> admin_;
};

// Ids first, first + 1, ... modulo 900.
std::vector<int32_t> Ids(int64_t count, int32_t first = 0);
v1::PrefillRequest TokensRequest(const std::vector<int32_t>& ids);

// A Prefill read to its end.
struct PrefillAnswer {
  std::vector<v1::PrefillEvent> events;
  grpc::Status status;
  int64_t retry_delay_ms = -1;  // the trailer, -1 without one

  const v1::PrefillEvent::Done& done() const { return events.back().done(); }
};
PrefillAnswer RunPrefill(Harness& harness, const v1::PrefillRequest& request);

// A Fetch read to its end.
struct FetchAnswer {
  v1::FetchBegin begin;
  std::vector<v1::KvData> chunks;
  v1::FetchEnd end;
  grpc::Status status;
};
FetchAnswer RunFetch(Harness& harness, const v1::FetchRequest& request);

v1::Session CreateSession(Harness& harness, const std::string& id);

MATCHER_P(HasCode, code, "has the given gRPC code") {
  *result_listener << arg.error_code() << ": " << arg.error_message();
  return arg.error_code() == code;
}
MATCHER_P2(HasCode, code, message, "has the given gRPC code and message") {
  *result_listener << arg.error_code() << ": " << arg.error_message();
  return arg.error_code() == code &&
         ::testing::ExplainMatchResult(::testing::HasSubstr(message),
                                       arg.error_message(), result_listener);
}

}  // namespace overture::service
