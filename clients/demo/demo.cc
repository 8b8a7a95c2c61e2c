#include "clients/demo/demo.h"

#include <stdlib.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "clients/tool/chat_template.h"
#include "clients/tool/prefill_run.h"
#include "clients/tool/request_text.h"
#include "clients/tool/server_process.h"
#include "proto/selector_text.h"

namespace overture::clients {
namespace {

constexpr char kSession[] = "demo";

volatile std::sig_atomic_t interrupted = 0;

double SecondsSince(absl::Time start) {
  return absl::ToDoubleSeconds(absl::Now() - start);
}

class Demo {
 public:
  Demo(const DemoOptions& options, std::string folder)
      : options_(options), folder_(std::move(folder)) {}

  absl::StatusOr<DemoReport> Run() {
    OVERTURE_RETURN_IF_ERROR(FirstQuestion());
    OVERTURE_RETURN_IF_ERROR(SparsePrefill());
    OVERTURE_RETURN_IF_ERROR(KillAndRestart());
    OVERTURE_RETURN_IF_ERROR(SecondQuestion());
    return report_;
  }

 private:
  // Prints the title of a step. CANCELLED after Ctrl-C.
  absl::Status Step(absl::string_view title) {
    if (interrupted != 0) return absl::CancelledError("interrupted");
    absl::PrintF("\n%d. %s\n", ++step_, std::string(title));
    std::fflush(stdout);
    return absl::OkStatus();
  }

  absl::Status StartServer() {
    const absl::Time start = absl::Now();
    std::vector<std::string> flags =
        absl::StrSplit(options_.server_flags, ' ', absl::SkipEmpty());
    flags.push_back("--grace=1s");
    OVERTURE_ASSIGN_OR_RETURN(
        server_,
        ServerProcess::Start({.program = SiblingProgram("overtured"),
                              .model = options_.model,
                              .data_dir = absl::StrCat(folder_, "/data"),
                              .work_dir = folder_,
                              .flags = flags}));
    OVERTURE_ASSIGN_OR_RETURN(client_,
                              OvertureClient::Connect(server_.address()));
    const v1::ServerInfo& info = client_->server();
    absl::PrintF("   overtured (process %d) serves %s on %s, %s, after %s\n",
                 server_.process().pid(), info.model().name(),
                 info.model().backend(), info.model().compute_dtype(),
                 FormatSeconds(SecondsSince(start)));
    report_.model = info.model().name();
    return absl::OkStatus();
  }

  absl::StatusOr<PrefillResult> Prefill(const std::string& name,
                                        const v1::PrefillRequest& request) {
    OVERTURE_ASSIGN_OR_RETURN(
        PrefillResult result,
        PrefillWithProgress(*client_, request, "   prefill"));
    const v1::PrefillStats& stats = result.done.stats();
    absl::PrintF(
        "   %d tokens: %d reused, %d computed, density %.3f; first token after "
        "%s (%.0f tokens/s)\n",
        result.done.num_tokens(), stats.reused_tokens(),
        stats.computed_tokens(), stats.density(),
        FormatSeconds(stats.ttft_seconds()), PromptRate(result));
    absl::PrintF(
        "   KV: %s%s\n", FormatBytes(stats.kv_bytes()),
        result.done.persisted()
            ? absl::StrFormat(", durable %s later",
                              FormatSeconds(stats.store_seconds()))
            : absl::StrCat(", not persisted: ", result.done.store_error()));
    report_.prefills.push_back({name, result});
    if (!result.done.persisted()) {
      return absl::UnavailableError(
          absl::StrCat("the KV of '", name,
                       "' was not persisted: ", result.done.store_error()));
    }
    return result;
  }

