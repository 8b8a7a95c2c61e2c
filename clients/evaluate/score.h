// What an answer is worth (docs/evaluation.md, section 3). Thread-safe: no
// state.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "clients/evaluate/spelling.h"
#include "clients/evaluate/tasks.h"

namespace overture::clients {

struct Score {
  bool right = false;
  bool tail = false;  // right but for the first token, whatever that is
  double share = 0;   // of the gold parts that the answer contains
};

// `text` is what `ids` spell.
Score ScoreAnswer(Spelling spelling, const Turn& turn,
                  absl::Span<const int32_t> ids, absl::string_view text);

// Whether the words of `part` stand in a row among those of `text`. Words are
// what stands between white space, in lower case, without punctuation at their
// ends.
bool ContainsWords(absl::string_view text, absl::string_view part);

}  // namespace overture::clients
