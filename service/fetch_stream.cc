#include "service/fetch_stream.h"

#include <algorithm>
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

absl::Status ChunkReader::LoadRecords(const FetchChunk& chunk) {
  const KvLayout& layout = data_->layout;
  const int64_t row_end = chunk.row_begin + chunk.num_rows;
  std::vector<Record> kept;
  kept.swap(records_);
  // The span that holds the chunk's first row.
  size_t span_idx =
      std::upper_bound(data_->spans.begin(), data_->spans.end(),
                       chunk.row_begin,
                       [](int64_t row, const cache::SpanUse& use) {
                         return row < use.span.token_begin;
                       }) -
      data_->spans.begin() - 1;
  for (int64_t row = chunk.row_begin; row < row_end;) {
    const cache::SpanUse& use = data_->spans[span_idx];
    Record record{.layer = chunk.layer, .span_idx = span_idx};
    record.block =
        static_cast<int32_t>((row - use.span.token_begin) / kTokensPerBlock);
    record.row_begin = use.span.token_begin + record.block * kTokensPerBlock;
    record.num_rows =
        std::min(kTokensPerBlock, use.span.token_end() - record.row_begin);
    const auto same =
        std::find_if(kept.begin(), kept.end(), [&record](const Record& other) {
          return other.layer == record.layer &&
                 other.span_idx == record.span_idx &&
                 other.block == record.block;
        });
    if (same != kept.end()) {
      record.bytes = std::move(same->bytes);
    } else {
      absl::StatusOr<std::string> bytes =
          cache_->ReadRecord(layout, use.span, record.layer, record.block);
      const int64_t expected = layout.LayerBytes(record.num_rows);
      if (bytes.ok() && static_cast<int64_t>(bytes->size()) != expected) {
        bytes = absl::DataLossError(
            absl::StrCat(bytes->size(), " bytes, not ", expected));
      }
      if (!bytes.ok()) {
        // A leased record that is gone was removed as damaged: the caller's way
        // out is the same.
        const absl::StatusCode code = absl::IsNotFound(bytes.status())
                                          ? absl::StatusCode::kDataLoss
                                          : bytes.status().code();
        return absl::Status(
            code,
            absl::StrCat("layer ", record.layer, ", positions from ",
                         record.row_begin, ": ", bytes.status().message()));
      }
      record.bytes = *std::move(bytes);
    }
    const int64_t span_end = use.span.token_begin + use.use_tokens;
    row = std::min(record.row_end(), span_end);
    if (row == span_end) ++span_idx;
    records_.push_back(std::move(record));
  }
  return absl::OkStatus();
}

absl::Status ChunkReader::ReadFull(const FetchChunk& chunk,
                                   std::string* payload) {
  const KvLayout& layout = data_->layout;
  OVERTURE_RETURN_IF_ERROR(LoadRecords(chunk));
  if (records_.size() == 1 && chunk.num_kv_heads == layout.num_kv_heads &&
      chunk.num_rows == records_[0].num_rows) {
    // The record is the payload, and nobody else wants it.
    *payload = std::move(records_[0].bytes);
    records_.clear();
    return absl::OkStatus();
  }
  payload->resize(chunk.payload_bytes);
  const int64_t chunk_end = chunk.row_begin + chunk.num_rows;
  for (size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    const int64_t begin = std::max(chunk.row_begin, record.row_begin);
    // The next record may begin before this one ends: a span used in part.
    const int64_t end =
        i + 1 < records_.size() ? records_[i + 1].row_begin : chunk_end;
    for (int32_t kind = 0; kind < 2; ++kind) {
      for (int32_t h = 0; h < chunk.num_kv_heads; ++h) {
        const int64_t from_head =
            int64_t{kind} * layout.num_kv_heads + chunk.kv_head_begin + h;
        const int64_t to_head = int64_t{kind} * chunk.num_kv_heads + h;
        std::memcpy(
            payload->data() + layout.HeadBytes(to_head * chunk.num_rows +
                                               (begin - chunk.row_begin)),
            record.bytes.data() + layout.HeadBytes(from_head * record.num_rows +
                                                   (begin - record.row_begin)),
            layout.HeadBytes(end - begin));
      }
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
  int64_t kept_rows = 0;
  for (const cache::SpanUse& use : found.data->spans) {
    kept_rows += use.use_tokens;
  }
  if (!from_view && kept_rows != found.data->logical_length) {
    return absl::FailedPreconditionError(
        "source: SOURCE_FULL, but neither disk nor memory could hold the full "
        "KV of this handle; its Done event said why");
  }
  const FetchPlan::Range range{.layer_begin = request.layer_begin(),
                               .layer_end = request.layer_end(),
                               .chunk_bytes = request.max_chunk_bytes()};
  const HandleData& data = *found.data;
  OVERTURE_ASSIGN_OR_RETURN(
      FetchPlan plan,
      from_view ? FetchPlan::ForView(data.layout, data.view->plan, range)
                : FetchPlan::ForFull(data.layout, data.logical_length, range));
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
