// Client of an Overture server: prefill a prompt, then fetch its KV from the
// process that decodes. Covers everything in overture/v1/*.proto.
//
// Thread-safe: one client per server, shared by all threads; every call blocks
// its caller. Calls end early by CallOptions: a timeout (DEADLINE_EXCEEDED) or
// a stop token (CANCELLED); the server then stops the work within one layer.
//
// Errors: what the server answers, by the table in overture/v1/common.proto,
// with the name of the call in front; UNAVAILABLE when no server answers;
// UNIMPLEMENTED when it is too old. Nothing but Fetch is retried for you: a
// Prefill that broke off may have finished, and asking again finds its blocks.
//
// Example:
//   OVERTURE_ASSIGN_OR_RETURN(auto client,
//                             OvertureClient::Connect("127.0.0.1:50051"));
//   v1::PrefillRequest request;
//   request.set_text("The quick brown fox");
//   OVERTURE_ASSIGN_OR_RETURN(PrefillResult result, client->Prefill(request));
//   MySink sink;  // clients/cpp/kv_sink.h
//   OVERTURE_RETURN_IF_ERROR(
//       client->Fetch(result.done.handle(), FetchOptions{}, sink).status());
//   // Decode from result.first_token.token() at position
//   // result.done.num_tokens().
//   client->Release({result.done.handle()}).IgnoreError();
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "clients/cpp/kv_sink.h"
#include "overture/v1/admin.pb.h"
#include "overture/v1/common.pb.h"
#include "overture/v1/kv_cache.pb.h"
#include "overture/v1/prefill.pb.h"
#include "overture/v1/session.pb.h"

namespace overture::clients {

struct ClientOptions {
  // How long Connect waits for a server to answer. Longer rides out a server
  // that is still loading its model.
  absl::Duration connect_timeout = absl::Seconds(10);
  // Times in a row that a fetch takes up its broken stream without having
  // received anything new. More rides out longer outages: the pauses between
  // double from resume_backoff.
  int32_t max_fetch_resumes = 4;
  absl::Duration resume_backoff = absl::Milliseconds(100);
};

struct CallOptions {
  absl::Duration timeout = absl::InfiniteDuration();
  std::stop_token stop;
};

struct PrefillResult {
  v1::PrefillEvent::Matched matched;
  v1::PrefillEvent::FirstToken first_token;
  v1::PrefillEvent::Done done;  // handle, statistics, whether it is durable
};

struct FetchOptions {
  v1::FetchRequest::Source source = v1::FetchRequest::SOURCE_FULL;
  int32_t layer_begin = 0;  // layers [layer_begin, layer_end)
  int32_t layer_end = 0;    // 0: all
  // Largest payload of one chunk, bytes; 0: the server's default. Larger: fewer
  // messages; smaller: less to repeat when a stream breaks.
  int32_t max_chunk_bytes = 0;
};

struct FetchResult {
  int64_t bytes = 0;  // payload
  int64_t chunks = 0;
  int32_t resumes = 0;  // times a broken stream was taken up again
};

class OvertureClient {
 public:
  // `address` as gRPC names it: "host:port", "unix:///path". Returns once the
  // server has answered. No TLS: use it on a trusted network.
  static absl::StatusOr<std::unique_ptr<OvertureClient>> Connect(
      absl::string_view address, const ClientOptions& options = {});
  ~OvertureClient();
  OvertureClient(const OvertureClient&) = delete;
  OvertureClient& operator=(const OvertureClient&) = delete;

  // The server as it was when Connect returned: its model and limits.
  const v1::ServerInfo& server() const { return server_; }

  // Runs one prefill. `observer`, if given, sees every event as it arrives, on
  // the calling thread; the answer may start at its `first_token`. Text that is
  // not UTF-8 is INVALID_ARGUMENT here, in Lookup and in Tokenize, unsent.
  using PrefillObserver = std::function<void(const v1::PrefillEvent&)>;
  absl::StatusOr<PrefillResult> Prefill(const v1::PrefillRequest& request,
                                        const PrefillObserver& observer = {},
                                        const CallOptions& call = {});

  // Receives the KV of a handle into `sink`. OK means that every row of every
  // layer and head asked for arrived exactly once, unharmed. A stream that
  // breaks (UNAVAILABLE) is taken up where it ended, without the sink noticing.
  // DATA_LOSS if a chunk is damaged, missing, repeated, or contradicts what the
  // handle promised: prefill again. NOT_FOUND for an unknown or expired handle,
  // which includes a server that restarted.
  absl::StatusOr<FetchResult> Fetch(absl::string_view handle,
                                    const FetchOptions& options, KvSink& sink,
                                    const CallOptions& call = {});

  absl::StatusOr<v1::LookupResponse> Lookup(const v1::LookupRequest& request,
                                            const CallOptions& call = {});
  absl::StatusOr<v1::DescribeResponse> Describe(absl::string_view handle,
                                                const CallOptions& call = {});
  // Returns how many of the handles existed.
  absl::StatusOr<int32_t> Release(const std::vector<std::string>& handles,
                                  const CallOptions& call = {});

  absl::StatusOr<v1::Session> CreateSession(
      const v1::CreateSessionRequest& request, const CallOptions& call = {});
  absl::StatusOr<v1::Session> GetSession(absl::string_view id,
                                         bool include_tokens = false,
                                         const CallOptions& call = {});
  absl::StatusOr<std::vector<v1::Session>> ListSessions(
      const CallOptions& call = {});
  absl::Status DeleteSession(absl::string_view id,
                             const CallOptions& call = {});

  absl::StatusOr<v1::ServerInfo> GetServerInfo(const CallOptions& call = {});
  absl::StatusOr<std::vector<int32_t>> Tokenize(
      const v1::TokenizeRequest& request, const CallOptions& call = {});
  absl::StatusOr<std::string> Detokenize(absl::Span<const int32_t> ids,
                                         bool keep_special = false,
                                         const CallOptions& call = {});

 private:
  struct Stubs;
  OvertureClient(const ClientOptions& options, std::unique_ptr<Stubs> stubs);

  ClientOptions options_;
  std::unique_ptr<Stubs> stubs_;
  v1::ServerInfo server_;
};

}  // namespace overture::clients
