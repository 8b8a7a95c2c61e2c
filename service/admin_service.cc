#include "service/admin_service.h"

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "service/convert.h"
#include "service/fetch_plan.h"
#include "service/server_call.h"

namespace overture::service {
namespace {

absl::Status NoTokenizer() {
  return absl::FailedPreconditionError(
      "tokenizer: the served model has none, work with ids");
}

absl::Status Info(const ServiceContext& context, v1::ServerInfo* out) {
  out->set_version(OVERTURE_VERSION);
  ModelInfoToProto(context, out->mutable_model());
  out->set_uptime_ms(absl::ToInt64Milliseconds(absl::Now() - context.started));
  out->set_max_prompt_tokens(context.engine->max_prompt_tokens());
  out->set_max_chunk_bytes(kMaxChunkBytes);
  out->set_default_handle_ttl_ms(static_cast<int32_t>(
      absl::ToInt64Milliseconds(context.limits.handle_ttl)));
  SelectorToProto(context.limits.default_selector,
                  out->mutable_default_selector());
  if (const engine::HeadSizes& sizes = context.limits.head_sizes;
      !sizes.empty()) {
    out->set_head_sizes_digest(std::string(sizes.digest().AsStringView()));
  }
  out->set_numerics(context.engine->backend().numerics());
  out->set_store(context.limits.store_name);
  const cache::KvCache::Stats stats = context.cache->stats();
  v1::CacheStats* cache = out->mutable_cache();
  cache->set_num_spans(stats.num_spans);
  cache->set_num_sessions(stats.num_sessions);
  cache->set_stored_bytes(stats.stored_bytes);
  cache->set_physical_bytes(stats.physical_bytes);
  cache->set_memory_bytes(stats.memory_bytes);
  cache->set_tokens_asked(stats.tokens_asked);
  cache->set_tokens_matched(stats.tokens_matched);
  cache->set_damaged_records(stats.damaged_records);
  cache->set_dropped_writes(stats.dropped_writes);
  cache->set_evicted_bytes(stats.evicted_bytes);
  cache->set_max_bytes(context.limits.max_store_bytes);
  out->set_queued_requests(context.engine->num_queued());
  out->set_running_requests(context.engine->num_running());
  out->set_live_handles(context.handles->size());
  const absl::Status health = context.engine->Health();
  out->set_unhealthy(std::string(health.message()));
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* AdminService::GetServerInfo(
    grpc::CallbackServerContext* call, const v1::GetServerInfoRequest*,
    v1::ServerInfo* response) {
  return RunUnary(call, context_->unary_pool,
                  [this, response] { return Info(*context_, response); });
}

grpc::ServerUnaryReactor* AdminService::Tokenize(
    grpc::CallbackServerContext* call, const v1::TokenizeRequest* request,
    v1::TokenizeResponse* response) {
  return RunUnary(call, context_->unary_pool, [this, request, response] {
    if (context_->tokenizer == nullptr) return NoTokenizer();
    const std::vector<int32_t> ids = context_->tokenizer->Encode(
        request->text(), {.add_special_tokens = request->add_special_tokens(),
                          .parse_special = !request->plain()});
    response->mutable_ids()->Assign(ids.begin(), ids.end());
    return absl::OkStatus();
  });
}

grpc::ServerUnaryReactor* AdminService::Detokenize(
    grpc::CallbackServerContext* call, const v1::DetokenizeRequest* request,
    v1::DetokenizeResponse* response) {
  return RunUnary(
      call, context_->unary_pool, [this, request, response]() -> absl::Status {
        if (context_->tokenizer == nullptr) return NoTokenizer();
        OVERTURE_ASSIGN_OR_RETURN(std::string text,
                                  context_->tokenizer->Decode(
                                      request->ids(), request->keep_special()));
        response->set_text(std::move(text));
        return absl::OkStatus();
      });
}

}  // namespace overture::service
