#include "clients/cpp/client.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "clients/cpp/fetch_check.h"
#include "clients/cpp/grpc_status.h"
#include "clients/cpp/utf8.h"
#include "overture/v1/admin.grpc.pb.h"
#include "overture/v1/kv_cache.grpc.pb.h"
#include "overture/v1/prefill.grpc.pb.h"
#include "overture/v1/session.grpc.pb.h"

namespace overture::clients {
namespace {

// A session of a million tokens, read back, takes up to 5 MB; gRPC's default
// limit is 4.
constexpr int kMaxReceiveBytes = 64 << 20;

// Deadline of a call that may consist of several RPCs.
absl::Time DeadlineOf(const CallOptions& call) {
  return absl::Now() + call.timeout;
}

// One RPC's context, cancelled when the caller's stop token fires.
class Call {
 public:
  Call(absl::Time deadline, const std::stop_token& stop)
      : on_stop_(stop, Cancel{&context_}) {
    if (deadline != absl::InfiniteFuture()) {
      context_.set_deadline(absl::ToChronoTime(deadline));
    }
  }
  grpc::ClientContext* context() { return &context_; }
  absl::Status ToStatus(const grpc::Status& status, absl::string_view name) {
    return FromGrpc(status, context_, name);
  }

 private:
  struct Cancel {
    grpc::ClientContext* context;
    void operator()() const { context->TryCancel(); }
  };
  grpc::ClientContext context_;
  std::stop_callback<Cancel> on_stop_;
};

bool IsLoopback(absl::string_view address) {
  return absl::StartsWith(address, "127.") ||
         absl::StartsWith(address, "localhost:") ||
         absl::StartsWith(address, "[::1]:");
}

// Waits, unless stopped or out of time first: then CANCELLED or
// DEADLINE_EXCEEDED.
absl::Status Pause(absl::Duration pause, absl::Time deadline,
                   const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any never;
  std::unique_lock lock(mutex);
  const absl::Duration left = std::min(pause, deadline - absl::Now());
  never.wait_for(lock, stop, absl::ToChronoNanoseconds(left),
                 [] { return false; });
  if (stop.stop_requested()) return absl::CancelledError("stopped");
  if (left < pause) return absl::DeadlineExceededError("out of time");
  return absl::OkStatus();
}

}  // namespace

struct OvertureClient::Stubs {
  explicit Stubs(const std::shared_ptr<grpc::Channel>& channel)
      : admin(v1::AdminService::NewStub(channel)),
        kv(v1::KvCacheService::NewStub(channel)),
        prefill(v1::PrefillService::NewStub(channel)),
        session(v1::SessionService::NewStub(channel)) {}

  // Reads one stream of a fetch from check->offset() on. UNAVAILABLE: may be
  // taken up again.
  absl::Status ReadStream(v1::FetchRequest request, FetchCheck* check,
                          KvSink& sink, bool* sink_began, absl::Time deadline,
                          const std::stop_token& stop);

  std::unique_ptr<v1::AdminService::Stub> admin;
  std::unique_ptr<v1::KvCacheService::Stub> kv;
  std::unique_ptr<v1::PrefillService::Stub> prefill;
  std::unique_ptr<v1::SessionService::Stub> session;
};

namespace {

// Runs a unary RPC: Unary(stub, &Stub::Lookup, request, call, "Lookup").
template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> Unary(
    Stub& stub,
    grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                 Response*),
    const Request& request, const CallOptions& options,
    absl::string_view name) {
  Call call(DeadlineOf(options), options.stop);
  Response response;
  const grpc::Status status =
      (stub.*method)(call.context(), request, &response);
  if (!status.ok()) return call.ToStatus(status, name);
  return response;
}

}  // namespace

OvertureClient::OvertureClient(const ClientOptions& options,
                               std::unique_ptr<Stubs> stubs)
    : options_(options), stubs_(std::move(stubs)) {}
OvertureClient::~OvertureClient() = default;

absl::StatusOr<std::unique_ptr<OvertureClient>> OvertureClient::Connect(
    absl::string_view address, const ClientOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxReceiveBytes);
  // The default of 1 s would outlast a server's restart.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // A proxy for the world must not carry what stays on this machine.
  if (IsLoopback(address)) arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  std::shared_ptr<grpc::Channel> channel = grpc::CreateCustomChannel(
      std::string(address), grpc::InsecureChannelCredentials(), arguments);

  const absl::Time deadline = absl::Now() + options.connect_timeout;
  if (!channel->WaitForConnected(absl::ToChronoTime(deadline))) {
    return absl::UnavailableError(
        absl::StrCat("no server answers at ", address, " within ",
                     absl::FormatDuration(options.connect_timeout)));
  }
  auto client = std::unique_ptr<OvertureClient>(
      new OvertureClient(options, std::make_unique<Stubs>(channel)));
  absl::StatusOr<v1::ServerInfo> info =
      client->GetServerInfo({.timeout = deadline - absl::Now()});
  if (!info.ok()) return WithContext(info.status(), address);
  client->server_ = *std::move(info);
  return client;
}

