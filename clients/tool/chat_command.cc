// A conversation at the terminal: a session keeps the history on the server, so
// that a turn sends the answer that the worker made and the new message.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "clients/tool/chat_template.h"
#include "clients/tool/commands.h"
#include "clients/tool/common_flags.h"
#include "clients/tool/decode_run.h"
#include "clients/tool/prefill_run.h"
#include "clients/tool/request_text.h"
#include "proto/selector_text.h"

namespace overture::clients {
namespace {

struct ChatOptions {
  ServerFlags server;
  std::string model;
  std::string session;
  std::string selector;
  std::string view;
  std::string system = "You are a helpful assistant.";
  std::string compute = "auto";
  int64_t max_tokens = 256;
};

class Conversation {
 public:
  Conversation(const ChatOptions& options, OvertureClient& client,
               const ChatTemplate& chat)
      : options_(options), client_(client), chat_(chat) {}

  // Finds or makes the session.
  absl::Status Open() {
    if (!options_.session.empty()) {
      absl::StatusOr<v1::Session> found = client_.GetSession(options_.session);
      if (found.ok()) {
        session_id_ = found->id();
        started_ = found->num_tokens() > 0;
        return absl::OkStatus();
      }
      if (!absl::IsNotFound(found.status())) return found.status();
    }
    v1::CreateSessionRequest request;
    request.set_id(options_.session);
    if (!options_.selector.empty()) {
      OVERTURE_ASSIGN_OR_RETURN(*request.mutable_selector(),
                                v1::ParseSelector(options_.selector));
    }
    OVERTURE_ASSIGN_OR_RETURN(v1::Session session,
                              client_.CreateSession(request));
    session_id_ = session.id();
    return absl::OkStatus();
  }

  // Sends one message and streams the answer. After an error the turn may be
  // tried again: nothing of it has become history, unless the answer failed.
  absl::Status Turn(absl::string_view message) {
    std::optional<absl::string_view> system;
    if (!started_) system = options_.system;
    OVERTURE_ASSIGN_OR_RETURN(
        std::vector<int32_t> ids,
        EncodePieces(client_, ChatTurn(chat_, system, message)));
    v1::PrefillRequest request;
    request.set_session_id(session_id_);
    auto* prompt = request.mutable_tokens()->mutable_ids();
    prompt->Add(answer_.begin(), answer_.end());
    prompt->Add(ids.begin(), ids.end());
    if (!options_.view.empty()) {
      OVERTURE_ASSIGN_OR_RETURN(*request.mutable_view(),
                                ParseView(options_.view));
    }
    OVERTURE_ASSIGN_OR_RETURN(PrefillResult prefill,
                              PrefillWithProgress(client_, request, "prefill",
                                                  options_.server.call()));
    started_ = true;
    answer_.clear();
    const absl::StatusOr<DecodeReport> report =
        RunDecodeWorker({.server = options_.server.server,
                         .handle = prefill.done.handle(),
                         .source = options_.view.empty() ? "full" : "view",
                         .model = options_.model,
                         .compute = options_.compute,
                         .max_tokens = options_.max_tokens});
    client_.Release({prefill.done.handle()}).IgnoreError();
    if (!report.ok()) return report.status();
    answer_ = report->token_ids;
    const v1::PrefillStats& stats = prefill.done.stats();
    absl::FPrintF(stderr,
                  "[%d tokens sent, %d reused, TTFT %s, %s per token]\n",
                  request.tokens().ids_size(), stats.reused_tokens(),
                  FormatSeconds(stats.ttft_seconds()),
                  FormatSeconds(report->seconds_per_token));
    return absl::OkStatus();
  }

  const std::string& session_id() const { return session_id_; }

 private:
  const ChatOptions& options_;
  OvertureClient& client_;
  const ChatTemplate& chat_;
  std::string session_id_;
  bool started_ = false;         // the session has a history
  std::vector<int32_t> answer_;  // the last one, not yet sent
};

}  // namespace

absl::Status RunChat(CommandArgs args) {
  ChatOptions options;
  FlagParser flags("overture chat",
                   "A conversation, one message a line, until end of input.");
  options.server.AddTo(flags);
  flags.Add("model", &options.model,
            "The served model's file or folder, for the decode worker. "
            "Needed.");
  flags.Add("session", &options.session,
            "Id of a session to continue or make. The last answer before a "
            "continued session was left is not part of it.");
  flags.Add("selector", &options.selector,
            "Attention of a new session, as for prefill.");
  flags.Add("view", &options.view,
            "Answer from such a view, as for prefill; else from the full KV.");
  flags.Add("system", &options.system, "The system message; may be empty.");
  flags.Add("max-tokens", &options.max_tokens, "Tokens of an answer at most.");
  flags.Add("compute", &options.compute, "auto, bf16 or f32, of the worker.");
  bool done = false;
  OVERTURE_RETURN_IF_ERROR(ParseOrHelp(flags, args, &done));
  if (done) return absl::OkStatus();
  if (options.model.empty()) {
    return absl::InvalidArgumentError("--model is needed");
  }

  OVERTURE_ASSIGN_OR_RETURN(auto client, options.server.Connect());
  OVERTURE_ASSIGN_OR_RETURN(const ChatTemplate* chat,
                            ChooseChatTemplate(*client));
  Conversation conversation(options, *client, *chat);
  OVERTURE_RETURN_IF_ERROR(conversation.Open());
  const bool terminal = isatty(STDIN_FILENO) == 1;
  absl::FPrintF(stderr, "[session %s, template %s]\n",
                conversation.session_id(), std::string(chat->name));
  std::string line;
  while (true) {
    if (terminal) {
      std::fputs("> ", stdout);
      std::fflush(stdout);
    }
    if (!std::getline(std::cin, line)) break;
    const absl::string_view message = absl::StripAsciiWhitespace(line);
    if (message.empty()) continue;
    const absl::Status status = conversation.Turn(message);
    // At a terminal the next line may fare better; a script must learn of it.
    if (!status.ok() && !terminal) return status;
    if (!status.ok()) {
      absl::FPrintF(stderr, "overture chat: %s\n", status.ToString());
    }
  }
  if (terminal) std::puts("");
  return absl::OkStatus();
}

}  // namespace overture::clients
