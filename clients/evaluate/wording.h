// The sentences of each task in both spellings. "{k}" stands for a key, "{v}"
// for a value, "{n}" for a number of things asked for. Thread-safe: constants.
#pragma once

#include "absl/strings/string_view.h"
#include "clients/evaluate/spelling.h"

namespace overture::clients {

struct Wording {
  absl::string_view head;      // before everything
  absl::string_view fact;      // a statement, or an item of a list
  absl::string_view link;      // a statement that leads to another; often none
  absl::string_view question;  // up to where the answer begins
  absl::string_view answer;
  absl::string_view closing;  // between an answer and the next question
};

enum class WordingId {
  kPasskey,
  kNumber,
  kNeedle,
  kNeedles,  // several values
  kDictionary,
  kVariables,
  kCommonWords,
  kFrequentWords,
  kPeople,
  kNeighbours,
};

const Wording& GetWording(WordingId id, Spelling spelling);

// Several keys or values in one sentence.
absl::string_view ListSeparator(Spelling spelling);

}  // namespace overture::clients
