// Tables of an evaluation. Thread-safe: no state.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "clients/evaluate/record.h"
#include "clients/evaluate/statistics.h"

namespace overture::clients {

// What records of one configuration add up to.
struct Tally {
  int64_t samples = 0;
  int64_t right = 0;
  int64_t tail = 0;
  int64_t lost = 0;  // right in the pair, not here
  int64_t won = 0;   // the reverse
  double score = 0;  // mean, as what follows
  double density = 0;
  std::optional<KeptMass> kept_mass;  // of the records that have one
  double selector_seconds = 0;
  double kv_share = 0;  // bytes received over those of the pair, mean
  double kv_bytes = 0;
  double ttft_seconds = 0;  // median over prefills that reused nothing; 0: none

  // Of records of real text, which have no answers: all above is 0 but what a
  // prefill costs.
  double loss = 0;         // means, with 95% intervals
  double loss_change = 0;  // over the pair's
  Interval loss_interval;  // of the change
  double kl = 0;
  double agreement = 0;
  Interval agreement_interval;
};

// Question last before hidden, selectors and views in the order of their first
// records, full KV before views.
std::vector<Configuration> ConfigurationsOf(absl::Span<const Record> records);

// Of the records that `belongs` accepts. A record's pair is that of the same
// sample, turn and place of the question over dense full KV.
class Pairs {
 public:
  // Borrows the records.
  explicit Pairs(absl::Span<const Record> records);
  Tally Count(const std::function<bool(const Record&)>& belongs) const;
  Tally Count(const Configuration& configuration,
              const std::function<bool(const Record&)>& belongs) const;

 private:
  absl::Span<const Record> records_;
  std::map<std::string, const Record*> dense_;
};

// Markdown: for each mode and turn a table of lengths and configurations over
// tasks, and one per task; real text has tables of its own. `title` heads it.
std::string SummaryMarkdown(absl::string_view title,
                            absl::Span<const Record> records);

}  // namespace overture::clients
