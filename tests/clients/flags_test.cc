#include "clients/tool/flags.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::clients {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class FlagsTest : public ::testing::Test {
 protected:
  FlagsTest() {
    flags_.Add("name", &name_, "A name.");
    flags_.Add("max-tokens", &max_tokens_, "A limit.");
    flags_.Add("priority", &priority_, "A rank.");
    flags_.Add("share", &share_, "A share.");
    flags_.Add("json", &json_, "A switch.");
  }
  absl::Status Parse(const std::vector<std::string>& args) {
    return flags_.Parse(args);
  }

  FlagParser flags_{"overture test", "Tests."};
  std::string name_ = "nobody";
  int64_t max_tokens_ = 7;
  int32_t priority_ = 0;
  double share_ = 0.5;
  bool json_ = false;
};

TEST_F(FlagsTest, BothSpellingsOfAValueWork) {
  OVERTURE_ASSERT_OK(
      Parse({"--name", "a b", "--max_tokens=12", "--share", "0.25", "--json"}));
  EXPECT_EQ(name_, "a b");
  EXPECT_EQ(max_tokens_, 12);
  EXPECT_EQ(share_, 0.25);
  EXPECT_TRUE(json_);
  EXPECT_TRUE(flags_.Given("max-tokens"));
}

TEST_F(FlagsTest, WithoutFlagsTheDefaultsStay) {
  OVERTURE_ASSERT_OK(Parse({}));
  EXPECT_EQ(name_, "nobody");
  EXPECT_FALSE(flags_.Given("name"));
}

TEST_F(FlagsTest, AValueMayBeEmptyOrHoldAnEqualsSignOrLookLikeAFlag) {
  OVERTURE_ASSERT_OK(Parse({"--name=a=b"}));
  EXPECT_EQ(name_, "a=b");
  OVERTURE_ASSERT_OK(Parse({"--name="}));
  EXPECT_EQ(name_, "");
  OVERTURE_ASSERT_OK(Parse({"--name", "--json"}));
  EXPECT_EQ(name_, "--json");
}

TEST_F(FlagsTest, ASwitchCanBeSetToFalse) {
  json_ = true;
  OVERTURE_ASSERT_OK(Parse({"--json=false"}));
  EXPECT_FALSE(json_);
}

TEST_F(FlagsTest, MistakesAreNamed) {
  EXPECT_THAT(Parse({"--nome", "x"}), StatusIs(kInvalid, HasSubstr("--nome")));
  EXPECT_THAT(Parse({"--max-tokens", "many"}),
              StatusIs(kInvalid, HasSubstr("'many', must be an integer")));
  EXPECT_THAT(Parse({"--max-tokens"}),
              StatusIs(kInvalid, HasSubstr("needs a value")));
  // 2^32 + 5 must not arrive as 5.
  EXPECT_THAT(Parse({"--priority=4294967301"}),
              StatusIs(kInvalid, HasSubstr("an integer of 32 bits")));
  EXPECT_THAT(Parse({"stray"}), StatusIs(kInvalid, HasSubstr("'stray'")));
  EXPECT_THAT(Parse({"--json=perhaps"}),
              StatusIs(kInvalid, HasSubstr("true or false")));
}

TEST_F(FlagsTest, AFlagIsGivenOnce) {
  EXPECT_THAT(Parse({"--max-tokens=1", "--json", "--max_tokens", "1"}),
              StatusIs(kInvalid, HasSubstr("--max-tokens is given twice")));
}

TEST_F(FlagsTest, HelpWinsOverEverythingAndShowsDefaults) {
  OVERTURE_ASSERT_OK(Parse({"--bad", "--help"}));
  EXPECT_TRUE(flags_.help_requested());
  EXPECT_THAT(flags_.Help(), HasSubstr("--max-tokens (7)\n      A limit."));
}

}  // namespace
}  // namespace overture::clients
