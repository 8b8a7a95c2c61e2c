// lookup, describe, release, sessions, info: one call and its answer each.
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "clients/cpp/fetch_check.h"
#include "clients/tool/commands.h"
#include "clients/tool/common_flags.h"
#include "clients/tool/request_text.h"
#include "nlohmann/json.hpp"
#include "proto/selector_text.h"

namespace overture::clients {
namespace {

std::string LayoutText(const v1::KvLayout& layout) {
  const absl::StatusOr<KvLayout> known = LayoutFromProto(layout);
  return known.ok() ? ToString(*known) : std::string(known.status().message());
}

}  // namespace

absl::Status RunLookup(CommandArgs args) {
  ServerFlags server;
  PromptFlags prompt_flags;
  std::string selector;
  FlagParser flags("overture lookup",
                   "Says how much of a prompt the server has stored.");
  server.AddTo(flags);
  prompt_flags.AddTo(flags);
  flags.Add("selector", &selector,
            "KV of which attention; the server's default if absent.");
  bool done = false;
  OVERTURE_RETURN_IF_ERROR(ParseOrHelp(flags, args, &done));
  if (done) return absl::OkStatus();

  v1::LookupRequest request;
  OVERTURE_ASSIGN_OR_RETURN(PromptFlags::Prompt prompt,
                            prompt_flags.Read(flags));
  request.set_text(prompt.text);
  request.mutable_token_ids()->Add(prompt.ids.begin(), prompt.ids.end());
  if (!selector.empty()) {
    OVERTURE_ASSIGN_OR_RETURN(*request.mutable_selector(),
                              v1::ParseSelector(selector));
  }
  OVERTURE_ASSIGN_OR_RETURN(auto client, server.Connect());
  OVERTURE_ASSIGN_OR_RETURN(v1::LookupResponse response,
                            client->Lookup(request, server.call()));
  if (server.json) {
    PrintJson({{"num_tokens", response.num_tokens()},
               {"matched_tokens", response.matched_tokens()},
               {"reusable_tokens", response.reusable_tokens()},
               {"attention_policy", response.attention_policy()}});
  } else {
    absl::PrintF("tokens     %d: %d stored, a prefill would reuse %d\n",
                 response.num_tokens(), response.matched_tokens(),
                 response.reusable_tokens());
    absl::PrintF("attention  %s\n", response.attention_policy());
  }
  return absl::OkStatus();
}

absl::Status RunDescribe(CommandArgs args) {
  ServerFlags server;
  std::string handle;
  FlagParser flags("overture describe", "Says what a handle holds.");
  server.AddTo(flags);
  flags.Add("handle", &handle, "What a prefill returned. Needed.");
  bool done = false;
  OVERTURE_RETURN_IF_ERROR(ParseOrHelp(flags, args, &done));
  if (done) return absl::OkStatus();

  if (handle.empty()) {
    return absl::InvalidArgumentError("--handle is needed");
  }
  OVERTURE_ASSIGN_OR_RETURN(auto client, server.Connect());
  OVERTURE_ASSIGN_OR_RETURN(v1::DescribeResponse response,
                            client->Describe(handle, server.call()));
  if (server.json) {
    PrintJson(
        {{"handle", response.handle()},
         {"layout", LayoutText(response.layout())},
         {"logical_length", response.logical_length()},
         {"attention_policy", response.attention_policy()},
         {"weights_digest", absl::BytesToHexString(response.weights_digest())},
         {"full_bytes", response.full_bytes()},
         {"has_view", response.has_view()},
         {"view_bytes", response.view_bytes()},
         {"view_rows", std::vector<int32_t>(response.view_rows().begin(),
                                            response.view_rows().end())},
         {"first_token", response.first_token()},
         {"persisted", response.persisted()},
         {"expires_in_ms", response.expires_in_ms()},
         {"session_id", response.session_id()}});
    return absl::OkStatus();
  }
  absl::PrintF("layout     %s\n", LayoutText(response.layout()));
  absl::PrintF("positions  %d, first token %d\n", response.logical_length(),
               response.first_token());
  absl::PrintF("attention  %s\n", response.attention_policy());
  absl::PrintF("weights    %s\n",
               absl::BytesToHexString(response.weights_digest()));
  absl::PrintF("KV         %s%s\n", FormatBytes(response.full_bytes()),
               response.persisted() ? ", persisted" : ", in memory only");
  if (response.has_view()) {
    absl::PrintF("view       %s\n", FormatBytes(response.view_bytes()));
  }
  absl::PrintF("expires    in %d s\n", response.expires_in_ms() / 1000);
  return absl::OkStatus();
}

absl::Status RunRelease(CommandArgs args) {
  ServerFlags server;
  std::string handles;
  FlagParser flags("overture release",
                   "Drops handles; their stored blocks stay in the cache.");
  server.AddTo(flags);
  flags.Add("handle", &handles, "One or more, separated by commas. Needed.");
  bool done = false;
  OVERTURE_RETURN_IF_ERROR(ParseOrHelp(flags, args, &done));
  if (done) return absl::OkStatus();

  if (handles.empty()) {
    return absl::InvalidArgumentError("--handle is needed");
  }
  OVERTURE_ASSIGN_OR_RETURN(auto client, server.Connect());
  OVERTURE_ASSIGN_OR_RETURN(
      int32_t released,
      client->Release(absl::StrSplit(handles, ',', absl::SkipEmpty()),
                      server.call()));
  if (server.json) {
    PrintJson({{"released", released}});
  } else {
    absl::PrintF("released %d\n", released);
  }
  return absl::OkStatus();
}

absl::Status RunSessions(CommandArgs args) {
  ServerFlags server;
  std::string remove;
  std::string create;
  std::string selector;
  FlagParser flags("overture sessions",
                   "Lists the sessions, after creating or deleting one.");
  server.AddTo(flags);
  flags.Add("create", &create, "Id of a session to create.");
  flags.Add("selector", &selector,
            "Attention of the created session, as for prefill.");
  flags.Add("delete", &remove, "Id of a session to forget.");
  bool done = false;
  OVERTURE_RETURN_IF_ERROR(ParseOrHelp(flags, args, &done));
  if (done) return absl::OkStatus();

  OVERTURE_ASSIGN_OR_RETURN(auto client, server.Connect());
  if (!create.empty()) {
    v1::CreateSessionRequest request;
    request.set_id(create);
    if (!selector.empty()) {
      OVERTURE_ASSIGN_OR_RETURN(*request.mutable_selector(),
                                v1::ParseSelector(selector));
    }
    OVERTURE_RETURN_IF_ERROR(
        client->CreateSession(request, server.call()).status());
  }
  if (!remove.empty()) {
    OVERTURE_RETURN_IF_ERROR(client->DeleteSession(remove, server.call()));
  }
  OVERTURE_ASSIGN_OR_RETURN(std::vector<v1::Session> sessions,
                            client->ListSessions(server.call()));
  nlohmann::json list = nlohmann::json::array();
  for (const v1::Session& session : sessions) {
    if (server.json) {
      list.push_back({{"id", session.id()},
                      {"selector", v1::SelectorText(session.selector())},
                      {"num_tokens", session.num_tokens()},
                      {"num_turns", session.num_turns()},
                      {"created_unix_ms", session.created_unix_ms()},
                      {"updated_unix_ms", session.updated_unix_ms()}});
    } else {
      absl::PrintF("%s  %d tokens, %d turns, %s\n", session.id(),
                   session.num_tokens(), session.num_turns(),
                   v1::SelectorText(session.selector()));
    }
  }
  if (server.json) PrintJson(list);
  return absl::OkStatus();
}

absl::Status RunInfo(CommandArgs args) {
  ServerFlags server;
  FlagParser flags("overture info", "Says what the server runs and holds.");
  server.AddTo(flags);
  bool done = false;
  OVERTURE_RETURN_IF_ERROR(ParseOrHelp(flags, args, &done));
  if (done) return absl::OkStatus();

  OVERTURE_ASSIGN_OR_RETURN(auto client, server.Connect());
  const v1::ServerInfo& info = client->server();
  const v1::ModelInfo& model = info.model();
  const v1::CacheStats& cache = info.cache();
  if (server.json) {
    PrintJson(
        {{"version", info.version()},
         {"uptime_ms", info.uptime_ms()},
         {"model",
          {{"name", model.name()},
           {"architecture", model.architecture()},
           {"weights_digest", absl::BytesToHexString(model.weights_digest())},
           {"vocab_size", model.vocab_size()},
           {"max_positions", model.max_positions()},
           {"kv_layout", LayoutText(model.kv_layout())},
           {"compute_dtype", model.compute_dtype()},
           {"backend", model.backend()}}},
         {"numerics", info.numerics()},
         {"max_prompt_tokens", info.max_prompt_tokens()},
         {"default_selector", v1::SelectorText(info.default_selector())},
         {"head_sizes_digest",
          absl::BytesToHexString(info.head_sizes_digest())},
         {"store", info.store()},
         {"cache",
          {{"spans", cache.num_spans()},
           {"sessions", cache.num_sessions()},
           {"stored_bytes", cache.stored_bytes()},
           {"max_bytes", cache.max_bytes()},
           {"tokens_asked", cache.tokens_asked()},
           {"tokens_matched", cache.tokens_matched()},
           {"damaged_records", cache.damaged_records()},
           {"dropped_writes", cache.dropped_writes()},
           {"evicted_bytes", cache.evicted_bytes()}}},
         {"queued_requests", info.queued_requests()},
         {"running_requests", info.running_requests()},
         {"live_handles", info.live_handles()},
         {"unhealthy", info.unhealthy()}});
    return absl::OkStatus();
  }
  absl::PrintF("overtured  %s, up %d s\n", info.version(),
               info.uptime_ms() / 1000);
  absl::PrintF("model      %s (%s), %s on %s\n", model.name(),
               model.architecture(), model.compute_dtype(), model.backend());
  absl::PrintF("numerics   %s\n", info.numerics());
  absl::PrintF("KV         %s\n", LayoutText(model.kv_layout()));
  absl::PrintF("limits     %d tokens per prompt\n", info.max_prompt_tokens());
  absl::PrintF("attention  %s unless asked otherwise, %s\n",
               v1::SelectorText(info.default_selector()),
               info.head_sizes_digest().empty() ? "no sizes per head"
                                                : "sizes per head on request");
  absl::PrintF("store      %s: %d spans, %s of %s, %d sessions\n", info.store(),
               cache.num_spans(), FormatBytes(cache.stored_bytes()),
               FormatBytes(cache.max_bytes()), cache.num_sessions());
  absl::PrintF("now        %d running, %d queued, %d handles\n",
               info.running_requests(), info.queued_requests(),
               info.live_handles());
  if (!info.unhealthy().empty()) {
    absl::PrintF("unhealthy  no prefill runs: %s\n", info.unhealthy());
  }
  return absl::OkStatus();
}

}  // namespace overture::clients