absl::StatusOr<PrefillResult> OvertureClient::Prefill(
    const v1::PrefillRequest& request, const PrefillObserver& observer,
    const CallOptions& options) {
  OVERTURE_RETURN_IF_ERROR(CheckUtf8(request.text(), "text"));
  Call call(DeadlineOf(options), options.stop);
  auto stream = stubs_->prefill->Prefill(call.context(), request);
  PrefillResult result;
  bool done = false;
  v1::PrefillEvent event;
  while (stream->Read(&event)) {
    if (observer) observer(event);
    switch (event.event_case()) {
      case v1::PrefillEvent::kMatched:
        result.matched = event.matched();
        break;
      case v1::PrefillEvent::kFirstToken:
        result.first_token = event.first_token();
        break;
      case v1::PrefillEvent::kDone:
        result.done = event.done();
        done = true;
        break;
      default:  // for the observer, or from a newer server
        break;
    }
  }
  const grpc::Status status = stream->Finish();
  if (!status.ok()) return call.ToStatus(status, "Prefill");
  if (!done) {
    return absl::InternalError("Prefill: the stream ended without a result");
  }
  return result;
}

absl::Status OvertureClient::Stubs::ReadStream(v1::FetchRequest request,
                                               FetchCheck* check, KvSink& sink,
                                               bool* sink_began,
                                               absl::Time deadline,
                                               const std::stop_token& stop) {
  request.set_resume_offset(check->offset());
  Call call(deadline, stop);
  auto stream = kv->Fetch(call.context(), request);
  v1::KvChunk chunk;
  bool began = false;
  bool ended = false;
  absl::Status status;
  while (status.ok() && stream->Read(&chunk)) {
    if (chunk.has_begin() != !began || ended) {
      status = absl::DataLossError("the stream's messages are out of order");
    } else if (chunk.has_begin()) {
      began = true;
      status = check->Begin(chunk.begin());
      if (status.ok() && !*sink_began) {
        *sink_began = true;
        status = sink.Begin(check->info());
      }
    } else if (chunk.has_data()) {
      status = check->Data(chunk.data());
      if (status.ok()) {
        status = DeliverRows(check->info().layout, chunk.data(), sink);
      }
    } else if (chunk.has_end()) {
      ended = true;
      status = check->End(chunk.end());
    }
  }
  if (!status.ok()) call.context()->TryCancel();
  const grpc::Status finish = stream->Finish();
  if (!status.ok()) return status;
  if (ended) return absl::OkStatus();
  if (!finish.ok()) return call.ToStatus(finish, "Fetch");
  return absl::UnavailableError("Fetch: the stream ended early");
}

absl::StatusOr<FetchResult> OvertureClient::Fetch(absl::string_view handle,
                                                  const FetchOptions& options,
                                                  KvSink& sink,
                                                  const CallOptions& call) {
  const absl::Time deadline = DeadlineOf(call);
  // Tells how many rows every head has, which the stream alone does not.
  OVERTURE_ASSIGN_OR_RETURN(v1::DescribeResponse description,
                            Describe(handle, call));
  OVERTURE_ASSIGN_OR_RETURN(
      FetchCheck check,
      FetchCheck::Create(description, options.source, options.layer_begin,
                         options.layer_end));
  v1::FetchRequest request;
  request.set_handle(std::string(handle));
  request.set_source(options.source);
  request.set_layer_begin(options.layer_begin);
  request.set_layer_end(options.layer_end);
  request.set_max_chunk_bytes(options.max_chunk_bytes);

  FetchResult result;
  bool sink_began = false;
  int32_t failures = 0;  // in a row, without progress
  while (true) {
    const int64_t offset = check.offset();
    const absl::Status status = stubs_->ReadStream(
        request, &check, sink, &sink_began, deadline, call.stop);
    if (status.ok()) break;
    if (!absl::IsUnavailable(status)) return status;
    failures = check.offset() > offset ? 1 : failures + 1;
    if (failures > options_.max_fetch_resumes) {
      return absl::UnavailableError(absl::StrCat(
          status.message(), "; given up after ", options_.max_fetch_resumes,
          " attempts in a row to resume at byte ", check.offset(), " of ",
          check.info().total_bytes));
    }
    ++result.resumes;
    OVERTURE_RETURN_IF_ERROR(WithContext(
        Pause(options_.resume_backoff * (1 << std::min(failures - 1, 10)),
              deadline, call.stop),
        "Fetch, before resuming"));
  }
  result.bytes = check.offset();
  result.chunks = check.num_chunks();
  return result;
}

