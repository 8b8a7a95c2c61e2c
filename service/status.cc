#include "service/status.h"

#include <string>

namespace overture::service {

grpc::Status ToGrpc(const absl::Status& status) {
  static_assert(static_cast<int>(absl::StatusCode::kUnauthenticated) ==
                static_cast<int>(grpc::StatusCode::UNAUTHENTICATED));
  static_assert(static_cast<int>(absl::StatusCode::kAborted) ==
                static_cast<int>(grpc::StatusCode::ABORTED));
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()),
                      std::string(status.message()));
}

}  // namespace overture::service
