#include "kernels/block_means/block_means_cpu.h"

#include <cmath>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

constexpr int32_t kHeads = 2;
constexpr int32_t kDim = 24;
constexpr int64_t kBlocks = 3;
constexpr int64_t kStrideRow = kDim + 8;
constexpr int64_t kStrideHead = kBlocks * kMeanBlockKeys * kStrideRow + 16;

template <typename T>
BlockMeansParams Params(const std::vector<T>& rows, std::vector<T>& means,
                        int32_t block_rows = kMeanBlockKeys) {
  return {.dtype = sizeof(T) == 4 ? DType::kF32 : DType::kBF16,
          .rows = rows.data(),
          .means = means.data(),
          .stride_row = kStrideRow,
          .stride_head = kStrideHead,
          .stride_mean_row = kDim,
          .stride_mean_head = kBlocks * kDim,
          .num_heads = kHeads,
          .head_dim = kDim,
          .block_rows = block_rows,
          .block_begin = 1,
          .block_end = kBlocks};
}

template <typename T>
std::vector<T> Random(int64_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.5f, 1.0f);
  std::vector<T> values(count);
  for (T& value : values) value = T(normal(random));
  return values;
}

// `rounding`: unit roundoff of T.
template <typename T>
void CheckAgainstALoop(double rounding, int32_t block_rows) {
  const auto rows = Random<T>(kHeads * kStrideHead);
  std::vector<T> means(kHeads * kBlocks * kDim, T(7.0f));
  OVERTURE_ASSERT_OK(BlockMeansCpu(Params(rows, means, block_rows)));
  for (int64_t head = 0; head < kHeads; ++head) {
    for (int64_t block = 0; block < kBlocks; ++block) {
      for (int64_t i = 0; i < kDim; ++i) {
        const auto mean =
            static_cast<float>(means[(head * kBlocks + block) * kDim + i]);
        if (block == 0) {
          ASSERT_EQ(mean, 7.0f);  // not asked for
          continue;
        }
        double sum = 0;
        double absolute = 0;
        for (int64_t r = 0; r < block_rows; ++r) {
          const double value = static_cast<float>(
              rows[head * kStrideHead + (block * block_rows + r) * kStrideRow +
                   i]);
          sum += value;
          absolute += std::abs(value);
        }
        // A value passes through at most 16 + 8 fp32 additions, then one
        // rounding.
        const double bound =
            24 * 0x1p-24 * absolute + rounding * std::abs(sum) * 1.01;
        ASSERT_NEAR(mean, sum / block_rows, bound / block_rows);
      }
    }
  }
}

TEST(BlockMeansCpuTest, EqualsALoopInDouble) {
  for (const int32_t block_rows : {16, 32, 64, 128}) {
    CheckAgainstALoop<float>(0x1p-24, block_rows);
    CheckAgainstALoop<BFloat16>(0x1p-8, block_rows);
  }
}

TEST(BlockMeansCpuTest, RefusesWhatDoesNotFit) {
  const auto rows = Random<float>(kHeads * kStrideHead);
  std::vector<float> means(kHeads * kBlocks * kDim);
  const auto refuses = [&](const char* message, auto change) {
    BlockMeansParams params = Params(rows, means);
    change(params);
    EXPECT_THAT(
        BlockMeansCpu(params),
        StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  using P = BlockMeansParams;
  refuses("dtype is f16", [](P& p) { p.dtype = DType::kF16; });
  refuses("num_heads is 0", [](P& p) { p.num_heads = 0; });
  refuses("head_dim is 12", [](P& p) { p.head_dim = 12; });
  refuses("block_rows is 8", [](P& p) { p.block_rows = 8; });
  refuses("block_rows is 48", [](P& p) { p.block_rows = 48; });
  refuses("block_rows is 256", [](P& p) { p.block_rows = 256; });
  refuses("block_end is 0", [](P& p) { p.block_end = 0; });
  refuses("null", [](P& p) { p.means = nullptr; });
}

}  // namespace
}  // namespace overture::kernels
