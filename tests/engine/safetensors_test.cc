#include "engine/safetensors.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "tests/support/safetensors_writer.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::MakeRawSafetensors;
using ::overture::testing::MakeSafetensors;
using ::overture::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

void ExpectRefused(absl::string_view header, absl::string_view data,
                   const std::string& message) {
  EXPECT_THAT(Safetensors::Parse(MakeRawSafetensors(header, data)),
              StatusIs(kInvalid, HasSubstr(message)))
      << header;
}

TEST(SafetensorsTest, TensorsAreViewsOfTheirBytes) {
  const std::string bytes = MakeSafetensors(
      {{.name = "a", .dtype = "F32", .shape = {1, 2}, .data = "12345678"},
       {.name = "empty", .dtype = "F16", .shape = {0, 7}, .data = ""},
       {.name = "scalar", .dtype = "BF16", .shape = {}, .data = "xy"}});
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Safetensors file,
                                Safetensors::Parse(bytes));
  ASSERT_EQ(file.tensors().size(), 3u);
  const Safetensors::Tensor* a = file.FindTensor("a");
  ASSERT_NE(a, nullptr);
  EXPECT_EQ(a->type, TensorType::kF32);
  EXPECT_THAT(a->shape, ElementsAre(1, 2));
  EXPECT_EQ(a->data, "12345678");
  EXPECT_EQ(file.FindTensor("scalar")->data, "xy");
  EXPECT_EQ(file.FindTensor("scalar")->type, TensorType::kBF16);
  EXPECT_EQ(file.FindTensor("empty")->data, "");
  EXPECT_EQ(file.FindTensor("b"), nullptr);
}

TEST(SafetensorsTest, TensorsMayStandInAnyOrder) {
  const std::string bytes = MakeRawSafetensors(
      R"({"late":{"dtype":"F16","shape":[1],"data_offsets":[2,4]},)"
      R"("early":{"data_offsets":[0,2],"shape":[1],"dtype":"F16"}})",
      "abcd");
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Safetensors file,
                                Safetensors::Parse(bytes));
  EXPECT_EQ(file.FindTensor("early")->data, "ab");
  EXPECT_EQ(file.FindTensor("late")->data, "cd");
}

TEST(SafetensorsTest, TheHeaderSizeIsHeldAgainstTheFileAndTheLimit) {
  EXPECT_THAT(Safetensors::Parse("1234567"), StatusIs(kInvalid));
  EXPECT_THAT(Safetensors::Parse(std::string(8, '\xff')),
              StatusIs(kInvalid, HasSubstr("the limit is 0")));
  const std::string good = MakeRawSafetensors("{}", "");
  EXPECT_THAT(Safetensors::Parse(good), IsOk());
  EXPECT_THAT(Safetensors::Parse(good.substr(0, good.size() - 1)),
              StatusIs(kInvalid, HasSubstr("header claims 2 bytes")));
  // One byte above the format's limit, in a file that is large enough.
  EXPECT_THAT(
      Safetensors::Parse(MakeRawSafetensors(std::string(100'000'001, ' '), "")),
      StatusIs(kInvalid, HasSubstr("the limit is 100000000")));
}

