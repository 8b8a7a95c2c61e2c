#include "base/hash.h"

#include <openssl/evp.h>
#include <xxhash.h>

#include <bit>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace overture {

static_assert(std::endian::native == std::endian::little,
              "on-disk and hashed integers are little endian; a big-endian "
              "port must swap here and in cache/record_format.cc");

std::string Sha256Digest::Hex() const {
  return absl::BytesToHexString(AsStringView());
}

absl::StatusOr<Sha256Digest> ParseHexDigest(absl::string_view hex) {
  Sha256Digest digest;
  bool ok = hex.size() == 2 * digest.bytes.size();
  for (char c : hex) ok = ok && absl::ascii_isxdigit(c);
  if (!ok) {
    return absl::InvalidArgumentError(
        absl::StrCat("a digest must be 64 hexadecimal digits, got ", hex.size(),
                     " characters"));
  }
  const std::string raw = absl::HexStringToBytes(hex);
  std::memcpy(digest.bytes.data(), raw.data(), raw.size());
  return digest;
}

absl::StatusOr<Sha256Digest> DigestFromBytes(absl::string_view raw) {
  Sha256Digest digest;
  if (raw.size() != digest.bytes.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a digest must be 32 bytes, got ", raw.size()));
  }
  std::memcpy(digest.bytes.data(), raw.data(), raw.size());
  return digest;
}

struct Sha256::Impl {
  Impl() : ctx(EVP_MD_CTX_new()) { OVERTURE_CHECK(ctx != nullptr); }
  ~Impl() { EVP_MD_CTX_free(ctx); }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  EVP_MD_CTX* ctx;
};

Sha256::Sha256() : impl_(std::make_unique<Impl>()) {
  OVERTURE_CHECK(EVP_DigestInit_ex(impl_->ctx, EVP_sha256(), nullptr) == 1);
}
Sha256::~Sha256() = default;
Sha256::Sha256(const Sha256& other) : impl_(std::make_unique<Impl>()) {
  OVERTURE_CHECK(EVP_MD_CTX_copy_ex(impl_->ctx, other.impl_->ctx) == 1);
}
Sha256& Sha256::operator=(const Sha256& other) {
  if (this != &other) {
    OVERTURE_CHECK(EVP_MD_CTX_copy_ex(impl_->ctx, other.impl_->ctx) == 1);
  }
  return *this;
}

void Sha256::Update(const void* data, size_t size) {
  OVERTURE_CHECK(EVP_DigestUpdate(impl_->ctx, data, size) == 1);
}
void Sha256::UpdateU16(uint16_t value) { Update(&value, sizeof(value)); }
void Sha256::UpdateU32(uint32_t value) { Update(&value, sizeof(value)); }
void Sha256::UpdateU64(uint64_t value) { Update(&value, sizeof(value)); }
void Sha256::UpdateTokens(absl::Span<const int32_t> tokens) {
  Update(tokens.data(), tokens.size() * sizeof(int32_t));
}

Sha256Digest Sha256::Digest() const {
  Sha256 copy(*this);
  Sha256Digest digest;
  unsigned int size = 0;
  OVERTURE_CHECK(
      EVP_DigestFinal_ex(copy.impl_->ctx, digest.bytes.data(), &size) == 1);
  OVERTURE_CHECK(size == digest.bytes.size());
  return digest;
}

uint64_t Xxh3(const void* data, size_t size) { return XXH3_64bits(data, size); }

}  // namespace overture
