#include "service/fetch_stream.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "service/convert.h"
#include "service/server_call.h"

namespace overture::service {

absl::Status ChunkReader::Read(const FetchChunk& chunk, v1::KvData* out) {
  out->Clear();
  out->set_layer(chunk.layer);
  out->set_kv_head_begin(chunk.kv_head_begin);
  out->set_num_kv_heads(chunk.num_kv_heads);
  out->set_row_begin(chunk.row_begin);
  out->set_num_rows(chunk.num_rows);
  out->set_stream_offset(chunk.stream_offset);
  if (from_view_) {
    ReadView(chunk, out);
  } else {
    OVERTURE_RETURN_IF_ERROR(ReadFull(chunk, out->mutable_payload()));
  }
  out->set_checksum(Xxh3(out->payload()));
  return absl::OkStatus();
}

absl::Status ChunkReader::ReadFull(const FetchChunk& chunk,
                                   std::string* payload) {
  const KvLayout& layout = data_->layout;
  const cache::SpanInfo& span = data_->spans[chunk.span_idx].span;
  if (record_layer_ != chunk.layer || record_span_ != chunk.span_idx ||
      record_block_ != chunk.block) {
    record_layer_ = -1;
    absl::StatusOr<std::string> record =
        cache_->ReadRecord(layout, span, chunk.layer, chunk.block);
    if (record.ok() && static_cast<int64_t>(record->size()) !=
                           layout.LayerBytes(chunk.record_rows)) {
      record = absl::DataLossError(
          absl::StrCat(record->size(), " bytes, not ",
                       layout.LayerBytes(chunk.record_rows)));
    }
    if (!record.ok()) {
      // A leased record that is gone was removed as damaged: the caller's way
      // out is the same.
      const absl::StatusCode code = absl::IsNotFound(record.status())
                                        ? absl::StatusCode::kDataLoss
                                        : record.status().code();
      return absl::Status(
          code, absl::StrCat("layer ", chunk.layer, ", positions from ",
                             chunk.row_begin, ": ", record.status().message()));
    }
    record_ = *std::move(record);
    record_layer_ = chunk.layer;
    record_span_ = chunk.span_idx;
    record_block_ = chunk.block;
  }
  if (chunk.num_kv_heads == layout.num_kv_heads &&
      chunk.num_rows == chunk.record_rows) {
    // The record is the payload, and nobody else wants it.
    *payload = std::move(record_);
    record_layer_ = -1;
    return absl::OkStatus();
  }
  payload->resize(chunk.payload_bytes);
  const int64_t rows_bytes = layout.HeadBytes(chunk.num_rows);
  char* dst = payload->data();
  for (int kind = 0; kind < 2; ++kind) {
    for (int32_t h = 0; h < chunk.num_kv_heads; ++h) {
      const int64_t head =
          int64_t{kind} * layout.num_kv_heads + chunk.kv_head_begin + h;
      std::memcpy(dst,
                  record_.data() + head * layout.HeadBytes(chunk.record_rows) +
                      layout.HeadBytes(chunk.record_row),
                  rows_bytes);
      dst += rows_bytes;
    }
  }
  return absl::OkStatus();
}

void ChunkReader::ReadView(const FetchChunk& chunk, v1::KvData* out) {
  const KvLayout& layout = data_->layout;
  const engine::ViewData& view = *data_->view;
  const auto& heads = view.plan.positions[chunk.layer];
  const std::byte* src = view.layers[chunk.layer].data();
  for (int32_t h = 0; h < chunk.kv_head_begin; ++h) {
    src += 2 * layout.HeadBytes(static_cast<int64_t>(heads[h].size()));
  }
  const auto& positions = heads[chunk.kv_head_begin];
  const int64_t head_bytes =
      layout.HeadBytes(static_cast<int64_t>(positions.size()));
  const int64_t rows_bytes = layout.HeadBytes(chunk.num_rows);
  std::string* payload = out->mutable_payload();
  payload->resize(chunk.payload_bytes);
  src += layout.HeadBytes(chunk.row_begin);
  std::memcpy(payload->data(), src, rows_bytes);
  std::memcpy(payload->data() + rows_bytes, src + head_bytes, rows_bytes);
  const auto first = positions.begin() + chunk.row_begin;
  out->mutable_positions()->Assign(first, first + chunk.num_rows);
}

FetchStream::FetchStream(const ServiceContext* context,
                         grpc::CallbackServerContext* call,
                         const v1::FetchRequest& request)
    : context_(*context), call_(call) {
  absl::Status status = context_.fetches->Enter();
  entered_ = status.ok();
  if (status.ok()) status = Begin(request);
  if (status.ok()) {
    StartWrite(&message_);
  } else {
    End(status);
  }
}

absl::Status FetchStream::Begin(const v1::FetchRequest& request) {
  bool from_view = false;
  switch (request.source()) {
    case v1::FetchRequest::SOURCE_UNSPECIFIED:
    case v1::FetchRequest::SOURCE_FULL:
      break;
    case v1::FetchRequest::SOURCE_VIEW:
      from_view = true;
      break;
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("source: ", static_cast<int>(request.source()),
                       " is not SOURCE_FULL or SOURCE_VIEW"));
  }
  OVERTURE_ASSIGN_OR_RETURN(HandleRegistry::Found found,
                            context_.handles->Find(request.handle()));
  if (from_view && !found.data->view.has_value()) {
    return absl::FailedPreconditionError(
        "source: SOURCE_VIEW, but the prefill of this handle asked for no "
        "view");
  }
  if (!from_view && found.data->spans.empty()) {
    return absl::FailedPreconditionError(
        "source: SOURCE_FULL, but the full KV of this handle was not kept (the "
        "prefill said no_store, or nothing could hold it)");
  }
  const FetchPlan::Range range{.layer_begin = request.layer_begin(),
                               .layer_end = request.layer_end(),
                               .chunk_bytes = request.max_chunk_bytes()};
  const HandleData& data = *found.data;
  OVERTURE_ASSIGN_OR_RETURN(
      FetchPlan plan,
      from_view ? FetchPlan::ForView(data.layout, data.view->plan, range)
                : FetchPlan::ForFull(data.layout, data.spans, range));
  OVERTURE_ASSIGN_OR_RETURN(next_, plan.ChunkAt(request.resume_offset()));