absl::StatusOr<v1::LookupResponse> OvertureClient::Lookup(
    const v1::LookupRequest& request, const CallOptions& call) {
  OVERTURE_RETURN_IF_ERROR(CheckUtf8(request.text(), "text"));
  return Unary(*stubs_->kv, &v1::KvCacheService::Stub::Lookup, request, call,
               "Lookup");
}

absl::StatusOr<v1::DescribeResponse> OvertureClient::Describe(
    absl::string_view handle, const CallOptions& call) {
  v1::DescribeRequest request;
  request.set_handle(std::string(handle));
  return Unary(*stubs_->kv, &v1::KvCacheService::Stub::Describe, request, call,
               "Describe");
}

absl::StatusOr<int32_t> OvertureClient::Release(
    const std::vector<std::string>& handles, const CallOptions& call) {
  v1::ReleaseRequest request;
  for (const std::string& handle : handles) request.add_handles(handle);
  OVERTURE_ASSIGN_OR_RETURN(
      v1::ReleaseResponse response,
      Unary(*stubs_->kv, &v1::KvCacheService::Stub::Release, request, call,
            "Release"));
  return response.released();
}

absl::StatusOr<v1::Session> OvertureClient::CreateSession(
    const v1::CreateSessionRequest& request, const CallOptions& call) {
  return Unary(*stubs_->session, &v1::SessionService::Stub::CreateSession,
               request, call, "CreateSession");
}

absl::StatusOr<v1::Session> OvertureClient::GetSession(
    absl::string_view id, bool include_tokens, const CallOptions& call) {
  v1::GetSessionRequest request;
  request.set_id(std::string(id));
  request.set_include_tokens(include_tokens);
  return Unary(*stubs_->session, &v1::SessionService::Stub::GetSession, request,
               call, "GetSession");
}

absl::StatusOr<std::vector<v1::Session>> OvertureClient::ListSessions(
    const CallOptions& call) {
  OVERTURE_ASSIGN_OR_RETURN(
      v1::ListSessionsResponse response,
      Unary(*stubs_->session, &v1::SessionService::Stub::ListSessions,
            v1::ListSessionsRequest(), call, "ListSessions"));
  return std::vector<v1::Session>(response.sessions().begin(),
                                  response.sessions().end());
}

absl::Status OvertureClient::DeleteSession(absl::string_view id,
                                           const CallOptions& call) {
  v1::DeleteSessionRequest request;
  request.set_id(std::string(id));
  return Unary(*stubs_->session, &v1::SessionService::Stub::DeleteSession,
               request, call, "DeleteSession")
      .status();
}

absl::StatusOr<v1::ServerInfo> OvertureClient::GetServerInfo(
    const CallOptions& call) {
  return Unary(*stubs_->admin, &v1::AdminService::Stub::GetServerInfo,
               v1::GetServerInfoRequest(), call, "GetServerInfo");
}

absl::StatusOr<std::vector<int32_t>> OvertureClient::Tokenize(
    const v1::TokenizeRequest& request, const CallOptions& call) {
  OVERTURE_RETURN_IF_ERROR(CheckUtf8(request.text(), "text"));
  OVERTURE_ASSIGN_OR_RETURN(
      v1::TokenizeResponse response,
      Unary(*stubs_->admin, &v1::AdminService::Stub::Tokenize, request, call,
            "Tokenize"));
  return std::vector<int32_t>(response.ids().begin(), response.ids().end());
}

absl::StatusOr<std::string> OvertureClient::Detokenize(
    absl::Span<const int32_t> ids, bool keep_special, const CallOptions& call) {
  v1::DetokenizeRequest request;
  request.mutable_ids()->Add(ids.begin(), ids.end());
  request.set_keep_special(keep_special);
  OVERTURE_ASSIGN_OR_RETURN(
      v1::DetokenizeResponse response,
      Unary(*stubs_->admin, &v1::AdminService::Stub::Detokenize, request, call,
            "Detokenize"));
  return response.text();
}

}  // namespace overture::clients
