#include "service/context.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "service/convert.h"

namespace overture::service {

absl::Status CallGate::Enter() {
  absl::MutexLock lock(&mutex_);
  if (draining_) {
    return absl::UnavailableError("server: shutting down, ask another one");
  }
  if (running_ >= limit_) {
    return absl::ResourceExhaustedError(
        absl::StrCat(what_, ": ", running_, " under way, limit ", limit_));
  }
  ++running_;
  return absl::OkStatus();
}

void CallGate::Leave() {
  absl::MutexLock lock(&mutex_);
  --running_;
}

void CallGate::Drain() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

bool CallGate::WaitIdle(absl::Time deadline) const {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return running_ == 0;
  };
  return mutex_.AwaitWithDeadline(absl::Condition(&idle), deadline);
}

int32_t CallGate::running() const {
  absl::MutexLock lock(&mutex_);
  return running_;
}

void RetryHint::Note(absl::Duration prefill) {
  // Half of the old, half of the new: follows a change of load within a few
  // prefills. A lost update between two threads costs nothing.
  const int64_t now = absl::ToInt64Milliseconds(prefill);
  millis_.store((millis_.load() + now) / 2);
}

int64_t RetryHint::Millis() const {
  return std::clamp<int64_t>(millis_.load(), 100, 60000);
}

void ModelInfoToProto(const ServiceContext& context, v1::ModelInfo* out) {
  const engine::ModelConfig& config = context.model();
  out->set_name(context.identity.name);
  out->set_architecture(config.architecture);
  out->set_weights_digest(
      std::string(context.identity.weights_digest.AsStringView()));
  out->set_tokenizer_digest(
      std::string(context.identity.tokenizer_digest.AsStringView()));
  out->set_vocab_size(config.vocab_size);
  out->set_max_positions(config.max_positions);
  for (int32_t id : config.eos_token_ids) out->add_eos_token_ids(id);
  LayoutToProto(context.layout(), out->mutable_kv_layout());
  // KV is kept in the compute dtype (engine/backend.h).
  out->set_compute_dtype(std::string(Name(context.layout().dtype)));
  out->set_backend(context.engine->backend().device_name());
}

}  // namespace overture::service
