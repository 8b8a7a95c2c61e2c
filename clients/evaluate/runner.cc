#include "clients/evaluate/runner.h"

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/status_macros.h"
#include "clients/tool/request_text.h"

namespace overture::clients {
namespace {

void Append(std::vector<int32_t>& out, const std::vector<int32_t>& more) {
  out.insert(out.end(), more.begin(), more.end());
}

}  // namespace

TurnPrompt PromptOfTurn(const Sample& sample, Mode mode,
                        absl::string_view question, int turn) {
  TurnPrompt prompt{.prefill = sample.context};
  if (mode == Mode::kMultiTurn) {
    for (int t = 0; t < turn; ++t) {
      const Turn& before = sample.turns[static_cast<size_t>(t)];
      Append(prompt.prefill, before.question);
      Append(prompt.prefill, before.gold);
      Append(prompt.prefill, before.closing);
    }
  }
  const std::vector<int32_t>& asked =
      sample.turns[static_cast<size_t>(turn)].question;
  Append(question == kHidden ? prompt.continuation : prompt.prefill, asked);
  return prompt;
}

absl::StatusOr<PrefillResult> Runner::Prefill(
    const Configuration& configuration, const TurnPrompt& prompt, bool cold,
    bool store) {
  v1::PrefillRequest request;
  request.mutable_tokens()->mutable_ids()->Add(prompt.prefill.begin(),
                                               prompt.prefill.end());
  OVERTURE_ASSIGN_OR_RETURN(*request.mutable_selector(),
                            ParseSelector(configuration.selector));
  if (configuration.view != kFull) {
    OVERTURE_ASSIGN_OR_RETURN(*request.mutable_view(),
                              ParseView(configuration.view));
  }
  request.set_reuse(cold ? v1::PrefillRequest::REUSE_NONE
                         : v1::PrefillRequest::REUSE_EXACT);
  request.set_no_store(!store);
  return client_.Prefill(request);
}

absl::Status Runner::Run(const Grid& grid, const Sample& sample,
                         RecordFile& file) {
  // Runs of configurations that differ in the view alone.
  std::vector<std::vector<Configuration>> groups;
  for (const Configuration& configuration : grid.configurations) {
    const auto belongs = [&configuration](const auto& group) {
      return group[0].selector == configuration.selector &&
             group[0].question == configuration.question &&
             group[0].repeat == configuration.repeat;
    };
    auto group = std::find_if(groups.begin(), groups.end(), belongs);
    if (group == groups.end()) group = groups.emplace(groups.end());
    group->push_back(configuration);
  }
  for (const std::vector<Configuration>& group : groups) {
    for (int turn = 0; turn < grid.turns; ++turn) {
      OVERTURE_RETURN_IF_ERROR(RunTurn(sample, turn, grid.mode, group, file));
    }
  }
  return absl::OkStatus();
}

absl::Status Runner::RunTurn(const Sample& sample, int turn, Mode mode,
                             const std::vector<Configuration>& configurations,
                             RecordFile& file) {
  std::vector<Record> missing;
  for (const Configuration& configuration : configurations) {
    Record record{.sample = sample.id,
                  .mode = mode,
                  .turn = turn,
                  .configuration = configuration};
    if (!file.Has(record)) missing.push_back(std::move(record));
  }
  // Views first: the full KV comes with the first of them.
  std::stable_partition(missing.begin(), missing.end(), [](const Record& r) {
    return r.configuration.view != kFull;
  });
  const Turn& asked = sample.turns[static_cast<size_t>(turn)];
  for (size_t i = 0; i < missing.size(); ++i) {
    const Configuration& configuration = missing[i].configuration;
    const TurnPrompt prompt =
        PromptOfTurn(sample, mode, configuration.question, turn);
    OVERTURE_ASSIGN_OR_RETURN(const PrefillResult result,
                              Prefill(configuration, prompt, /*cold=*/turn == 0,
                                      /*store=*/mode != Mode::kSingle));
    const absl::Cleanup release = [&] {
      client_.Release({result.done.handle()}).IgnoreError();
    };
    const auto answer = [&](Record record) -> absl::Status {
      const bool full = record.configuration.view == kFull;
      OVERTURE_ASSIGN_OR_RETURN(
          DecodeResult decoded,
          worker_.Run(client_,
                      {.handle = result.done.handle(),
                       .source = full ? v1::FetchRequest::SOURCE_FULL
                                      : v1::FetchRequest::SOURCE_VIEW,
                       .max_tokens = asked.max_tokens,
                       .continuation = prompt.continuation},
                      nullptr));
      const v1::PrefillStats& stats = result.done.stats();
      record.score =
          ScoreAnswer(spelling_, asked, decoded.token_ids, decoded.text);
      record.answer = std::move(decoded.token_ids);
      record.text = std::move(decoded.text);
      record.density = stats.density();
      record.kv_bytes = decoded.kv_bytes;
      record.ttft_seconds = result.first_token.ttft_seconds();
      record.reused_tokens = stats.reused_tokens();
      return file.Append(record);
    };
    OVERTURE_RETURN_IF_ERROR(answer(missing[i]));
    if (missing.back().configuration.view == kFull && i + 1 < missing.size()) {
      OVERTURE_RETURN_IF_ERROR(answer(missing.back()));
      missing.pop_back();
    }
  }
  return absl::OkStatus();
}

}  // namespace overture::clients
