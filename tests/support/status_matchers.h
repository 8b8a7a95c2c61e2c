// EXPECT_THAT(status, IsOk()); EXPECT_THAT(status, StatusIs(code,
// HasSubstr())). Both take an absl::Status or an absl::StatusOr.
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace overture::testing {

inline const absl::Status& GetStatus(const absl::Status& status) {
  return status;
}
template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& result) {
  return result.status();
}

MATCHER(IsOk, "is OK") {
  const absl::Status& status = GetStatus(arg);
  *result_listener << status;
  return status.ok();
}

MATCHER_P(StatusIs, code, "has the given status code") {
  const absl::Status& status = GetStatus(arg);
  *result_listener << status;
  return status.code() == code;
}

MATCHER_P2(StatusIs, code, message, "has the given code and message") {
  const absl::Status& status = GetStatus(arg);
  *result_listener << status;
  return status.code() == code &&
         ::testing::ExplainMatchResult(message, std::string(status.message()),
                                       result_listener);
}

}  // namespace overture::testing

// Fails the test at once if `expr` is not OK, else assigns its value.
#define OVERTURE_ASSERT_OK_AND_ASSIGN(lhs, expr) \
  OVERTURE_ASSERT_OK_AND_ASSIGN_IMPL_(           \
      OVERTURE_CONCAT_(overture_or_, __LINE__), lhs, expr)
#define OVERTURE_ASSERT_OK_AND_ASSIGN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                        \
  ASSERT_TRUE(tmp.ok()) << tmp.status();                    \
  lhs = *std::move(tmp)
#define OVERTURE_ASSERT_OK(expr) ASSERT_THAT(expr, ::overture::testing::IsOk())
#define OVERTURE_EXPECT_OK(expr) EXPECT_THAT(expr, ::overture::testing::IsOk())
