// What each layer and query head keeps, as a model's own file has it. An
// immutable value: copies share one table. Thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/hash.h"
#include "kernels/selectors/vertical_slash.h"

namespace overture::engine {

class HeadSizes {
 public:
  // [layer][query head].
  using Table = std::vector<std::vector<kernels::VerticalSlashSize>>;

  HeadSizes() = default;  // none
  // INVALID_ARGUMENT names layer and head unless each layer has as many heads
  // as the first, at least one, and Validate takes each size.
  static absl::StatusOr<HeadSizes> Create(Table table);

  bool empty() const { return data_ == nullptr; }
  int32_t num_layers() const;
  int32_t num_q_heads() const;
  // REQUIRES a layer of the table.
  absl::Span<const kernels::VerticalSlashSize> layer(int32_t layer) const;
  // SHA-256 of the sizes; zeros if empty. Equal digests are equal tables.
  Sha256Digest digest() const;

  friend bool operator==(const HeadSizes& a, const HeadSizes& b) {
    return a.digest() == b.digest();
  }

 private:
  struct Data {
    Table table;
    Sha256Digest digest;
  };
  // Shared by the server that read the file and every request that runs by it.
  std::shared_ptr<const Data> data_;
};

}  // namespace overture::engine
