#include "base/kv_layout.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace overture {
namespace {

absl::Status CheckRange(const char* field, int64_t value, int64_t limit) {
  if (value >= 1 && value <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "kv_layout.", field, " is ", value, ", must be in [1, ", limit, "]"));
}

}  // namespace

absl::Status Validate(const KvLayout& layout) {
  OVERTURE_RETURN_IF_ERROR(CheckRange("num_layers", layout.num_layers, 4096));
  OVERTURE_RETURN_IF_ERROR(
      CheckRange("num_kv_heads", layout.num_kv_heads, 1024));
  OVERTURE_RETURN_IF_ERROR(CheckRange("head_dim", layout.head_dim, 1024));
  if (!IsValidDType(static_cast<uint32_t>(layout.dtype))) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_layout.dtype is ", static_cast<uint32_t>(layout.dtype),
                     ", must be 1 to 3"));
  }
  return absl::OkStatus();
}

std::string ToString(const KvLayout& layout) {
  return absl::StrCat(layout.num_layers, " layers x ", layout.num_kv_heads,
                      " KV heads x ", layout.head_dim, ", ",
                      Name(layout.dtype));
}

void GatherRows(const KvLayout& layout, const LayerKvView& kv,
                int64_t row_begin, int64_t num_rows, std::byte* dst) {
  OVERTURE_CHECK(row_begin >= 0 && num_rows >= 0 &&
                 row_begin + num_rows <= kv.num_rows);
  const int64_t offset = layout.HeadBytes(row_begin);
  const int64_t bytes = layout.HeadBytes(num_rows);
  for (const std::byte* base : {kv.k, kv.v}) {
    for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
      std::memcpy(dst, base + head * kv.head_stride_bytes + offset, bytes);
      dst += bytes;
    }
  }
}

void ScatterRows(const KvLayout& layout, const std::byte* src,
                 int64_t row_begin, int64_t num_rows,
                 const MutableLayerKvView& kv) {
  OVERTURE_CHECK(row_begin >= 0 && num_rows >= 0 &&
                 row_begin + num_rows <= kv.num_rows);
  const int64_t offset = layout.HeadBytes(row_begin);
  const int64_t bytes = layout.HeadBytes(num_rows);
  for (std::byte* base : {kv.k, kv.v}) {
    for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
      std::memcpy(base + head * kv.head_stride_bytes + offset, src, bytes);
      src += bytes;
    }
  }
}

}  // namespace overture
