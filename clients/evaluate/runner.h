// Asks a running server for a sample's answers, one configuration after the
// other, and decodes them from the KV that it hands out. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "clients/cpp/client.h"
#include "clients/decode_worker/decode_worker.h"
#include "clients/evaluate/grid.h"
#include "clients/evaluate/record.h"
#include "clients/evaluate/tasks.h"

namespace overture::clients {

// One prefill of a sample's turn. Prefills of later turns may reuse what
// earlier ones stored; a first one computes everything.
struct TurnPrompt {
  std::vector<int32_t> prefill;
  std::vector<int32_t> continuation;  // a hidden question, for the decoder
};
TurnPrompt PromptOfTurn(const Sample& sample, Mode mode,
                        absl::string_view question, int turn);

class Runner {
 public:
  // Both outlive it.
  Runner(OvertureClient& client, const DecodeWorker& worker, Spelling spelling)
      : client_(client), worker_(worker), spelling_(spelling) {}

  // Appends what is missing of the sample's records to `file`. A configuration
  // over full KV shares the prefill of the first one with a view, as both
  // come from one handle.
  absl::Status Run(const Grid& grid, const Sample& sample, RecordFile& file);

 private:
  absl::Status RunTurn(const Sample& sample, int turn, Mode mode,
                       const std::vector<Configuration>& configurations,
                       RecordFile& file);
  absl::StatusOr<PrefillResult> Prefill(const Configuration& configuration,
                                        const TurnPrompt& prompt, bool cold,
                                        bool store);

  OvertureClient& client_;
  const DecodeWorker& worker_;
  const Spelling spelling_;
};

}  // namespace overture::clients
