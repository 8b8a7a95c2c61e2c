// overture.v1.PrefillService: validates, admits, runs the engine on a pool's
// thread and streams its events. One reactor per call; a reader that does not
// read holds up nothing but its own few pending events.
#pragma once

#include "overture/v1/prefill.grpc.pb.h"
#include "service/context.h"

namespace overture::service {

class PrefillService final : public v1::PrefillService::CallbackService {
 public:
  explicit PrefillService(const ServiceContext* context) : context_(context) {}

  grpc::ServerWriteReactor<v1::PrefillEvent>* Prefill(
      grpc::CallbackServerContext* call,
      const v1::PrefillRequest* request) override;

 private:
  const ServiceContext* const context_;
};

}  // namespace overture::service
