#include "base/kv_layout.h"

#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

constexpr KvLayout kLlama8b = {32, 8, 128, DType::kBF16};

TEST(KvLayoutTest, BytesMatchThePublishedTable) {
  EXPECT_EQ(kLlama8b.TotalBytes(1), 128 * 1024);
  EXPECT_EQ(kLlama8b.LayerBytes(kTokensPerBlock), 1 << 20);
}

TEST(KvLayoutTest, ValidateNamesTheFieldAndTheLimit) {
  EXPECT_THAT(Validate(kLlama8b), IsOk());
  KvLayout bad = kLlama8b;
  bad.head_dim = 0;
  EXPECT_THAT(Validate(bad),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("head_dim is 0, must be in [1, 1024]")));
  bad = kLlama8b;
  bad.dtype = static_cast<DType>(9);
  EXPECT_THAT(Validate(bad), StatusIs(absl::StatusCode::kInvalidArgument,
                                      HasSubstr("dtype is 9")));
}

TEST(KvLayoutTest, ScatterUndoesGather) {
  const KvLayout layout = {1, 2, 4, DType::kBF16};
  constexpr int64_t kRows = 7;
  std::vector<uint16_t> data(2 * 2 * kRows * 4);
  std::iota(data.begin(), data.end(), 0);
  const int64_t stride = layout.HeadBytes(kRows);
  auto* base = reinterpret_cast<std::byte*>(data.data());
  const LayerKvView view = {base, base + 2 * stride, kRows, stride};
  std::vector<std::byte> packed(layout.LayerBytes(3));
  GatherRows(layout, view, 2, 3, packed.data());

  std::vector<uint16_t> copy(data.size(), 0xffff);
  auto* copy_base = reinterpret_cast<std::byte*>(copy.data());
  ScatterRows(layout, packed.data(), 2, 3,
              {copy_base, copy_base + 2 * stride, kRows, stride});
  for (size_t i = 0; i < data.size(); ++i) {
    const int64_t row = (i / 4) % kRows;
    EXPECT_EQ(copy[i], row >= 2 && row < 5 ? data[i] : 0xffff) << i;
  }
}

}  // namespace
}  // namespace overture
