#include "clients/cpp/fetch_check.h"

#include <limits>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/status_macros.h"

namespace overture::clients {
namespace {

template <typename... Parts>
absl::Status Damaged(const Parts&... parts) {
  return absl::DataLossError(absl::StrCat(parts...));
}

}  // namespace

absl::StatusOr<KvLayout> LayoutFromProto(const v1::KvLayout& layout) {
  if (!IsValidDType(static_cast<uint32_t>(layout.dtype()))) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_layout.dtype is ", static_cast<int>(layout.dtype()),
                     ", must be 1 to 3"));
  }
  KvLayout result{.num_layers = layout.num_layers(),
                  .num_kv_heads = layout.num_kv_heads(),
                  .head_dim = layout.head_dim(),
                  .dtype = static_cast<DType>(layout.dtype())};
  OVERTURE_RETURN_IF_ERROR(Validate(result));
  return result;
}

absl::StatusOr<FetchCheck> FetchCheck::Create(
    const v1::DescribeResponse& description, v1::FetchRequest::Source source,
    int32_t layer_begin, int32_t layer_end) {
  FetchCheck check;
  OVERTURE_ASSIGN_OR_RETURN(check.layout_,
                            LayoutFromProto(description.layout()));
  const KvLayout& layout = check.layout_;
  if (layer_end == 0) layer_end = layout.num_layers;
  if (layer_begin < 0 || layer_begin >= layer_end ||
      layer_end > layout.num_layers) {
    return absl::OutOfRangeError(
        absl::StrCat("layers [", layer_begin, ", ", layer_end,
                     ") are not within the ", layout.num_layers, " layers"));
  }
  check.layer_begin_ = layer_begin;
  check.layer_end_ = layer_end;
  check.weights_digest_ = description.weights_digest();
  check.logical_length_ = description.logical_length();
  if (check.logical_length_ < 1 ||
      check.logical_length_ > std::numeric_limits<int32_t>::max()) {
    return Damaged("the handle's logical length is ", check.logical_length_);
  }

  const size_t heads =
      static_cast<size_t>(layer_end - layer_begin) * layout.num_kv_heads;
  if (source == v1::FetchRequest::SOURCE_VIEW) {
    if (!description.has_view()) {
      return absl::FailedPreconditionError(
          "the handle has no view: prefill with `view`, or fetch the full KV");
    }
    const int64_t all =
        static_cast<int64_t>(layout.num_layers) * layout.num_kv_heads;
    if (description.view_rows_size() != all) {
      return Damaged("the handle describes ", description.view_rows_size(),
                     " view heads, its layout has ", all);
    }
    const size_t first = static_cast<size_t>(layer_begin) * layout.num_kv_heads;
    for (size_t i = 0; i < heads; ++i) {
      const int32_t rows = description.view_rows(static_cast<int>(first + i));
      if (rows < 1 || rows > check.logical_length_) {
        return Damaged("the handle's view has a head of ", rows, " rows over ",
                       check.logical_length_, " positions");
      }
      check.expected_rows_.push_back(rows);
    }
  } else {
    check.expected_rows_.assign(heads, check.logical_length_);
  }
  for (int64_t rows : check.expected_rows_) {
    check.total_bytes_ += 2 * layout.HeadBytes(rows);
  }
  check.rows_.assign(heads, 0);
  check.last_position_.assign(heads, -1);
  return check;
}

KvFetchInfo FetchCheck::info() const {
  return {.layout = layout_,
          .logical_length = logical_length_,
          .total_bytes = total_bytes_,
          .layer_begin = layer_begin_,
          .layer_end = layer_end_,
          .weights_digest = weights_digest_,
          .rows = expected_rows_};
}

absl::Status FetchCheck::Begin(const v1::FetchBegin& begin) {
  OVERTURE_ASSIGN_OR_RETURN(KvLayout layout, LayoutFromProto(begin.layout()));
  if (layout != layout_) {
    return Damaged("the stream's layout is ", ToString(layout),
                   ", the handle's ", ToString(layout_));
  }
  if (begin.logical_length() != logical_length_) {
    return Damaged("the stream's logical length is ", begin.logical_length(),
                   ", the handle's ", logical_length_);
  }
  if (begin.weights_digest() != weights_digest_) {
    return Damaged("the stream comes from other weights than the handle");
  }
  if (begin.total_bytes() != total_bytes_) {
    return Damaged("the stream announces ", begin.total_bytes(),
                   " bytes, the handle's rows take ", total_bytes_);
  }
  return absl::OkStatus();
}

