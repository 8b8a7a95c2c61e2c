// Digests. SHA-256 names things (a forged name would serve one prompt's KV for
// another); XXH3-64 guards bytes against damage, not against an attacker.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace overture {

struct Sha256Digest {
  std::array<uint8_t, 32> bytes{};

  friend auto operator<=>(const Sha256Digest&, const Sha256Digest&) = default;
  template <typename H>
  friend H AbslHashValue(H h, const Sha256Digest& digest) {
    return H::combine(std::move(h), digest.bytes);
  }

  absl::string_view AsStringView() const {
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  std::string Hex() const;  // 64 lower-case digits
};

// INVALID_ARGUMENT unless `hex` is 64 hexadecimal digits.
absl::StatusOr<Sha256Digest> ParseHexDigest(absl::string_view hex);
// INVALID_ARGUMENT unless `raw` is 32 bytes.
absl::StatusOr<Sha256Digest> DigestFromBytes(absl::string_view raw);

// Incremental SHA-256. Copyable: a copy continues from the same prefix, which
// is how one pass over a prompt yields the digest of many of its prefixes.
// Thread-compatible.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256& other);
  Sha256& operator=(const Sha256& other);

  void Update(const void* data, size_t size);
  void Update(absl::string_view bytes) { Update(bytes.data(), bytes.size()); }
  void UpdateU16(uint16_t value);  // little endian, like all below
  void UpdateU32(uint32_t value);
  void UpdateU64(uint64_t value);
  // Each id as a little-endian u32.
  void UpdateTokens(absl::Span<const int32_t> tokens);

  // Digest of what was fed so far; further updates continue from there.
  Sha256Digest Digest() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

uint64_t Xxh3(const void* data, size_t size);
inline uint64_t Xxh3(absl::string_view bytes) {
  return Xxh3(bytes.data(), bytes.size());
}

}  // namespace overture
