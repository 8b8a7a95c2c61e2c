#include "kernels/precision.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

TEST(PrecisionTest, OfLinearsHasTwoNames) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(LinearPrecision precision,
                                ParseLinearPrecision("bf16"));
  EXPECT_EQ(precision, LinearPrecision::kBF16);
  OVERTURE_ASSERT_OK_AND_ASSIGN(precision, ParseLinearPrecision("fp8"));
  EXPECT_EQ(precision, LinearPrecision::kFp8);
  EXPECT_THAT(ParseLinearPrecision("int8"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("linears is int8, must be bf16 or fp8")));
}

TEST(PrecisionTest, OfAttentionHasTwoNames) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(AttentionPrecision precision,
                                ParseAttentionPrecision("bf16"));
  EXPECT_EQ(precision, AttentionPrecision::kBF16);
  OVERTURE_ASSERT_OK_AND_ASSIGN(precision, ParseAttentionPrecision("fp8"));
  EXPECT_EQ(precision, AttentionPrecision::kFp8);
  EXPECT_THAT(ParseAttentionPrecision("f32"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("attention is f32, must be bf16 or fp8")));
}

}  // namespace
}  // namespace overture::kernels
