// One prefill with a progress bar, and its result for people and programs.
// One thread.
#pragma once

#include <cstdio>
#include <string>

#include "absl/status/statusor.h"
#include "clients/cpp/client.h"
#include "nlohmann/json_fwd.hpp"

namespace overture::clients {

// The bar is drawn on standard error while the prefill runs.
absl::StatusOr<PrefillResult> PrefillWithProgress(
    OvertureClient& client, const v1::PrefillRequest& request,
    const std::string& label, const CallOptions& call = {});

nlohmann::json ToJson(const PrefillResult& result);
// A few lines, each with its newline.
std::string ToText(const PrefillResult& result);

}  // namespace overture::clients
