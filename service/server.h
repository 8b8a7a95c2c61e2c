// The gRPC server: services, health, reflection, thread pools, handles and
// sessions, over an engine and a cache that it borrows.
//
// Start() and Shutdown() belong to one thread; everything else is safe from
// any. Health names: "" (the whole server), one per service
// ("overture.v1.PrefillService" ...), and kKvWritesHealthName for writing KV,
// which alone fails while the disk does. When the engine's device is lost ""
// and the prefill service's name fail for good: prefills get UNAVAILABLE, all
// else is served on.
//
//   OVERTURE_ASSIGN_OR_RETURN(auto server, Server::Start(options, parts));
//   ...
//   server->Shutdown(absl::Seconds(10));
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "service/context.h"

namespace overture::service {

inline constexpr char kKvWritesHealthName[] = "overture.kv_writes";

struct ServerOptions {
  // "host:port" (port 0: any free one) or "unix:path". May be empty: then only
  // InProcessChannel() reaches the server.
  std::vector<std::string> listen;
  ServiceLimits limits;
  int32_t max_queued = 64;  // as EngineOptions::max_queued
  int32_t max_handles = 1024;
  int64_t max_view_bytes = int64_t{1} << 30;
  int64_t max_unstored_session_bytes = int64_t{64} << 20;
  // Streams that fetch; each holds at most one record and one chunk.
  int32_t max_fetches = 256;
  int32_t fetch_threads = 4;
  int32_t unary_threads = 4;
  // Runs first on every thread that calls the engine; may be null.
  std::function<void()> on_prefill_thread_start;
  std::function<absl::Time()> now = absl::Now;  // for expiry; tests inject
};

// Borrowed; outlive the server.
struct ServerParts {
  engine::Engine* engine = nullptr;
  cache::KvCache* cache = nullptr;
  const engine::Tokenizer* tokenizer = nullptr;  // may be null
  ModelIdentity identity;
};

class Server {
 public:
  // UNAVAILABLE naming the address that cannot be listened on.
  static absl::StatusOr<std::unique_ptr<Server>> Start(
      const ServerOptions& options, const ServerParts& parts);
  // Shuts down at once if Shutdown() was not called.
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  // Ports bound, in the order of ServerOptions::listen; 1 for a Unix socket.
  const std::vector<int>& ports() const { return ports_; }

  std::shared_ptr<grpc::Channel> InProcessChannel();

  // Health turns NOT_SERVING, new calls get UNAVAILABLE; calls under way have
  // `grace` to end, then they are cancelled and waited for (one layer, one
  // record). Returns whether all ended by themselves. Idempotent.
  bool Shutdown(absl::Duration grace);

  // Drops expired handles; a timer does it every second.
  void ExpireHandles() { handles_.Expire(); }
  const HandleRegistry& handles() const { return handles_; }

 private:
  struct Services;
  Server(const ServerOptions& options, const ServerParts& parts);
  absl::Status Listen(const ServerOptions& options);
  void SetKvWritesHealthy(bool healthy);
  void SetPrefillsUnhealthy(const absl::Status& reason);
  void ExpireLoop();

  CallGate prefills_;
  CallGate prefill_streams_;
  CallGate fetches_;
  RetryHint retry_;
  HandleRegistry handles_;
  SessionStore sessions_;
  ServiceContext context_;
  std::unique_ptr<Services> services_;
  std::vector<int> ports_;
  std::unique_ptr<grpc::Server> grpc_;
  // grpc_ once it is known: a call may come in before Start() has stored it.
  std::atomic<grpc::Server*> serving_{nullptr};
  std::atomic<bool> prefills_unhealthy_{false};

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopped_ = false;
  bool ended_by_themselves_ = true;
  std::thread expiry_;

  // Last, so that they are joined before anything they use goes.
  std::unique_ptr<ThreadPool> prefill_pool_;
  std::unique_ptr<ThreadPool> fetch_pool_;
  std::unique_ptr<ThreadPool> unary_pool_;
};

}  // namespace overture::service
