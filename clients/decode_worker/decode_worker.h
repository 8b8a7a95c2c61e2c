// The reference decode worker: gets the KV of a handle over gRPC and nothing
// else, places it in a Decoder, and answers. Shows other engines what a worker
// has to do (docs/clients.md):
//
//   1. Describe: refuse KV of other weights, or of another shape.
//   2. Fetch: append every KV head's rows where they are said to belong. Heads
//      of a view hold different numbers of rows.
//   3. Decode the first token, which the prefill has already chosen, at
//      position logical_length, whatever number of rows is held; and so on.
//
// DecoderSink: one thread. DecodeWorker: thread-safe, as each call decodes over
// KV of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/cpp/client.h"
#include "engine/decoder.h"
#include "engine/model_files.h"
#include "engine/tokenizer.h"

namespace overture::clients {

struct DecodeRequest {
  std::string handle;
  v1::FetchRequest::Source source = v1::FetchRequest::SOURCE_FULL;
  int64_t max_tokens = 128;  // >= 1
  // What follows the prefilled prompt before the answer: a question that the
  // prefill has not seen. Empty: the answer begins with the prefill's token.
  std::vector<int32_t> continuation;
};

struct DecodeResult {
  std::vector<int32_t> token_ids;  // without the EOS that ended it
  std::string text;                // empty if the model has no tokenizer
  // "eos", "max_tokens", or "max_positions" of the model.
  std::string stopped;
  int64_t logical_length = 0;  // of the fetched KV
  int64_t kv_bytes = 0;        // fetched
  int64_t chunks = 0;
  int32_t resumes = 0;
  double fetch_seconds = 0;
  double decode_seconds = 0;  // all steps, those of the continuation too
  int64_t steps = 0;
};

// Appends what a fetch delivers to a Decoder made for it. INVALID_ARGUMENT if
// the KV's shape is not the model's.
class DecoderSink : public KvSink {
 public:
  explicit DecoderSink(std::shared_ptr<const engine::DecoderModel> model)
      : model_(std::move(model)) {}

  absl::Status Begin(const KvFetchInfo& info) override;
  absl::Status Rows(const KvRows& rows) override;

  // Null before Begin.
  engine::Decoder* decoder() const { return decoder_.get(); }
  std::unique_ptr<engine::Decoder> TakeDecoder() { return std::move(decoder_); }

 private:
  // Shared with whoever decodes other handles over the same weights.
  std::shared_ptr<const engine::DecoderModel> model_;
  std::unique_ptr<engine::Decoder> decoder_;
  DType dtype_ = DType::kF32;
};

// A handle's KV where a decoder can use it.
struct FetchedKv {
  std::unique_ptr<engine::Decoder> decoder;
  int32_t first_token = 0;  // that the prefill chose
  FetchResult transfer;
};

class DecodeWorker {
 public:
  // `model` is what LoadModelFiles and Tokenizer::Load accept. A model without
  // tokenizer is fine: answers then have no text.
  static absl::StatusOr<std::unique_ptr<DecodeWorker>> Load(
      const std::string& model, engine::ComputeDType dtype);

  // Steps 1 and 2. FAILED_PRECONDITION if the KV was computed with other
  // weights.
  absl::StatusOr<FetchedKv> Fetch(OvertureClient& client,
                                  const std::string& handle,
                                  v1::FetchRequest::Source source) const;

  // All steps. Calls `on_text` with whole characters as they are decoded.
  absl::StatusOr<DecodeResult> Run(
      OvertureClient& client, const DecodeRequest& request,
      const std::function<void(absl::string_view)>& on_text) const;

  // Null if the model has none.
  const engine::Tokenizer* tokenizer() const { return tokenizer_.get(); }
  const engine::ModelFiles& files() const { return *files_; }

 private:
  DecodeWorker() = default;
  bool IsEos(int32_t token) const;

  std::unique_ptr<engine::ModelFiles> files_;
  std::unique_ptr<engine::Tokenizer> tokenizer_;  // null: the model has none
  // Shared with the Decoder of every Run.
  std::shared_ptr<const engine::DecoderModel> model_;
};

}  // namespace overture::clients
