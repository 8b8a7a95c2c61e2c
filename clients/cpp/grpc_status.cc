#include "clients/cpp/grpc_status.h"

#include <grpcpp/client_context.h>
#include <grpcpp/support/status.h>

#include <cstdint>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace overture::clients {

absl::Status FromGrpc(const grpc::Status& status,
                      const grpc::ClientContext& context,
                      absl::string_view call) {
  if (status.ok()) return absl::OkStatus();
  std::string message = absl::StrCat(call, ": ", status.error_message());
  // gRPC itself answers so, without a word, to a method it does not know.
  if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED &&
      status.error_message().empty()) {
    absl::StrAppend(&message,
                    " (the server does not offer this call of overture.v1: it "
                    "is older than this client, or no Overture server)");
  }
  // A failed call always has its trailers, though they may be empty.
  const auto& trailers = context.GetServerTrailingMetadata();
  const auto delay = trailers.find("retry-delay-ms");
  int64_t delay_ms = 0;
  if (delay != trailers.end() &&
      absl::SimpleAtoi(
          absl::string_view(delay->second.data(), delay->second.size()),
          &delay_ms)) {
    absl::StrAppend(&message, "; retry in ", delay_ms, " ms");
  }
  // The numbers of both enums are those of google.rpc.Code; unknown ones
  // become UNKNOWN.
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()),
                      message);
}

}  // namespace overture::clients