  v1::FetchBegin* begin = message_.mutable_begin();
  LayoutToProto(data.layout, begin->mutable_layout());
  begin->set_logical_length(data.logical_length);
  begin->set_total_bytes(plan.total_bytes());
  begin->set_weights_digest(
      std::string(context_.identity.weights_digest.AsStringView()));
  plan_ = std::make_unique<FetchPlan>(std::move(plan));
  reader_ = std::make_unique<ChunkReader>(context_.cache, std::move(found.data),
                                          from_view);
  return absl::OkStatus();
}

void FetchStream::OnWriteDone(bool ok) {
  if (!ok || cancelled_) {
    End(absl::CancelledError("the caller is gone"));
  } else if (ended_) {
    End(absl::OkStatus());
  } else {
    context_.fetch_pool->Run([this] { WriteNext(); });
  }
}

void FetchStream::WriteNext() {
  if (cancelled_) return End(absl::CancelledError("the caller is gone"));
  if (next_ == plan_->num_chunks()) {
    v1::FetchEnd* end = message_.mutable_end();
    end->set_total_bytes(plan_->total_bytes());
    end->set_num_chunks(plan_->num_chunks());
    ended_ = true;
  } else {
    const absl::Status status =
        reader_->Read(plan_->chunk(next_), message_.mutable_data());
    if (!status.ok()) return End(status);
    ++next_;
  }
  StartWrite(&message_);
}

void FetchStream::End(const absl::Status& status) {
  AddRetryDelay(call_, status, context_.retry->Millis());
  Finish(ToGrpc(status));
}

void FetchStream::OnDone() {
  if (entered_) context_.fetches->Leave();
  delete this;
}

}  // namespace overture::service
