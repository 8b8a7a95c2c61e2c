#include "engine/json.h"

#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(JsonTest, BrokenTextIsAStatusThatNamesTheFile) {
  for (const char* text :
       {"", "{", "{\"a\":}", "nul", "[1,]", "\"\xff\"", "[1] 2"}) {
    EXPECT_THAT(ParseJson(text, "x.json"),
                StatusIs(kInvalid, HasSubstr("x.json")))
        << text;
  }
}

TEST(JsonTest, DepthIsLimitedWhateverTheSize) {
  EXPECT_THAT(ParseJson(std::string(kMaxJsonDepth, '[') +
                            std::string(kMaxJsonDepth, ']'),
                        "x"),
              IsOk());
  for (const int depth : {kMaxJsonDepth + 1, 10'000'000}) {
    EXPECT_THAT(ParseJson(std::string(depth, '['), "x"),
                StatusIs(kInvalid, HasSubstr("deeper than 64")));
  }
}

TEST(JsonTest, BracketsInStringsDoNotCount) {
  EXPECT_THAT(ParseJson("\"" + std::string(1000, '[') + "\\\"[\"", "x"),
              IsOk());
}

TEST(JsonTest, GettersTellMissingFromWrong) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const nlohmann::json root,
      ParseJson(R"({"int": -7, "whole": 8192.0, "half": 0.5, "null": null,
                    "big": 18446744073709551615, "huge": 1e300, "yes": true,
                    "text": "t"})",
                "x"));
  EXPECT_EQ(*GetJsonInt(root, "int"), -7);
  EXPECT_EQ(*GetJsonInt(root, "whole"), 8192);
  EXPECT_EQ(*GetJsonDouble(root, "int"), -7.0);
  EXPECT_EQ(*GetJsonDouble(root, "half"), 0.5);
  EXPECT_EQ(*GetJsonBool(root, "yes"), true);
  EXPECT_EQ(*GetJsonString(root, "text"), "t");
  for (const char* key : {"half", "big", "huge", "yes", "text"}) {
    EXPECT_THAT(GetJsonInt(root, key), StatusIs(kInvalid, HasSubstr(key)));
  }
  EXPECT_THAT(GetJsonBool(root, "int"), StatusIs(kInvalid));
  EXPECT_THAT(GetJsonString(root, "int"), StatusIs(kInvalid));
  EXPECT_THAT(GetJsonDouble(root, "text"), StatusIs(kInvalid));
  for (const char* key : {"null", "absent"}) {
    EXPECT_THAT(GetJsonInt(root, key),
                StatusIs(absl::StatusCode::kNotFound, HasSubstr(key)));
    EXPECT_EQ(*OrDefault<int64_t>(GetJsonInt(root, key), 3), 3);
    EXPECT_FALSE(HasJsonMember(root, key));
  }
  EXPECT_THAT(OrDefault<int64_t>(GetJsonInt(root, "text"), 3),
              StatusIs(kInvalid));
  EXPECT_THAT(GetJsonInt(root.at("int"), "int"), StatusIs(kInvalid));
}

}  // namespace
}  // namespace overture::engine
