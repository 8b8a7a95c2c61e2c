#include <cstdint>
#include <cstdio>
#include <string>

#include "base/status_macros.h"
#include "clients/tool/commands.h"
#include "clients/tool/common_flags.h"
#include "clients/tool/prefill_run.h"
#include "clients/tool/request_text.h"
#include "nlohmann/json.hpp"
#include "proto/selector_text.h"

namespace overture::clients {

absl::Status RunPrefill(CommandArgs args) {
  ServerFlags server;
  PromptFlags prompt_flags;
  std::string selector;
  std::string view;
  std::string session;
  std::string reuse = "exact";
  bool no_store = false;
  int32_t priority = 0;
  int32_t ttl_ms = 0;
  int32_t audit_rows = 0;
  FlagParser flags("overture prefill",
                   "Prefills a prompt and prints the handle of its KV.");
  server.AddTo(flags);
  prompt_flags.AddTo(flags);
  flags.Add("selector", &selector,
            "dense, a_shape:INITIAL,LOCAL, vertical_slash:VERTICAL,SLASH, "
            "vertical_slash:per_head (the server's own sizes for each head) "
            "and others, see docs/clients.md; the server's default if absent.");
  flags.Add("view", &view,
            "snapkv:WINDOW,CAPACITY,POOLING,WIDTH: rows to hold ready besides "
            "the full KV.");
  flags.Add("session", &session,
            "Continue this session; the prompt is only what is new.");
  flags.Add("reuse", &reuse, "exact, or none: compute everything.");
  flags.Add("no-store", &no_store, "Do not keep the KV beyond its handle.");
  flags.Add("priority", &priority, "-100 to 100; larger runs first.");
  flags.Add("ttl-ms", &ttl_ms, "Life of the handle; 0: the server's default.");
  flags.Add("audit-rows", &audit_rows,
            "Rows of each layer whose kept mass is measured, at most 64; the "
            "server's 8 if absent.");
  bool done = false;
  OVERTURE_RETURN_IF_ERROR(ParseOrHelp(flags, args, &done));
  if (done) return absl::OkStatus();

  v1::PrefillRequest request;
  OVERTURE_ASSIGN_OR_RETURN(PromptFlags::Prompt prompt,
                            prompt_flags.Read(flags));
  if (prompt.is_text) {
    request.set_text(prompt.text);
  } else {
    request.mutable_tokens()->mutable_ids()->Add(prompt.ids.begin(),
                                                 prompt.ids.end());
  }
  if (!selector.empty()) {
    OVERTURE_ASSIGN_OR_RETURN(*request.mutable_selector(),
                              v1::ParseSelector(selector));
  }
  if (!view.empty()) {
    OVERTURE_ASSIGN_OR_RETURN(*request.mutable_view(), ParseView(view));
  }
  if (reuse == "none") {
    request.set_reuse(v1::PrefillRequest::REUSE_NONE);
  } else if (reuse != "exact") {
    return absl::InvalidArgumentError("--reuse must be exact or none");
  }
  request.set_session_id(session);
  request.set_no_store(no_store);
  request.set_priority(priority);
  request.set_handle_ttl_ms(ttl_ms);
  if (flags.Given("audit-rows")) request.set_audit_rows(audit_rows);

  OVERTURE_ASSIGN_OR_RETURN(auto client, server.Connect());
  OVERTURE_ASSIGN_OR_RETURN(
      PrefillResult result,
      PrefillWithProgress(*client, request, "prefill", server.call()));
  if (server.json) {
    PrintJson(ToJson(result));
  } else {
    std::fputs(ToText(result).c_str(), stdout);
  }
  return absl::OkStatus();
}

}  // namespace overture::clients
