// Unary calls that block: the handler returns a reactor at once, the work runs
// on a pool's thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "service/status.h"
#include "service/thread_pool.h"

namespace overture::service {

// Runs `fn`, a callable returning absl::Status, on `pool`, and finishes the
// call with it. Request and response live until then.
template <typename Fn>
grpc::ServerUnaryReactor* RunUnary(grpc::CallbackServerContext* context,
                                   ThreadPool* pool, Fn fn) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  pool->Run([context, reactor, fn = std::move(fn)]() mutable {
    if (context->IsCancelled()) {
      reactor->Finish(ToGrpc(absl::CancelledError("the caller is gone")));
      return;
    }
    reactor->Finish(ToGrpc(fn()));
  });
  return reactor;
}

// The trailer that RESOURCE_EXHAUSTED carries. Call before Finish.
inline void AddRetryDelay(grpc::CallbackServerContext* context,
                          const absl::Status& status, int64_t delay_ms) {
  if (absl::IsResourceExhausted(status)) {
    context->AddTrailingMetadata("retry-delay-ms", std::to_string(delay_ms));
  }
}

}  // namespace overture::service
