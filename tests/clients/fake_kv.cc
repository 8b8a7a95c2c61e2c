#include "tests/clients/fake_kv.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/hash.h"

namespace overture::testing {
namespace {

constexpr int kLayers = 2;
constexpr int kHeads = 2;
constexpr int kDim = 4;

float Value(int layer, int head, int64_t position, bool is_v) {
  return static_cast<float>(layer * 1000 + head * 100 + position * 2 +
                            (is_v ? 1 : 0));
}

std::vector<uint32_t> ViewPositions(int layer, int head) {
  std::vector<uint32_t> positions;
  const int rows = 3 + layer + head;
  // Every other position, the last row at the last one.
  for (int r = 0; r < rows; ++r) {
    positions.push_back(static_cast<uint32_t>(kFakeTokens - rows + r));
  }
  positions[0] = 0;
  return positions;
}

void FillDescription(v1::KvLayout* layout) {
  layout->set_num_layers(kLayers);
  layout->set_num_kv_heads(kHeads);
  layout->set_head_dim(kDim);
  layout->set_dtype(v1::DTYPE_F32);
  layout->set_tokens_per_block(256);
}

std::string RowText(int layer, int head, int64_t row, int64_t position) {
  return absl::StrCat(layer, "/", head, "/", row, "@", position);
}

}  // namespace

v1::DescribeResponse FakeDescription() {
  v1::DescribeResponse description;
  description.set_handle("h1");
  FillDescription(description.mutable_layout());
  description.set_logical_length(kFakeTokens);
  description.set_weights_digest(std::string(32, 'w'));
  description.set_has_view(true);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kHeads; ++head) {
      description.add_view_rows(
          static_cast<int>(ViewPositions(layer, head).size()));
    }
  }
  return description;
}

void FillPayload(v1::KvData* data) {
  std::string payload;
  for (bool is_v : {false, true}) {
    for (int h = 0; h < data->num_kv_heads(); ++h) {
      for (int r = 0; r < data->num_rows(); ++r) {
        const int64_t position = data->positions_size() > 0
                                     ? data->positions(r)
                                     : data->row_begin() + r;
        const float value =
            Value(data->layer(), data->kv_head_begin() + h, position, is_v);
        for (int d = 0; d < kDim; ++d) {
          payload.append(reinterpret_cast<const char*>(&value), sizeof(value));
        }
      }
    }
  }
  data->set_checksum(Xxh3(payload));
  data->set_payload(std::move(payload));
}

std::vector<v1::KvChunk> FakeStream(bool view) {
  std::vector<v1::KvChunk> chunks(1);
  int64_t offset = 0;
  auto add = [&](v1::KvData data) {
    data.set_stream_offset(offset);
    FillPayload(&data);
    offset += static_cast<int64_t>(data.payload().size());
    *chunks.emplace_back().mutable_data() = std::move(data);
  };
  for (int layer = 0; layer < kLayers; ++layer) {
    if (view) {
      for (int head = 0; head < kHeads; ++head) {
        const std::vector<uint32_t> positions = ViewPositions(layer, head);
        for (size_t row = 0; row < positions.size(); row += 2) {
          const size_t end = std::min(row + 2, positions.size());
          v1::KvData data;
          data.set_layer(layer);
          data.set_kv_head_begin(head);
          data.set_num_kv_heads(1);
          data.set_row_begin(static_cast<int64_t>(row));
          data.set_num_rows(static_cast<int>(end - row));
          for (size_t i = row; i < end; ++i) data.add_positions(positions[i]);
          add(std::move(data));
        }
      }
    } else {
      for (int64_t row = 0; row < kFakeTokens; row += 4) {
        v1::KvData data;
        data.set_layer(layer);
        data.set_num_kv_heads(kHeads);
        data.set_row_begin(row);
        data.set_num_rows(
            static_cast<int>(std::min<int64_t>(4, kFakeTokens - row)));
        add(std::move(data));
      }
    }
  }
  v1::FetchBegin* begin = chunks.front().mutable_begin();
  FillDescription(begin->mutable_layout());
  begin->set_logical_length(kFakeTokens);
  begin->set_total_bytes(offset);
  begin->set_weights_digest(std::string(32, 'w'));
  v1::FetchEnd* end = chunks.emplace_back().mutable_end();
  end->set_total_bytes(offset);
  end->set_num_chunks(static_cast<int64_t>(chunks.size()) - 2);
  return chunks;
}

int64_t PayloadBytes(const std::vector<v1::KvChunk>& chunks) {
  int64_t bytes = 0;
  for (const v1::KvChunk& chunk : chunks) {
    bytes += static_cast<int64_t>(chunk.data().payload().size());
  }
  return bytes;
}

absl::Status RecordingSink::Begin(const clients::KvFetchInfo&) {
  ++begins;
  return absl::OkStatus();
}

absl::Status RecordingSink::Rows(const clients::KvRows& rows) {
  for (int64_t r = 0; r < rows.num_rows; ++r) {
    const int64_t position =
        rows.positions.empty() ? rows.row_begin + r : rows.positions[r];
    rows_seen.push_back(
        RowText(rows.layer, rows.kv_head, rows.row_begin + r, position));
    bool right = true;
    for (bool is_v : {false, true}) {
      const float want = Value(rows.layer, rows.kv_head, position, is_v);
      for (int d = 0; d < kDim; ++d) {
        float got = 0;
        std::memcpy(&got,
                    (is_v ? rows.v : rows.k).data() +
                        (r * kDim + d) * static_cast<int64_t>(sizeof(float)),
                    sizeof(got));
        right = right && got == want;
      }
    }
    wrong_rows += right ? 0 : 1;
  }
  return answer;
}

std::vector<std::string> ExpectedRows(bool view) {
  std::vector<std::string> rows;
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kHeads; ++head) {
      const std::vector<uint32_t> positions = ViewPositions(layer, head);
      const int64_t count =
          view ? static_cast<int64_t>(positions.size()) : kFakeTokens;
      for (int64_t r = 0; r < count; ++r) {
        rows.push_back(RowText(layer, head, r, view ? positions[r] : r));
      }
    }
  }
  return rows;
}

}  // namespace overture::testing
