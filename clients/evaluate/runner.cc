#include "clients/evaluate/runner.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/status_macros.h"
#include "clients/tool/request_text.h"
#include "proto/selector_text.h"

namespace overture::clients {
namespace {

void Append(std::vector<int32_t>& out, const std::vector<int32_t>& more) {
  out.insert(out.end(), more.begin(), more.end());
}

v1::FetchRequest::Source SourceOf(const Configuration& configuration) {
  return configuration.view == kFull ? v1::FetchRequest::SOURCE_FULL
                                     : v1::FetchRequest::SOURCE_VIEW;
}

}  // namespace

TurnPrompt PromptOfTurn(const Sample& sample, Mode mode,
                        absl::string_view question, int turn) {
  std::vector<int32_t> all;  // behind the context
  if (mode == Mode::kMultiTurn || mode == Mode::kStoredView) {
    for (int t = 0; t < turn; ++t) {
      const Turn& before = sample.turns[static_cast<size_t>(t)];
      Append(all, before.question);
      Append(all, before.gold);
      Append(all, before.closing);
    }
  }
  const std::vector<int32_t>& asked =
      sample.turns[static_cast<size_t>(turn)].question;
  Append(all, asked);
  // What is prefilled of it ends with a question, hidden or not.
  const bool stored = mode == Mode::kStoredView;
  const size_t question_size =
      stored ? sample.turns[0].question.size() : asked.size();
  const size_t end = stored ? question_size : all.size();
  const auto middle =
      all.begin() + static_cast<std::ptrdiff_t>(
                        question == kHidden ? end - question_size : end);
  TurnPrompt prompt{.prefill = sample.context,
                    .continuation = {middle, all.end()}};
  prompt.prefill.insert(prompt.prefill.end(), all.begin(), middle);
  return prompt;
}

absl::StatusOr<PrefillResult> Runner::Prefill(
    const Configuration& configuration, const TurnPrompt& prompt, bool cold,
    bool store) {
  v1::PrefillRequest request;
  request.mutable_tokens()->mutable_ids()->Add(prompt.prefill.begin(),
                                               prompt.prefill.end());
  OVERTURE_ASSIGN_OR_RETURN(*request.mutable_selector(),
                            v1::ParseSelector(configuration.selector));
  if (configuration.view != kFull) {
    OVERTURE_ASSIGN_OR_RETURN(*request.mutable_view(),
                              ParseView(configuration.view));
  }
  request.set_reuse(cold ? v1::PrefillRequest::REUSE_NONE
                         : v1::PrefillRequest::REUSE_EXACT);
  request.set_no_store(!store);
  return ClientOf(configuration).Prefill(request);
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
  pair_.clear();
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
  // What each prefill serves. Full KV comes with the first view.
  std::vector<std::vector<Record>> prefills;
  for (const Configuration& configuration : configurations) {
    Record record{.sample = sample.id,
                  .mode = mode,
                  .turn = turn,
                  .configuration = configuration};
    const bool is_compared_with =
        sample.by_likelihood && configuration == PairOf(configuration);
    if (file.Has(record) && !is_compared_with) continue;
    const bool full = configuration.view == kFull;
    if (!full || prefills.empty()) prefills.emplace_back();
    std::vector<Record>& records = full ? prefills.front() : prefills.back();
    records.insert(full ? records.begin() : records.end(), std::move(record));
  }
  const Turn& asked = sample.turns[static_cast<size_t>(turn)];
  const bool goes_on = mode == Mode::kMultiTurn || mode == Mode::kMultiRequest;
  for (std::vector<Record>& records : prefills) {
    const Configuration& configuration = records.back().configuration;
    const TurnPrompt prompt =
        PromptOfTurn(sample, mode, configuration.question, turn);
    OVERTURE_ASSIGN_OR_RETURN(
        const PrefillResult result,
        Prefill(configuration, prompt, /*cold=*/turn == 0 || !goes_on,
                /*store=*/goes_on));
    const std::string& handle = result.done.handle();
    const absl::Cleanup release = [&] {
      ClientOf(configuration).Release({handle}).IgnoreError();
    };
    const v1::PrefillStats& stats = result.done.stats();
    for (Record& record : records) {
      record.density = stats.density();
      record.selector_seconds = stats.selector_seconds();
      if (stats.has_kept_mass()) {
        record.kept_mass = {.mean = stats.kept_mass().mean(),
                            .lowest = stats.kept_mass().lowest()};
      }
      record.ttft_seconds =
          result.first_token.ttft_seconds() - stats.queue_seconds();
      record.reused_tokens = stats.reused_tokens();
      OVERTURE_RETURN_IF_ERROR(sample.by_likelihood
                                   ? Continue(asked, handle, record)
                                   : Answer(asked, prompt, handle, record));
      if (!file.Has(record)) OVERTURE_RETURN_IF_ERROR(file.Append(record));
    }
  }
  return absl::OkStatus();
}

absl::Status Runner::Answer(const Turn& asked, const TurnPrompt& prompt,
                            const std::string& handle, Record& record) {
  OVERTURE_ASSIGN_OR_RETURN(
      DecodeResult decoded,
      worker_.Run(ClientOf(record.configuration),
                  {.handle = handle,
                   .source = SourceOf(record.configuration),
                   .max_tokens = asked.max_tokens,
                   .continuation = prompt.continuation},
                  nullptr));
  record.score = ScoreAnswer(spelling_, asked, decoded.token_ids, decoded.text);
  record.answer = std::move(decoded.token_ids);
  record.text = std::move(decoded.text);
  record.kv_bytes = decoded.kv_bytes;
  return absl::OkStatus();
}

absl::Status Runner::Continue(const Turn& text, const std::string& handle,
                              Record& record) {
  OVERTURE_ASSIGN_OR_RETURN(
      const FetchedKv kv, worker_.Fetch(ClientOf(record.configuration), handle,
                                        SourceOf(record.configuration)));
  LogProbabilities rows;
  for (size_t i = 0; i + 1 < text.gold.size(); ++i) {
    OVERTURE_ASSIGN_OR_RETURN(const absl::Span<const float> logits,
                              kv.decoder->Step(text.gold[i]));
    rows.push_back(LogSoftmax(logits));
  }
  if (record.configuration == PairOf(record.configuration)) pair_ = rows;
  record.likelihood =
      CompareLikelihood(rows, pair_, absl::MakeConstSpan(text.gold).subspan(1));
  record.kv_bytes = kv.transfer.bytes;
  return absl::OkStatus();
}

}  // namespace overture::clients