  // Runs a decode worker on the handle; its text streams to the screen.
  absl::StatusOr<DecodeReport> Answer(const std::string& name,
                                      const std::string& question,
                                      const PrefillResult& prefill,
                                      const std::string& source) {
    absl::PrintF("   answer (%s): ", name);
    std::fflush(stdout);
    OVERTURE_ASSIGN_OR_RETURN(
        DecodeReport report,
        RunDecodeWorker({.server = server_.address(),
                         .handle = prefill.done.handle(),
                         .source = source,
                         .model = options_.model,
                         .max_tokens = options_.max_answer_tokens}));
    absl::PrintF(
        "   [%d tokens, %s each, over %s of KV fetched in %s]\n",
        report.token_ids.size(), FormatSeconds(report.seconds_per_token),
        FormatBytes(report.kv_bytes), FormatSeconds(report.fetch_seconds));
    report_.answers.push_back({name, question, report});
    return report;
  }

  absl::Status FirstQuestion() {
    OVERTURE_RETURN_IF_ERROR(
        Step("Start the server, with its store in a temporary folder"));
    OVERTURE_RETURN_IF_ERROR(StartServer());
    OVERTURE_ASSIGN_OR_RETURN(chat_, ChooseChatTemplate(*client_));

    OVERTURE_RETURN_IF_ERROR(
        Step("Prefill a document with a question, dense, as a session's first "
             "turn"));
    // Room for both questions, both answers and the template.
    const int64_t room = client_->server().max_prompt_tokens() -
                         2 * options_.max_answer_tokens - 512;
    OVERTURE_ASSIGN_OR_RETURN(
        Document document,
        LoadDocument(*client_, options_.file,
                     std::max<int64_t>(
                         1, std::min(room, options_.max_document_tokens))));
    absl::PrintF("   document: %s, %d tokens", options_.file,
                 document.num_tokens);
    if (document.num_tokens < document.full_num_tokens) {
      absl::PrintF(" (cut from %d: --max-document-tokens)",
                   document.full_num_tokens);
    }
    absl::PrintF("\n   question: %s\n", options_.question);
    report_.document =
        absl::StrCat(options_.file, ", ", document.num_tokens, " tokens");
    OVERTURE_ASSIGN_OR_RETURN(
        prompt_,
        EncodePieces(*client_, ChatTurn(*chat_, options_.system,
                                        absl::StrCat(document.text, "\n\n",
                                                     options_.question))));
    v1::CreateSessionRequest session;
    session.set_id(kSession);
    session.mutable_selector()->mutable_dense();
    OVERTURE_RETURN_IF_ERROR(client_->CreateSession(session).status());

    v1::PrefillRequest request;
    request.set_session_id(kSession);
    request.mutable_tokens()->mutable_ids()->Add(prompt_.begin(),
                                                 prompt_.end());
    OVERTURE_ASSIGN_OR_RETURN(*request.mutable_view(),
                              ParseView(options_.view));
    OVERTURE_ASSIGN_OR_RETURN(PrefillResult result,
                              Prefill("dense, cold", request));

    OVERTURE_RETURN_IF_ERROR(Step(
        "Answer in another process, from the full KV and from a SnapKV view"));
    OVERTURE_ASSIGN_OR_RETURN(
        DecodeReport answer,
        Answer("dense, full KV", options_.question, result, "full"));
    answer_ = answer.token_ids;
    return Answer("dense, SnapKV view", options_.question, result, "view")
        .status();
  }

  absl::Status SparsePrefill() {
    OVERTURE_RETURN_IF_ERROR(Step(absl::StrCat(
        "The same prompt with sparse attention: ", options_.selector)));
    v1::PrefillRequest request;
    request.mutable_tokens()->mutable_ids()->Add(prompt_.begin(),
                                                 prompt_.end());
    OVERTURE_ASSIGN_OR_RETURN(*request.mutable_selector(),
                              v1::ParseSelector(options_.selector));
    OVERTURE_ASSIGN_OR_RETURN(PrefillResult result,
                              Prefill("vertical-slash, cold", request));
    return Answer("vertical-slash, full KV", options_.question, result, "full")
        .status();
  }

