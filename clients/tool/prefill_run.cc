#include "clients/tool/prefill_run.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "clients/tool/progress_bar.h"
#include "clients/tool/request_text.h"
#include "nlohmann/json.hpp"

namespace overture::clients {

absl::StatusOr<PrefillResult> PrefillWithProgress(
    OvertureClient& client, const v1::PrefillRequest& request,
    const std::string& label, const CallOptions& call) {
  ProgressBar bar(label, stderr);
  std::string tokens;
  return client.Prefill(
      request,
      [&bar, &tokens](const v1::PrefillEvent& event) {
        switch (event.event_case()) {
          case v1::PrefillEvent::kQueued:
            bar.Update(0, event.queued().ahead() == 0
                              ? "starting"
                              : absl::StrCat(event.queued().ahead(),
                                             " requests run before"));
            break;
          case v1::PrefillEvent::kMatched:
            tokens =
                absl::StrCat(event.matched().computed_tokens(), " tokens, ",
                             event.matched().reused_tokens(), " reused");
            bar.Update(0, tokens);
            break;
          case v1::PrefillEvent::kProgress:
            bar.Update(
                event.progress().num_layers() > 0
                    ? static_cast<double>(event.progress().layers_done()) /
                          event.progress().num_layers()
                    : 0,
                absl::StrCat(tokens, ", layer ", event.progress().layers_done(),
                             " of ", event.progress().num_layers()));
            break;
          case v1::PrefillEvent::kFirstToken:
            bar.Update(1, absl::StrCat(tokens, ", storing"));
            break;
          default:
            break;
        }
      },
      call);
}

nlohmann::json ToJson(const PrefillResult& result) {
  const v1::PrefillEvent::Done& done = result.done;
  const v1::PrefillStats& stats = done.stats();
  const v1::PrefillStats::KeptMass& kept = stats.kept_mass();
  nlohmann::json kept_mass;  // null: nothing was audited
  if (stats.has_kept_mass()) {
    kept_mass = {{"audited_rows", kept.audited_rows()},
                 {"mean", kept.mean()},
                 {"lowest", kept.lowest()},
                 {"lowest_layer", kept.lowest_layer()},
                 {"lowest_head", kept.lowest_head()}};
  }
  return {
      {"handle", done.handle()},
      {"num_tokens", done.num_tokens()},
      {"reused_tokens", stats.reused_tokens()},
      {"computed_tokens", stats.computed_tokens()},
      {"first_token", result.first_token.token()},
      {"log_probability", result.first_token.log_probability()},
      {"density", stats.density()},
      {"kept_mass", std::move(kept_mass)},
      {"attention_policy", stats.attention_policy()},
      {"ttft_seconds", stats.ttft_seconds()},
      {"queue_seconds", stats.queue_seconds()},
      {"match_seconds", stats.match_seconds()},
      {"selector_seconds", stats.selector_seconds()},
      {"attention_seconds", stats.attention_seconds()},
      {"linear_seconds", stats.linear_seconds()},
      {"audit_seconds", stats.audit_seconds()},
      {"compute_seconds", stats.compute_seconds()},
      {"store_seconds", stats.store_seconds()},
      {"kv_bytes", stats.kv_bytes()},
      {"view_bytes", stats.view_bytes()},
      {"persisted", done.persisted()},
      {"store_error", done.store_error()},
  };
}

std::string ToText(const PrefillResult& result) {
  const v1::PrefillEvent::Done& done = result.done;
  const v1::PrefillStats& stats = done.stats();
  std::string text = absl::StrCat("handle     ", done.handle(), "\n");
  absl::StrAppend(&text, "tokens     ", done.num_tokens(), ": ",
                  stats.reused_tokens(), " reused, ", stats.computed_tokens(),
                  " computed\n");
  absl::StrAppendFormat(&text, "attention  %s, density %.3f\n",
                        stats.attention_policy(), stats.density());
  if (stats.has_kept_mass()) {
    const v1::PrefillStats::KeptMass& kept = stats.kept_mass();
    absl::StrAppendFormat(
        &text, "kept mass  %.4f, lowest %.4f in layer %d head %d (%d rows)\n",
        kept.mean(), kept.lowest(), kept.lowest_layer(), kept.lowest_head(),
        kept.audited_rows());
  }
  absl::StrAppendFormat(&text, "time       selector %s, attention %s",
                        FormatSeconds(stats.selector_seconds()),
                        FormatSeconds(stats.attention_seconds()));
  absl::StrAppendFormat(&text, ", linear %s, audit %s\n",
                        FormatSeconds(stats.linear_seconds()),
                        FormatSeconds(stats.audit_seconds()));
  absl::StrAppend(&text, "TTFT       ", FormatSeconds(stats.ttft_seconds()));
  if (stats.compute_seconds() > 0) {
    absl::StrAppendFormat(
        &text, ", %.0f computed tokens/s",
        static_cast<double>(stats.computed_tokens()) / stats.compute_seconds());
  }
  absl::StrAppend(&text, "\nKV         ", FormatBytes(stats.kv_bytes()));
  if (stats.view_bytes() > 0) {
    absl::StrAppend(&text, ", view ", FormatBytes(stats.view_bytes()));
  }
  absl::StrAppend(&text,
                  done.persisted() ? ", persisted\n" : ", in memory only\n");
  if (!done.store_error().empty()) {
    absl::StrAppend(&text, "not stored ", done.store_error(), "\n");
  }
  return text;
}

}  // namespace overture::clients
