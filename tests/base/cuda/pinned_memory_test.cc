#include "base/cuda/pinned_memory.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::cuda_internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::StatusIs;

constexpr int64_t kPetabyte = int64_t{1} << 50;

TEST(PinnedMemoryTest, SomeMemoryIsAvailableAndNoPetabyte) {
  const int64_t available = AvailableHostBytes();
  EXPECT_GT(available, int64_t{1} << 20);
  EXPECT_LT(available, kPetabyte);
}

// Without a device, too: touching the pages is what must not be tried.
TEST(PinnedMemoryTest, MoreThanTheHostHasIsRefusedBeforeItIsTouched) {
  EXPECT_THAT(AllocatePinned(kPetabyte),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr(absl::StrCat(kPetabyte, " bytes")),
                             HasSubstr("are available"))));
}

}  // namespace
}  // namespace overture::cuda_internal
