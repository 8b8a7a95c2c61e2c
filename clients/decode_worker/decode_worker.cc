#include "clients/decode_worker/decode_worker.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "engine/stream_decoder.h"

namespace overture::clients {
namespace {

class Stopwatch {
 public:
  double Seconds() const { return absl::ToDoubleSeconds(absl::Now() - start_); }

 private:
  const absl::Time start_ = absl::Now();
};

// The KV is only good for the very weights that computed it.
absl::Status CheckWeights(const v1::DescribeResponse& description,
                          const Sha256Digest& own) {
  OVERTURE_ASSIGN_OR_RETURN(Sha256Digest theirs,
                            DigestFromBytes(description.weights_digest()));
  if (theirs == own) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("the KV was computed with weights ", theirs.Hex(),
                   ", this worker's model has ", own.Hex()));
}

}  // namespace

absl::Status DecoderSink::Begin(const KvFetchInfo& info) {
  const KvLayout& own = model_->kv_layout();
  if (info.layout.num_layers != own.num_layers ||
      info.layout.num_kv_heads != own.num_kv_heads ||
      info.layout.head_dim != own.head_dim) {
    return absl::InvalidArgumentError(
        absl::StrCat("the KV is ", ToString(info.layout),
                     ", this worker's model takes ", ToString(own)));
  }
  dtype_ = info.layout.dtype;
  OVERTURE_ASSIGN_OR_RETURN(
      decoder_, engine::Decoder::Create(model_, info.logical_length));
  return absl::OkStatus();
}

absl::Status DecoderSink::Rows(const KvRows& rows) {
  // Positions need no keeping: the keys carry their rotation, and every row
  // lies before the next token.
  return decoder_->AppendRows(rows.layer, rows.kv_head, dtype_, rows.k, rows.v);
}

absl::StatusOr<std::unique_ptr<DecodeWorker>> DecodeWorker::Load(
    const std::string& model, engine::ComputeDType dtype) {
  auto worker = std::unique_ptr<DecodeWorker>(new DecodeWorker());
  OVERTURE_ASSIGN_OR_RETURN(worker->files_, engine::LoadModelFiles(model));
  OVERTURE_ASSIGN_OR_RETURN(
      worker->model_, engine::DecoderModel::Create(*worker->files_, dtype));
  absl::StatusOr<std::unique_ptr<engine::Tokenizer>> tokenizer =
      engine::Tokenizer::Load(model);
  if (tokenizer.ok()) {
    worker->tokenizer_ = *std::move(tokenizer);
  } else {
    Log(Severity::kWarning, absl::StrCat("decode: answers have no text: ",
                                         tokenizer.status().message()));
  }
  return worker;
}

bool DecodeWorker::IsEos(int32_t token) const {
  const std::vector<int32_t>& eos = files_->config().eos_token_ids;
  return std::find(eos.begin(), eos.end(), token) != eos.end();
}

absl::StatusOr<FetchedKv> DecodeWorker::Fetch(
    OvertureClient& client, const std::string& handle,
    v1::FetchRequest::Source source) const {
  OVERTURE_ASSIGN_OR_RETURN(const v1::DescribeResponse description,
                            client.Describe(handle));
  OVERTURE_RETURN_IF_ERROR(CheckWeights(description, files_->weights_digest()));
  DecoderSink sink(model_);
  FetchedKv kv{.first_token = description.first_token()};
  OVERTURE_ASSIGN_OR_RETURN(kv.transfer,
                            client.Fetch(handle, {.source = source}, sink));
  kv.decoder = sink.TakeDecoder();
  return kv;
}

absl::StatusOr<DecodeResult> DecodeWorker::Run(
    OvertureClient& client, const DecodeRequest& request,
    const std::function<void(absl::string_view)>& on_text) const {
  if (request.max_tokens < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "max_tokens is ", request.max_tokens, ", must be at least 1"));
  }
  DecodeResult result;
  const Stopwatch fetching;
  OVERTURE_ASSIGN_OR_RETURN(const FetchedKv kv,
                            Fetch(client, request.handle, request.source));
  result.fetch_seconds = fetching.Seconds();
  result.kv_bytes = kv.transfer.bytes;
  result.chunks = kv.transfer.chunks;
  result.resumes = kv.transfer.resumes;
  engine::Decoder& decoder = *kv.decoder;
  result.logical_length = decoder.logical_length();

  std::optional<engine::StreamDecoder> stream;
  if (tokenizer_ != nullptr) stream.emplace(*tokenizer_);
  auto show = [&](const std::string& text) {
    if (text.empty()) return;
    result.text += text;
    if (on_text) on_text(text);
  };

  const Stopwatch decoding;
  int32_t token = kv.first_token;
  for (const int32_t id : request.continuation) {
    OVERTURE_ASSIGN_OR_RETURN(absl::Span<const float> logits, decoder.Step(id));
    ++result.steps;
    token = engine::Argmax(logits);
  }
  while (true) {
    if (IsEos(token)) {
      result.stopped = "eos";
      break;
    }
    result.token_ids.push_back(token);
    if (stream.has_value()) {
      OVERTURE_ASSIGN_OR_RETURN(std::string text, stream->Feed(token));
      show(text);
    }
    if (static_cast<int64_t>(result.token_ids.size()) == request.max_tokens) {
      result.stopped = "max_tokens";
      break;
    }
    if (decoder.logical_length() >= files_->config().max_positions) {
      result.stopped = "max_positions";
      break;
    }
    OVERTURE_ASSIGN_OR_RETURN(absl::Span<const float> logits,
                              decoder.Step(token));
    ++result.steps;
    token = engine::Argmax(logits);
  }
  result.decode_seconds = decoding.Seconds();
  if (stream.has_value()) show(stream->Flush());
  return result;
}

}  // namespace overture::clients
