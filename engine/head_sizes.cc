#include "engine/head_sizes.h"

#include <bit>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace overture::engine {
namespace {

Sha256Digest DigestOf(const HeadSizes::Table& table) {
  Sha256 sha;
  sha.Update("head_sizes/2");
  sha.UpdateU64(table.size());
  sha.UpdateU64(table[0].size());
  for (const auto& layer : table) {
    for (const kernels::VerticalSlashSize& size : layer) {
      for (const int32_t value :
           {size.vertical, size.slash, size.forced_columns,
            size.forced_distances, size.blocks.count,
            static_cast<int32_t>(size.blocks.correct_means)}) {
        sha.UpdateU32(static_cast<uint32_t>(value));
      }
      for (const float value : {size.mass, size.blocks.threshold}) {
        sha.UpdateU32(std::bit_cast<uint32_t>(value));
      }
    }
  }
  return sha.Digest();
}

absl::Status Check(const HeadSizes::Table& table) {
  if (table.empty() || table[0].empty()) {
    return absl::InvalidArgumentError("there are no layers or no heads");
  }
  for (size_t layer = 0; layer < table.size(); ++layer) {
    if (table[layer].size() != table[0].size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", layer, " has ", table[layer].size(),
                       " heads, layer 0 has ", table[0].size()));
    }
    for (size_t head = 0; head < table[layer].size(); ++head) {
      OVERTURE_RETURN_IF_ERROR(
          WithContext(kernels::Validate(table[layer][head]),
                      absl::StrCat("layer ", layer, ", head ", head)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<HeadSizes> HeadSizes::Create(Table table) {
  absl::Status status = Check(table);
  if (!status.ok()) return status;
  Sha256Digest digest = DigestOf(table);
  HeadSizes sizes;
  sizes.data_ = std::make_shared<const Data>(std::move(table), digest);
  return sizes;
}

int32_t HeadSizes::num_layers() const {
  return empty() ? 0 : static_cast<int32_t>(data_->table.size());
}

int32_t HeadSizes::num_q_heads() const {
  return empty() ? 0 : static_cast<int32_t>(data_->table[0].size());
}

absl::Span<const kernels::VerticalSlashSize> HeadSizes::layer(
    int32_t layer) const {
  OVERTURE_CHECK(layer >= 0 && layer < num_layers());
  return data_->table[layer];
}

Sha256Digest HeadSizes::digest() const {
  return empty() ? Sha256Digest() : data_->digest;
}

}  // namespace overture::engine
