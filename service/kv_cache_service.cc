#include "service/kv_cache_service.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "service/convert.h"
#include "service/fetch_stream.h"
#include "service/server_call.h"

namespace overture::service {
namespace {

int64_t NumTokens(absl::Span<const cache::SpanUse> spans) {
  int64_t tokens = 0;
  for (const cache::SpanUse& use : spans) tokens += use.use_tokens;
  return tokens;
}

absl::Status LookUp(const ServiceContext& context,
                    const v1::LookupRequest& request,
                    v1::LookupResponse* response) {
  std::vector<int32_t> encoded;
  absl::Span<const int32_t> tokens = request.token_ids();
  if (!request.text().empty()) {
    if (!tokens.empty()) {
      return absl::InvalidArgumentError(
          "text: set together with token_ids, send one of them");
    }
    if (context.tokenizer == nullptr) {
      return absl::FailedPreconditionError(
          "text: the served model has no tokenizer, send token_ids");
    }
    encoded =
        context.tokenizer->Encode(request.text(), {.add_special_tokens = true});
    tokens = encoded;
  }
  OVERTURE_RETURN_IF_ERROR(
      ValidateTokenIds(tokens, context.model().vocab_size, "token_ids"));
  if (tokens.empty()) {
    return absl::InvalidArgumentError(
        "token_ids: 0 tokens, must be at least 1");
  }
  const int64_t num_tokens = static_cast<int64_t>(tokens.size());
  if (num_tokens > context.engine->max_prompt_tokens()) {
    return absl::OutOfRangeError(
        absl::StrCat("token_ids: ", num_tokens, " tokens, limit ",
                     context.engine->max_prompt_tokens()));
  }
  OVERTURE_ASSIGN_OR_RETURN(
      const engine::SelectorSpec selector,
      SelectorFromProto(request.selector(), context.limits.default_selector,
                        context.limits.head_sizes));
  const cache::ChainPolicy policy = context.engine->ChainPolicyFor(selector);
  response->set_num_tokens(num_tokens);
  response->set_matched_tokens(
      NumTokens(context.cache->Lookup(policy, tokens, num_tokens)));
  const int64_t reusable =
      num_tokens - engine::Engine::UncachedTail(std::nullopt);
  if (reusable > 0) {
    response->set_reusable_tokens(
        NumTokens(context.cache->Lookup(policy, tokens, reusable)));
  }
  response->set_attention_policy(engine::PolicyText(selector));
  return absl::OkStatus();
}

absl::Status Describe(const ServiceContext& context,
                      const v1::DescribeRequest& request,
                      v1::DescribeResponse* response) {
  OVERTURE_ASSIGN_OR_RETURN(const HandleRegistry::Found found,
                            context.handles->Find(request.handle()));
  const HandleData& data = *found.data;
  response->set_handle(request.handle());
  LayoutToProto(data.layout, response->mutable_layout());
  response->set_logical_length(data.logical_length);
  response->set_attention_policy(data.attention_policy);
  response->set_weights_digest(
      std::string(context.identity.weights_digest.AsStringView()));
  response->set_full_bytes(data.layout.TotalBytes(NumTokens(data.spans)));
  if (data.view.has_value()) {
    response->set_has_view(true);
    response->set_view_bytes(data.view->TotalBytes());
    for (const auto& heads : data.view->plan.positions) {
      for (const auto& rows : heads) {
        response->add_view_rows(static_cast<int32_t>(rows.size()));
      }
    }
  }
  response->set_first_token(data.first_token);
  response->set_persisted(data.persisted);
  response->set_expires_in_ms(absl::ToInt64Milliseconds(found.expires_in));
  response->set_session_id(data.session_id);
  return absl::OkStatus();
}

}  // namespace

grpc::ServerUnaryReactor* KvCacheService::Lookup(
    grpc::CallbackServerContext* call, const v1::LookupRequest* request,
    v1::LookupResponse* response) {
  return RunUnary(call, context_->unary_pool, [this, request, response] {
    return LookUp(*context_, *request, response);
  });
}

grpc::ServerWriteReactor<v1::KvChunk>* KvCacheService::Fetch(
    grpc::CallbackServerContext* call, const v1::FetchRequest* request) {
  return new FetchStream(context_, call, *request);
}

grpc::ServerUnaryReactor* KvCacheService::Describe(
    grpc::CallbackServerContext* call, const v1::DescribeRequest* request,
    v1::DescribeResponse* response) {
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  reactor->Finish(ToGrpc(service::Describe(*context_, *request, response)));
  return reactor;
}

grpc::ServerUnaryReactor* KvCacheService::Release(
    grpc::CallbackServerContext* call, const v1::ReleaseRequest* request,
    v1::ReleaseResponse* response) {
  return RunUnary(call, context_->unary_pool, [this, request, response] {
    const std::vector<std::string> handles(request->handles().begin(),
                                           request->handles().end());
    response->set_released(context_->handles->Release(handles));
    return absl::OkStatus();
  });
}

}  // namespace overture::service
