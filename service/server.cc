#include "service/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <array>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "service/admin_service.h"
#include "service/kv_cache_service.h"
#include "service/prefill_service.h"
#include "service/session_service.h"

namespace overture::service {
namespace {

constexpr char kPrefillHealthName[] = "overture.v1.PrefillService";
constexpr std::array<const char*, 5> kHealthNames = {
    kPrefillHealthName, "overture.v1.KvCacheService",
    "overture.v1.SessionService", "overture.v1.AdminService",
    kKvWritesHealthName};

// After the drain's limit: time for last writes and statuses to go out.
constexpr absl::Duration kLastWrites = absl::Milliseconds(500);

// A dead peer is noticed within a minute, so that its leases do not stay.
constexpr int kKeepaliveMillis = 30000;
constexpr int kKeepaliveTimeoutMillis = 20000;

void InitGrpcOnce() {
  static const bool done = [] {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    return true;
  }();
  (void)done;
}

}  // namespace

struct Server::Services {
  explicit Services(const ServiceContext* context)
      : prefill(context), kv_cache(context), session(context), admin(context) {}
  PrefillService prefill;
  KvCacheService kv_cache;
  SessionService session;
  AdminService admin;
};

Server::Server(const ServerOptions& options, const ServerParts& parts)
    // The engine holds max_queued waiting and one running.
    : prefills_("prefills", options.max_queued + 1),
      // Streams outlive their prefill by what a slow reader takes; they hold
      // little, so that only a drain looks at their number.
      prefill_streams_("prefill streams", std::numeric_limits<int32_t>::max()),
      fetches_("fetches", options.max_fetches),
      handles_({.max_handles = options.max_handles,
                .max_view_bytes = options.max_view_bytes,
                .now = options.now}),
      sessions_(parts.cache,
                {.max_unstored_bytes = options.max_unstored_session_bytes,
                 .now = options.now,
                 .head_sizes = options.limits.head_sizes}),
      prefill_pool_(std::make_unique<ThreadPool>(
          options.max_queued + 1, options.on_prefill_thread_start)),
      fetch_pool_(std::make_unique<ThreadPool>(options.fetch_threads)),
      unary_pool_(std::make_unique<ThreadPool>(options.unary_threads)) {
  context_.engine = parts.engine;
  context_.cache = parts.cache;
  context_.tokenizer = parts.tokenizer;
  context_.identity = parts.identity;
  context_.limits = options.limits;
  context_.handles = &handles_;
  context_.sessions = &sessions_;
  context_.prefill_pool = prefill_pool_.get();
  context_.fetch_pool = fetch_pool_.get();
  context_.unary_pool = unary_pool_.get();
  context_.prefills = &prefills_;
  context_.prefill_streams = &prefill_streams_;
  context_.fetches = &fetches_;
  context_.retry = &retry_;
  context_.started = absl::Now();
  context_.set_kv_writes_healthy = [this](bool healthy) {
    SetKvWritesHealthy(healthy);
  };
  context_.set_prefills_unhealthy = [this](const absl::Status& reason) {
    SetPrefillsUnhealthy(reason);
  };
  services_ = std::make_unique<Services>(&context_);
}

absl::StatusOr<std::unique_ptr<Server>> Server::Start(
    const ServerOptions& options, const ServerParts& parts) {
  InitGrpcOnce();
  std::unique_ptr<Server> server(new Server(options, parts));
  OVERTURE_RETURN_IF_ERROR(server->Listen(options));
  server->expiry_ = std::thread([s = server.get()] { s->ExpireLoop(); });
  return server;
}

absl::Status Server::Listen(const ServerOptions& options) {
  grpc::ServerBuilder builder;
  ports_.assign(options.listen.size(), 0);
  for (size_t i = 0; i < options.listen.size(); ++i) {
    builder.AddListeningPort(options.listen[i],
                             grpc::InsecureServerCredentials(), &ports_[i]);
  }
  builder.RegisterService(&services_->prefill);
  builder.RegisterService(&services_->kv_cache);
  builder.RegisterService(&services_->session);
  builder.RegisterService(&services_->admin);
  // An id takes up to 5 bytes; gRPC's default of 4 MiB would refuse a prompt of
  // a million tokens before it could be judged. The text form shares the room.
  constexpr int64_t kFloor = int64_t{4} << 20;
  constexpr int64_t kCeiling = int64_t{1} << 30;
  builder.SetMaxReceiveMessageSize(static_cast<int>(std::clamp(
      5 * context_.engine->max_prompt_tokens() + (1 << 20), kFloor, kCeiling)));
  // A session's tokens and a tokenised text may be as long as a prompt.
  builder.SetMaxSendMessageSize(-1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMillis);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS,
                             kKeepaliveTimeoutMillis);
  // Two servers on one port would share its connections unnoticed.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  grpc_ = builder.BuildAndStart();
  for (size_t i = 0; i < ports_.size(); ++i) {
    if (ports_[i] == 0) {
      return absl::UnavailableError(absl::StrCat(
          "listen: cannot listen on ", options.listen[i],
          " (in use, not an address of this machine, or not permitted)"));
    }
  }
  if (grpc_ == nullptr) {
    return absl::InternalError("listen: the server could not be built");
  }
  for (const char* name : kHealthNames) {
    grpc_->GetHealthCheckService()->SetServingStatus(name, true);
  }
  serving_ = grpc_.get();
  return absl::OkStatus();
}

std::shared_ptr<grpc::Channel> Server::InProcessChannel() {
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(-1);
  return grpc_->InProcessChannel(args);
}

void Server::SetKvWritesHealthy(bool healthy) {
  grpc::Server* server = serving_.load();
  if (server == nullptr) return;
  // After Shutdown of the health service this changes nothing.
  server->GetHealthCheckService()->SetServingStatus(kKvWritesHealthName,
                                                    healthy);
}

void Server::SetPrefillsUnhealthy(const absl::Status& reason) {
  if (prefills_unhealthy_.exchange(true)) return;
  Log(Severity::kError,
      absl::StrCat("service: no prefill runs until the server is started "
                   "again, stored KV is served on: ",
                   reason.message()));
  grpc::Server* server = serving_.load();
  if (server == nullptr) return;
  for (const char* name : {"", kPrefillHealthName}) {
    server->GetHealthCheckService()->SetServingStatus(name, false);
  }
}

void Server::ExpireLoop() {
  absl::MutexLock lock(&mutex_);
  while (
      !mutex_.AwaitWithTimeout(absl::Condition(&stopping_), absl::Seconds(1))) {
    mutex_.Unlock();
    handles_.Expire();
    mutex_.Lock();
  }
}

bool Server::Shutdown(absl::Duration grace) {
  if (stopped_) return ended_by_themselves_;
  stopped_ = true;
  if (grpc_ != nullptr) {
    const absl::Time deadline = absl::Now() + grace;
    grpc_->GetHealthCheckService()->Shutdown();
    prefills_.Drain();
    fetches_.Drain();
    ended_by_themselves_ = prefill_streams_.WaitIdle(deadline);
    ended_by_themselves_ = fetches_.WaitIdle(deadline) && ended_by_themselves_;
    grpc_->Shutdown(absl::ToChronoTime(absl::Now() + kLastWrites));
  }
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (expiry_.joinable()) expiry_.join();
  // Tasks that outlived their calls, then leases: all before the cache goes.
  prefill_pool_.reset();
  fetch_pool_.reset();
  unary_pool_.reset();
  handles_.Clear();
  return ended_by_themselves_;
}

Server::~Server() { Shutdown(absl::ZeroDuration()); }

}  // namespace overture::service
