#include "kernels/block_means/block_means.h"

#include <random>
#include <utility>
#include <vector>

#include "base/cuda/stream.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/device_copy.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::StatusIs;
using ::overture::testing::ToDevice;
using ::overture::testing::ToHost;
using ::testing::HasSubstr;

BlockMeansParams Params(int32_t head_dim) {
  constexpr int64_t kBlocks = 5;
  return {.stride_row = head_dim + 8,
          .stride_head = kBlocks * kMeanBlockKeys * (head_dim + 8),
          .stride_mean_row = head_dim,
          .stride_mean_head = kBlocks * head_dim,
          .num_heads = 3,
          .head_dim = head_dim,
          .block_begin = 2,
          .block_end = kBlocks};
}

TEST(BlockMeansTest, EqualTheCpusBitForBit) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Stream stream, Stream::Create());
  for (const auto& [head_dim, block_rows] :
       std::vector<std::pair<int32_t, int32_t>>{
           {64, 128}, {96, 128}, {128, 128}, {512, 128}, {128, 16}, {96, 32}}) {
    BlockMeansParams params = Params(head_dim);
    params.block_rows = block_rows;
    std::mt19937 random(head_dim);
    std::normal_distribution<float> normal(0.5f, 1.0f);
    std::vector<BFloat16> rows(params.num_heads * params.stride_head);
    for (BFloat16& value : rows) value = BFloat16(normal(random));
    std::vector<BFloat16> means(params.num_heads * params.stride_mean_head,
                                BFloat16(7.0f));
    const auto device_rows = ToDevice(rows, stream);
    auto device_means = ToDevice(means, stream);
    params.rows = device_rows.data();
    params.means = device_means.data();
    OVERTURE_ASSERT_OK(LaunchBlockMeans(params, stream.get()));
    const std::vector<BFloat16> got = ToHost(device_means, stream);
    params.rows = rows.data();
    params.means = means.data();
    OVERTURE_ASSERT_OK(BlockMeansCpu(params));
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].bits, means[i].bits)
          << head_dim << " " << block_rows << " " << i;
    }
  }
}

TEST(BlockMeansTest, WhatItCannotRunIsNamed) {
  const int dummy = 0;
  BlockMeansParams params = Params(64);
  params.rows = &dummy;
  params.means = const_cast<int*>(&dummy);
  params.dtype = DType::kF32;
  EXPECT_THAT(LaunchBlockMeans(params, nullptr),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("f32")));
  params.dtype = DType::kBF16;
  params.stride_row = 68;
  EXPECT_THAT(LaunchBlockMeans(params, nullptr),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("68")));
  params.num_heads = 0;
  EXPECT_THAT(
      LaunchBlockMeans(params, nullptr),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("num_heads")));
}

}  // namespace
}  // namespace overture::kernels