TEST(SafetensorsTest, HeadersOfAnotherFormAreRefused) {
  ExpectRefused("[]", "", "a list");
  ExpectRefused("{", "", "not JSON");
  ExpectRefused(R"({"a":1})", "", "a number");
  ExpectRefused(R"({"a":{"dtype":{}}})", "", "an object");
  ExpectRefused(R"({"a":{"dtype":"F16","shape":[[1]]}})", "", "a list");
  ExpectRefused(R"({"a":{"dtype":"F16","shape":[-1]}})", "", "negative");
  ExpectRefused(R"({"a":{"dtype":"F16","shape":[1.5]}})", "", "fraction");
  ExpectRefused(R"({"a":{"dtype":"F16","shape":[1,1,1,1,1,1,1,1,1]}})", "",
                "more than 8");
  ExpectRefused(R"({"__metadata__":{"a":{}}})", "", "an object");
  ExpectRefused(R"({"__metadata__":{"a":1}})", "", "a number");
  ExpectRefused(std::string(100'000, '['), "", "a list");
  ExpectRefused(R"({"a":)" + std::string(100'000, '{'), "", "not JSON");
}

TEST(SafetensorsTest, IncompleteTensorsAreRefused) {
  ExpectRefused(R"({"a":{"dtype":"F16","shape":[1]}})", "ab",
                "two data_offsets");
  ExpectRefused(R"({"a":{"dtype":"F16","data_offsets":[0,2]}})", "ab",
                "needs a shape");
  EXPECT_THAT(Safetensors::Parse(MakeRawSafetensors(
                  R"({"a":{"dtype":"I64","shape":[1],"data_offsets":[0,8]}})",
                  "12345678")),
              StatusIs(absl::StatusCode::kUnimplemented,
                       HasSubstr("'I64'; supported: F32, F16, BF16")));
}

TEST(SafetensorsTest, OffsetsAreHeldAgainstTheFileAndTheShape) {
  const auto header = [](absl::string_view shape, absl::string_view offsets) {
    return absl::StrCat(R"({"a":{"dtype":"F16","shape":)", shape,
                        R"(,"data_offsets":)", offsets, "}}");
  };
  ExpectRefused(header("[2]", "[0,4]"), "ab", "the file has 2 bytes");
  ExpectRefused(header("[1]", "[2,0]"), "ab", "data_offsets [2, 0]");
  ExpectRefused(header("[1]", "[18446744073709551614,18446744073709551615]"),
                "ab", "the file has 2 bytes");
  ExpectRefused(header("[2]", "[0,2]"), "ab", "its shape needs 4");
  // 2^63 * 2 elements wrap to 0 bytes.
  ExpectRefused(header("[9223372036854775808,2]", "[0,0]"), "", "dimension");
  ExpectRefused(header("[281474976710656,281474976710656]", "[0,0]"), "",
                "dimension");
}

TEST(SafetensorsTest, OverlapsHolesAndLeftoversAreRefused) {
  const auto header = [](absl::string_view a, absl::string_view b) {
    return absl::StrCat(R"({"a":{"dtype":"F16","shape":[1],"data_offsets":)", a,
                        R"(},"b":{"dtype":"F16","shape":[1],"data_offsets":)",
                        b, "}}");
  };
  ExpectRefused(header("[0,2]", "[1,3]"), "abcd",
                "the one before it ends at 2");
  ExpectRefused(header("[0,2]", "[0,2]"), "ab", "starts at data byte 0");
  ExpectRefused(header("[0,2]", "[3,5]"), "abcde", "starts at data byte 3");
  ExpectRefused(header("[0,2]", "[2,4]"), "abcde", "the file has 5");
}

TEST(SafetensorsIndexTest, ListsFilesOnceAndInNameOrder) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const SafetensorsIndex index,
      ParseSafetensorsIndex(R"({"metadata":{"total_size":3},"weight_map":{
          "x":"b.safetensors","y":"a.safetensors","z":"b.safetensors"}})"));
  EXPECT_THAT(index.files, ElementsAre("a.safetensors", "b.safetensors"));
  EXPECT_EQ(index.file_of_tensor.at("z"), "b.safetensors");
}

TEST(SafetensorsIndexTest, NamesThatLeaveTheFolderAreRefused) {
  for (const char* name : {R"("../x.safetensors")", R"("/etc/x.safetensors")",
                           R"("a\\b.safetensors")", R"("x\u0000.safetensors")",
                           R"("x.bin")", "7", "null"}) {
    EXPECT_THAT(ParseSafetensorsIndex(
                    absl::StrCat(R"({"weight_map":{"t":)", name, "}}")),
                StatusIs(kInvalid, HasSubstr("'t'")))
        << name;
  }
  EXPECT_THAT(ParseSafetensorsIndex(R"({"weight_map":{}})"),
              StatusIs(kInvalid));
  EXPECT_THAT(ParseSafetensorsIndex("{}"),
              StatusIs(kInvalid, HasSubstr("weight_map")));
}

}  // namespace
}  // namespace overture::engine