  absl::Status KillAndRestart() {
    OVERTURE_RETURN_IF_ERROR(Step(
        "Kill the server with SIGKILL and start it again on the same folder"));
    const absl::Time start = absl::Now();
    client_.reset();
    server_.process().Kill();
    OVERTURE_RETURN_IF_ERROR(StartServer());
    report_.restart_seconds = SecondsSince(start);
    OVERTURE_ASSIGN_OR_RETURN(v1::Session session,
                              client_->GetSession(kSession));
    absl::PrintF("   session '%s' is there: %d turn, %d tokens\n", session.id(),
                 session.num_turns(), session.num_tokens());
    return absl::OkStatus();
  }

  absl::Status SecondQuestion() {
    OVERTURE_RETURN_IF_ERROR(Step(
        "A second question in the same session: only new tokens are sent"));
    absl::PrintF("   question: %s\n", options_.second_question);
    OVERTURE_ASSIGN_OR_RETURN(
        std::vector<int32_t> turn,
        EncodePieces(*client_,
                     ChatTurn(*chat_, std::nullopt, options_.second_question)));
    v1::PrefillRequest request;
    request.set_session_id(kSession);
    auto* ids = request.mutable_tokens()->mutable_ids();
    ids->Add(answer_.begin(), answer_.end());
    ids->Add(turn.begin(), turn.end());
    absl::PrintF("   sent: %d tokens, %d of them the first answer\n",
                 ids->size(), answer_.size());
    OVERTURE_ASSIGN_OR_RETURN(
        PrefillResult result,
        Prefill("dense, second turn after kill -9", request));
    OVERTURE_RETURN_IF_ERROR(
        Answer("second turn, full KV", options_.second_question, result, "full")
            .status());

    const PrefillResult& cold = report_.prefills.front().result;
    report_.reused_fraction =
        static_cast<double>(result.done.stats().reused_tokens()) /
        static_cast<double>(cold.done.num_tokens());
    report_.ttft_ratio = cold.done.stats().ttft_seconds() /
                         std::max(1e-9, result.done.stats().ttft_seconds());
    return absl::OkStatus();
  }

  const DemoOptions& options_;
  const std::string folder_;
  int step_ = 0;
  ServerProcess server_;
  std::unique_ptr<OvertureClient> client_;
  const ChatTemplate* chat_ = nullptr;
  std::vector<int32_t> prompt_;  // of the first question
  std::vector<int32_t> answer_;  // to it
  DemoReport report_;
};

}  // namespace

absl::StatusOr<DemoReport> RunDemo(const DemoOptions& options) {
  std::error_code error;
  std::string folder =
      (std::filesystem::temp_directory_path(error) / "overture-demo-XXXXXX")
          .string();
  if (mkdtemp(folder.data()) == nullptr) {
    return absl::InternalError(absl::StrCat("cannot make ", folder));
  }
  // Ctrl-C reaches the server and the worker too, so that the step under way
  // fails; this process stays to remove what they wrote.
  std::signal(SIGINT, [](int) { interrupted = 1; });
  std::signal(SIGTERM, [](int) { interrupted = 1; });
  // After the server, which Run's Demo has killed by then.
  const absl::Cleanup remove = [&folder] {
    std::error_code ignored;
    std::filesystem::remove_all(folder, ignored);
  };
  Demo demo(options, folder);
  OVERTURE_ASSIGN_OR_RETURN(DemoReport report, demo.Run());
  absl::PrintF("\n%s", ToText(report));
  std::fflush(stdout);
  const v1::PrefillEvent::Done& first = report.prefills.front().result.done;
  const v1::PrefillEvent::Done& second = report.prefills.back().result.done;
  if (!ReusedEnough(first.num_tokens(), second.num_tokens(),
                    second.stats().reused_tokens())) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "only %.1f%% of the first turn were reused, 90%% are expected",
        100 * report.reused_fraction));
  }
  return report;
}

}  // namespace overture::clients
