// Two macros that pass an absl::Status up. Nothing here allocates on success.
//
//   OVERTURE_RETURN_IF_ERROR(store.Flush());
//   OVERTURE_ASSIGN_OR_RETURN(Model model, LoadModel(path));
//
// Add context where a layer knows more than its callee: WithContext().
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace overture {

// Returns `status` with "context: " before its message; OK stays OK.
inline absl::Status WithContext(const absl::Status& status,
                                absl::string_view context) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(context, ": ", status.message()));
}

}  // namespace overture

#define OVERTURE_RETURN_IF_ERROR(expr)                                      \
  do {                                                                      \
    if (::absl::Status overture_status_ = (expr); !overture_status_.ok()) { \
      return overture_status_;                                              \
    }                                                                       \
  } while (false)

#define OVERTURE_CONCAT_INNER_(a, b) a##b
#define OVERTURE_CONCAT_(a, b) OVERTURE_CONCAT_INNER_(a, b)

#define OVERTURE_ASSIGN_OR_RETURN(lhs, expr)                                \
  OVERTURE_ASSIGN_OR_RETURN_IMPL_(OVERTURE_CONCAT_(overture_or_, __LINE__), \
                                  lhs, expr)

#define OVERTURE_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                    \
  if (!tmp.ok()) return std::move(tmp).status();        \
  lhs = *std::move(tmp)
