#include "compress/view.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace overture::compress {
namespace {

absl::Status BadField(absl::string_view field, int64_t value,
                      absl::string_view limit) {
  return absl::InvalidArgumentError(
      absl::StrCat("snapkv: ", field, " is ", value, ", must be ", limit));
}

// One value per vote, each from `width` votes around it. Every output adds its
// neighbours in the same order, so equal neighbourhoods give equal values; a
// running sum would not, and ties decide here.
std::vector<float> Pool(absl::Span<const float> votes, Pooling pooling,
                        int32_t width) {
  const int64_t n = static_cast<int64_t>(votes.size());
  const bool is_max = pooling == Pooling::kMax;
  std::vector<double> pooled(
      n, is_max ? -std::numeric_limits<double>::infinity() : 0.0);
  const int64_t half = std::min<int64_t>(width / 2, n - 1);
  for (int64_t offset = -half; offset <= half; ++offset) {
    const int64_t begin = std::max<int64_t>(0, -offset);
    const int64_t end = std::min(n, n - offset);
    for (int64_t i = begin; i < end; ++i) {
      const double vote = votes[i + offset];
      pooled[i] = is_max ? std::max(pooled[i], vote) : pooled[i] + vote;
    }
  }
  std::vector<float> out(n);
  for (int64_t i = 0; i < n; ++i) {
    out[i] = static_cast<float>(is_max ? pooled[i] : pooled[i] / width);
  }
  return out;
}

}  // namespace

absl::Status Validate(const SnapKvOptions& options) {
  if (options.window < 1) return BadField("window", options.window, ">= 1");
  if (options.capacity <= options.window) {
    return BadField("capacity", options.capacity,
                    absl::StrCat("> window = ", options.window));
  }
  if (options.pooling != Pooling::kAverage &&
      options.pooling != Pooling::kMax) {
    return BadField("pooling", static_cast<int64_t>(options.pooling),
                    "kAverage or kMax");
  }
  if (options.pooling_width < 1 || options.pooling_width > kMaxPoolingWidth ||
      options.pooling_width % 2 == 0) {
    return BadField("pooling_width", options.pooling_width,
                    absl::StrCat("odd, 1 .. ", kMaxPoolingWidth));
  }
  return absl::OkStatus();
}

std::vector<int32_t> SnapKvPositions(absl::Span<const float> votes,
                                     const SnapKvOptions& options) {
  OVERTURE_CHECK(Validate(options).ok());
  const int64_t n = static_cast<int64_t>(votes.size());
  if (n <= options.capacity) {  // covers n <= window: the window is smaller
    std::vector<int32_t> all(n);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  const int64_t num_candidates = n - options.window;
  std::vector<float> clean(votes.begin(), votes.begin() + num_candidates);
  for (float& vote : clean) {
    // Ranks last, and keeps the order below a total one.
    if (std::isnan(vote)) vote = -std::numeric_limits<float>::infinity();
  }
  const std::vector<float> pooled =
      Pool(clean, options.pooling, options.pooling_width);

  // capacity < n, so fewer are kept than there are candidates.
  const int64_t num_kept = options.capacity - options.window;
  std::vector<int32_t> positions(num_candidates);
  std::iota(positions.begin(), positions.end(), 0);
  std::nth_element(positions.begin(), positions.begin() + num_kept,
                   positions.end(), [&](int32_t a, int32_t b) {
                     if (pooled[a] != pooled[b]) return pooled[a] > pooled[b];
                     if (clean[a] != clean[b]) return clean[a] > clean[b];
                     return a < b;
                   });
  positions.resize(num_kept);
  std::sort(positions.begin(), positions.end());
  for (int64_t i = num_candidates; i < n; ++i) {
    positions.push_back(static_cast<int32_t>(i));
  }
  return positions;
}

}  // namespace overture::compress
