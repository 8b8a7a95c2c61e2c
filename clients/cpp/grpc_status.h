// The one place where a gRPC status becomes an absl::Status. Thread-safe: no
// state.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace grpc {
class ClientContext;
class Status;
}  // namespace grpc

namespace overture::clients {

// Same code and message, after "call: ". The server's "retry-delay-ms" trailer,
// if `context` has received one, becomes "; retry in N ms". UNIMPLEMENTED says
// that the server is too old for the call.
absl::Status FromGrpc(const grpc::Status& status,
                      const grpc::ClientContext& context,
                      absl::string_view call);

}  // namespace overture::clients
