// Asks a running server for a sample's answers, one configuration after the
// other, and decodes them from the KV that it hands out. One thread; many may
// run beside each other, over the same clients, worker and file.
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
  // For the decoder: a hidden question, and over a stored view all turns
  // behind the first prefill.
  std::vector<int32_t> continuation;
};
TurnPrompt PromptOfTurn(const Sample& sample, Mode mode,
                        absl::string_view question, int turn);

class Runner {
 public:
  // `noise` answers the second runs of dense. All outlive it.
  Runner(OvertureClient& client, OvertureClient& noise,
         const DecodeWorker& worker, Spelling spelling)
      : client_(client), noise_(noise), worker_(worker), spelling_(spelling) {}

  // Appends what is missing of the sample's records to `file`. A configuration
  // over full KV shares the prefill of the first one with a view, as both
  // come from one handle. Real text is compared with the pair's distributions,
  // which are computed again if that record is there already.
  absl::Status Run(const Grid& grid, const Sample& sample, RecordFile& file);

 private:
  absl::Status RunTurn(const Sample& sample, int turn, Mode mode,
                       const std::vector<Configuration>& configurations,
                       RecordFile& file);
  absl::StatusOr<PrefillResult> Prefill(const Configuration& configuration,
                                        const TurnPrompt& prompt, bool cold,
                                        bool store);
  // Both complete the record from a handle's KV.
  absl::Status Answer(const Turn& asked, const TurnPrompt& prompt,
                      const std::string& handle, Record& record);
  absl::Status Continue(const Turn& text, const std::string& handle,
                        Record& record);

  OvertureClient& ClientOf(const Configuration& configuration) {
    return configuration.repeat == 0 ? client_ : noise_;
  }

  OvertureClient& client_;
  OvertureClient& noise_;
  const DecodeWorker& worker_;
  const Spelling spelling_;
  LogProbabilities pair_;  // of the sample that runs
};

}  // namespace overture::clients
