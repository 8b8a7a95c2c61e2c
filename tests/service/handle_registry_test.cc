#include "service/handle_registry.h"

#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::service {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

class HandleRegistryTest : public ::testing::Test {
 protected:
  HandleRegistry::Options Limits(int32_t handles, int64_t view_bytes) {
    return {.max_handles = handles,
            .max_view_bytes = view_bytes,
            .now = [this] { return now_; }};
  }
  static std::string Add(HandleRegistry& registry, absl::Duration ttl) {
    absl::StatusOr<HandleRegistry::Reservation> room = registry.Reserve(0);
    EXPECT_THAT(room, IsOk());
    return registry.Add(*std::move(room), HandleData{.logical_length = 7}, ttl);
  }
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(HandleRegistryTest, FindsWhatWasAddedUntilItExpires) {
  HandleRegistry registry(Limits(10, 100));
  const std::string id = Add(registry, absl::Seconds(5));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const HandleRegistry::Found found,
                                registry.Find(id));
  EXPECT_EQ(found.data->logical_length, 7);
  EXPECT_EQ(found.expires_in, absl::Seconds(5));
  now_ += absl::Seconds(5);
  EXPECT_THAT(registry.Find(id), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_EQ(registry.size(), 1) << "memory goes with the timer";
  registry.Expire();
  EXPECT_EQ(registry.size(), 0);
  EXPECT_EQ(found.data->logical_length, 7) << "a stream keeps the data";
}

TEST_F(HandleRegistryTest, ReleasingCountsOnlyWhatWasLive) {
  HandleRegistry registry(Limits(10, 100));
  const std::string a = Add(registry, absl::Seconds(5));
  const std::string b = Add(registry, absl::Seconds(1));
  now_ += absl::Seconds(1);
  EXPECT_EQ(registry.Release({a, a, b, "unknown", ""}), 1);
  EXPECT_EQ(registry.size(), 0);
  EXPECT_EQ(registry.Release({a}), 0);
}

TEST_F(HandleRegistryTest, ReservationsCountAndAreGivenBack) {
  HandleRegistry registry(Limits(2, 100));
  const std::string id = Add(registry, absl::Seconds(5));
  {
    const absl::StatusOr<HandleRegistry::Reservation> room =
        registry.Reserve(0);
    EXPECT_THAT(room, IsOk());
    EXPECT_THAT(registry.Reserve(0),
                StatusIs(absl::StatusCode::kResourceExhausted,
                         HasSubstr("handles: 2 live, limit 2")));
  }
  EXPECT_THAT(registry.Reserve(0), IsOk());
  EXPECT_THAT(registry.Find(id), IsOk()) << "a live handle is never evicted";
}

TEST_F(HandleRegistryTest, AnExpiredHandleMakesRoom) {
  HandleRegistry registry(Limits(1, 100));
  Add(registry, absl::Seconds(5));
  EXPECT_THAT(registry.Reserve(0),
              StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(registry.NextExpiry(), absl::Seconds(5));
  now_ += absl::Seconds(5);
  EXPECT_THAT(registry.Reserve(0), IsOk());
}

TEST_F(HandleRegistryTest, ViewBytesAreBoundedByWhatIsReallyHeld) {
  HandleRegistry registry(Limits(10, 100));
  OVERTURE_ASSERT_OK_AND_ASSIGN(HandleRegistry::Reservation most,
                                registry.Reserve(80));
  EXPECT_THAT(
      registry.Reserve(30),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("limit 100")));
  HandleData data;
  data.view.emplace().layers = {std::vector<std::byte>(60)};
  const std::string id =
      registry.Add(std::move(most), std::move(data), absl::Seconds(1));
  EXPECT_THAT(registry.Reserve(40), IsOk()) << "60 of the 80 were used";
  EXPECT_THAT(registry.Reserve(41),
              StatusIs(absl::StatusCode::kResourceExhausted));
  registry.Release({id});
  EXPECT_THAT(registry.Reserve(100), IsOk());
}

TEST_F(HandleRegistryTest, IdsAre128BitsAndDiffer) {
  HandleRegistry registry(Limits(1000, 100));
  std::set<std::string> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(Add(registry, absl::Seconds(1)));
  EXPECT_EQ(ids.size(), 1000u);
  EXPECT_EQ(ids.begin()->size(), 32u);
  registry.Clear();
  EXPECT_EQ(registry.size(), 0);
  EXPECT_EQ(registry.NextExpiry(), absl::InfiniteDuration());
}

}  // namespace
}  // namespace overture::service