absl::Status FetchCheck::Data(const v1::KvData& data) {
  if (data.stream_offset() < offset_) {
    return Damaged("the chunk at byte ", data.stream_offset(),
                   " came twice: ", offset_, " bytes had arrived");
  }
  if (data.stream_offset() > offset_) {
    return Damaged("bytes [", offset_, ", ", data.stream_offset(),
                   ") are missing");
  }
  const std::string where =
      absl::StrCat("chunk at byte ", offset_, ", layer ", data.layer(), ": ");
  if (data.layer() < layer_begin_ || data.layer() >= layer_end_) {
    return Damaged(where, "layers [", layer_begin_, ", ", layer_end_,
                   ") were asked for");
  }
  const int64_t head_end =
      int64_t{data.kv_head_begin()} + int64_t{data.num_kv_heads()};
  if (data.kv_head_begin() < 0 || data.num_kv_heads() < 1 ||
      head_end > layout_.num_kv_heads) {
    return Damaged(where, "KV heads [", data.kv_head_begin(), ", ", head_end,
                   ") of ", layout_.num_kv_heads);
  }
  if (data.num_rows() < 1) {
    return Damaged(where, "has ", data.num_rows(), " rows");
  }
  if (data.row_begin() < 0 || data.row_begin() >= logical_length_) {
    return Damaged(where, "begins at row ", data.row_begin(), " of ",
                   logical_length_);
  }
  const int64_t bytes =
      2 * data.num_kv_heads() * layout_.HeadBytes(data.num_rows());
  if (static_cast<int64_t>(data.payload().size()) != bytes) {
    return Damaged(where, "payload of ", data.payload().size(),
                   " bytes, its rows take ", bytes);
  }
  if (Xxh3(data.payload()) != data.checksum()) {
    return Damaged(where, "the checksum does not match the payload");
  }

  int64_t first_position = data.row_begin();
  int64_t last_position = data.row_begin() + data.num_rows() - 1;
  if (data.positions_size() > 0) {
    if (data.positions_size() != data.num_rows()) {
      return Damaged(where, data.positions_size(), " positions for ",
                     data.num_rows(), " rows");
    }
    for (int i = 1; i < data.positions_size(); ++i) {
      if (data.positions(i) <= data.positions(i - 1)) {
        return Damaged(where, "positions are not ascending at row ", i);
      }
    }
    first_position = data.positions(0);
    last_position = data.positions(data.positions_size() - 1);
  }
  if (last_position >= logical_length_) {
    return Damaged(where, "position ", last_position, " of ", logical_length_);
  }
  for (int32_t head = data.kv_head_begin(); head < head_end; ++head) {
    const size_t i = HeadIndex(data.layer(), head);
    if (data.row_begin() != rows_[i]) {
      return Damaged(where, "KV head ", head, " continues at row ",
                     data.row_begin(), ", row ", rows_[i], " is next");
    }
    if (rows_[i] + data.num_rows() > expected_rows_[i]) {
      return Damaged(where, "KV head ", head, " has ", expected_rows_[i],
                     " rows, this chunk ends at row ",
                     rows_[i] + data.num_rows());
    }
    if (first_position <= last_position_[i]) {
      return Damaged(where, "KV head ", head, " goes back to position ",
                     first_position);
    }
  }
  for (int32_t head = data.kv_head_begin(); head < head_end; ++head) {
    const size_t i = HeadIndex(data.layer(), head);
    rows_[i] += data.num_rows();
    last_position_[i] = last_position;
  }
  offset_ += bytes;
  ++num_chunks_;
  return absl::OkStatus();
}

absl::Status FetchCheck::End(const v1::FetchEnd& end) {
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i] == expected_rows_[i]) continue;
    return Damaged(
        "the stream ended after ", offset_, " of ", total_bytes_,
        " bytes: layer ",
        layer_begin_ + static_cast<int64_t>(i) / layout_.num_kv_heads,
        ", KV head ", i % layout_.num_kv_heads, " has ", rows_[i], " of ",
        expected_rows_[i], " rows");
  }
  if (end.total_bytes() != offset_ || end.num_chunks() != num_chunks_) {
    return Damaged("the stream ended with ", end.num_chunks(), " chunks, ",
                   end.total_bytes(), " bytes; ", num_chunks_, " chunks, ",
                   offset_, " bytes arrived");
  }
  return absl::OkStatus();
}

absl::Status DeliverRows(const KvLayout& layout, const v1::KvData& data,
                         KvSink& sink) {
  const auto* payload =
      reinterpret_cast<const std::byte*>(data.payload().data());
  const int64_t head_bytes = layout.HeadBytes(data.num_rows());
  const int64_t kind_bytes = data.num_kv_heads() * head_bytes;
  for (int32_t i = 0; i < data.num_kv_heads(); ++i) {
    const std::byte* k = payload + i * head_bytes;
    OVERTURE_RETURN_IF_ERROR(
        sink.Rows({.layer = data.layer(),
                   .kv_head = data.kv_head_begin() + i,
                   .row_begin = data.row_begin(),
                   .num_rows = data.num_rows(),
                   .positions = absl::MakeConstSpan(data.positions().data(),
                                                    data.positions_size()),
                   .k = absl::MakeConstSpan(k, head_bytes),
                   .v = absl::MakeConstSpan(k + kind_bytes, head_bytes)}));
  }
  return absl::OkStatus();
}

}  // namespace overture::clients
