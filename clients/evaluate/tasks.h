// The tasks of docs/evaluation.md, section 2, and their samples. A sample is a
// function of its id, the spelling and the tokenizer. Thread-safe: no state.
//
// Errors: NOT_FOUND for an unknown task, naming those there are;
// INVALID_ARGUMENT for a depth outside [0, 1] or more turns than the task has;
// OUT_OF_RANGE for a length too short for the task; the tokenizer's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/evaluate/context_builder.h"
#include "clients/evaluate/spelling.h"

namespace overture::clients {

struct SampleId {
  std::string task;
  int64_t length = 0;  // tokens of context and first question
  double depth = 0;    // [0, 1], of what the first question asks for
  int64_t seed = 0;
};
// "0.50": two decimals where they are the whole number, else ("0.125") as few
// digits as tell it from every other.
std::string DepthText(double depth);
// "kv/2048/0.50/7", "kv/2048/0.125/7": different for different samples.
std::string ToString(const SampleId& id);

// One question. The answer follows the question's last token.
struct Turn {
  std::vector<int32_t> question;
  // What the answer must contain, in the order of the gold answer.
  std::vector<std::string> parts;
  std::vector<int32_t> gold;     // ids of the answer and of what ends it
  std::vector<int32_t> closing;  // what stands between gold and next question
  int64_t max_tokens = 0;        // room for an answer
  bool any_order = false;        // of the parts: gold's is one of several
};

struct Sample {
  SampleId id;
  std::vector<int32_t> context;  // with turns[0].question: id.length tokens
  std::vector<Turn> turns;
  // Real text: one turn without a question, whose gold is how the text goes on.
  bool by_likelihood = false;
};

absl::StatusOr<Sample> MakeSample(const SampleId& id, int num_turns,
                                  Spelling spelling,
                                  const TokenizeText& tokenize);

std::vector<std::string> TaskNames();

// The task of real text (real_text.h), which has its files beside the id.
inline constexpr char kRealText[] = "text";

}  // namespace overture::clients
