#include "tests/cache/cache_test_util.h"

#include <stdlib.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace overture::cache {
namespace {

uint64_t Mix(uint64_t x) {  // splitmix64
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

FastTempDir::FastTempDir() {
  std::error_code error;
  const auto space = std::filesystem::space("/dev/shm", error);
  constexpr uintmax_t kNeeded = 512 << 20;
  const bool in_memory = !error && space.available > kNeeded &&
                         access("/dev/shm", W_OK | X_OK) == 0;
  path_ = in_memory ? std::string("/dev/shm")
                    : std::filesystem::temp_directory_path().string();
  path_ += "/overture-test-XXXXXX";
  OVERTURE_CHECK(mkdtemp(path_.data()) != nullptr);
}

FastTempDir::~FastTempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

ChainPolicy DensePolicy(const KvLayout& layout, uint8_t root) {
  ChainPolicy policy;
  policy.root.bytes.fill(root);
  policy.layout = layout;
  return policy;
}

ChainPolicy SparsePolicy(const KvLayout& layout, uint8_t root) {
  ChainPolicy policy = DensePolicy(layout, root);
  policy.spans = SegmentRule::Uniform(512);
  policy.token_pure = false;
  return policy;
}

std::vector<int32_t> Prompt(uint64_t seed, int64_t count) {
  std::vector<int32_t> tokens(count);
  for (int64_t i = 0; i < count; ++i) {
    tokens[i] = static_cast<int32_t>(Mix(Mix(seed) + i) % 50000);
  }
  return tokens;
}

CanaryLayer::CanaryLayer(const KvLayout& layout,
                         absl::Span<const int32_t> tokens, int32_t layer)
    : layout_(layout),
      num_rows_(static_cast<int64_t>(tokens.size())),
      bytes_(layout.LayerBytes(num_rows_)) {
  const int64_t row_bytes = layout.HeadBytes(1);
  OVERTURE_CHECK(row_bytes % 8 == 0);
  std::byte* out = bytes_.data();
  for (int32_t side = 0; side < 2 * layout.num_kv_heads; ++side) {
    for (int64_t row = 0; row < num_rows_; ++row) {
      const uint64_t place = Mix(static_cast<uint64_t>(side) << 48 |
                                 static_cast<uint64_t>(layer) << 32 | row) ^
                             static_cast<uint64_t>(tokens[row]);
      for (int64_t i = 0; i < row_bytes; i += 8, out += 8) {
        const uint64_t value = Mix(place + i);
        std::memcpy(out, &value, 8);
      }
    }
  }
}

LayerKvView CanaryLayer::view() const {
  const int64_t head_bytes = layout_.HeadBytes(num_rows_);
  return {.k = bytes_.data(),
          .v = bytes_.data() + layout_.num_kv_heads * head_bytes,
          .num_rows = num_rows_,
          .head_stride_bytes = head_bytes};
}

std::string CanaryRecord(const KvLayout& layout,
                         absl::Span<const int32_t> tokens, int32_t layer,
                         int64_t begin, int64_t rows) {
  const CanaryLayer kv(layout, tokens, layer);
  std::string record(layout.LayerBytes(rows), '\0');
  GatherRows(layout, kv.view(), begin, rows,
             reinterpret_cast<std::byte*>(record.data()));
  return record;
}

CommitResult Store(KvCache& cache, const ChainPolicy& policy,
                   absl::Span<const int32_t> tokens, const PrefixMatch& match) {
  auto writer = cache.NewWriter(policy, PlanSpans(policy, match.spans, tokens));
  OVERTURE_CHECK(writer.ok());
  for (int32_t layer = 0; layer < policy.layout.num_layers; ++layer) {
    const CanaryLayer kv(policy.layout, tokens, layer);
    (*writer)->PutLayer(layer, kv.view());
  }
  return (*writer)->Commit({});
}

int64_t Turn(KvCache& cache, const ChainPolicy& policy,
             absl::Span<const int32_t> tokens, int64_t window) {
  const PrefixMatch match =
      cache.Match(policy, tokens, static_cast<int64_t>(tokens.size()) - window);
  OVERTURE_CHECK(CheckCanary(cache, policy, match.spans, tokens).ok());
  OVERTURE_CHECK(Store(cache, policy, tokens, match).persisted);
  return match.num_tokens;
}

absl::Status CheckCanary(KvCache& cache, const ChainPolicy& policy,
                         absl::Span<const SpanUse> spans,
                         absl::Span<const int32_t> tokens) {
  int64_t rows = 0;
  for (const SpanUse& use : spans) rows += use.use_tokens;
  if (rows == 0) return absl::OkStatus();
  const KvLayout& layout = policy.layout;
  std::vector<std::byte> bytes(layout.LayerBytes(rows));
  const MutableLayerKvView dst = {
      .k = bytes.data(),
      .v = bytes.data() + layout.num_kv_heads * layout.HeadBytes(rows),
      .num_rows = rows,
      .head_stride_bytes = layout.HeadBytes(rows)};
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    OVERTURE_RETURN_IF_ERROR(cache.ReadLayer(layout, spans, layer, dst));
    const std::string expected =
        CanaryRecord(layout, tokens, layer, /*begin=*/0, rows);
    if (std::memcmp(expected.data(), bytes.data(), bytes.size()) != 0) {
      return absl::DataLossError(
          absl::StrCat("layer ", layer, " holds foreign rows"));
    }
  }
  return absl::OkStatus();
}

}  // namespace overture::cache
