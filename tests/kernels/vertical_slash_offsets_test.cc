#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/selectors/vertical_slash_gpu.h"
#include "tests/support/device_copy.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::ToDevice;

// 2^31 columns and more, 13 GB of them: every cell's stand where its 64-bit
// offset says.
TEST(VerticalSlashOffsetsTest, MoreThanTwoToTheThirtyOneColumns) {
  constexpr int64_t kKeys = 131072, kHeads = 32, kColumns = 100000;
  constexpr int64_t kTiles = kKeys / kGpuTileRows;
  static_assert(kHeads * kTiles * kColumns > int64_t{1} << 31);
  const std::vector<VerticalSlashSize> sizes(
      kHeads, {.vertical = kColumns, .slash = 100});
  const int64_t bytes = VerticalSlashPlanBytes(kKeys, kKeys, sizes);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Stream stream, Stream::Create());
  auto scratch = DeviceBuffer<std::byte>::Allocate(bytes);
  if (!scratch.ok()) GTEST_SKIP() << scratch.status();
  // All equal: the first 100,000 columns are kept.
  const auto sums = ToDevice(std::vector<float>(kHeads * kKeys, 1.0f), stream);
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto choice_scratch,
                                DeviceBuffer<std::byte>::Allocate(
                                    VerticalSlashChoiceBytes(kKeys, sizes)));
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const VerticalSlashChoice choice,
      LaunchVerticalSlashChoice({.column_sums = sums.data(),
                                 .diagonal_sums = sums.data(),
                                 .sizes = sizes,
                                 .kv_len = kKeys},
                                choice_scratch.data(), choice_scratch.bytes(),
                                stream.get()));
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const DeviceTilePlan plan,
      LaunchVerticalSlashPlan(choice, {.q_len = kKeys}, scratch->data(), bytes,
                              stream.get()));
  OVERTURE_ASSERT_OK(stream.Synchronize());
  // The last tile of the first and the last head: what is no band is a column.
  for (const int64_t head : {int64_t{0}, kHeads - 1}) {
    PlanCell cell;
    ASSERT_EQ(cudaMemcpy(&cell, plan.cells + (head + 1) * kTiles - 1,
                         sizeof(cell), cudaMemcpyDefault),
              cudaSuccess);
    EXPECT_EQ(cell.column_begin, ((head + 1) * kTiles - 1) * kColumns);
    ASSERT_EQ(cell.num_columns, kColumns);
    std::vector<int32_t> columns(kColumns);
    ASSERT_EQ(cudaMemcpy(columns.data(), plan.columns + cell.column_begin,
                         kColumns * sizeof(int32_t), cudaMemcpyDefault),
              cudaSuccess);
    for (int32_t i = 0; i < kColumns; ++i) ASSERT_EQ(columns[i], i);
  }
}

}  // namespace
}  // namespace overture::kernels
