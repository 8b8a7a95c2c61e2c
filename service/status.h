// The one place where an absl::Status becomes a grpc::Status. The codes are
// the same numbers by definition; the message goes over unchanged.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace overture::service {

grpc::Status ToGrpc(const absl::Status& status);

}  // namespace overture::service
