// Samples of real text: an excerpt to prefill, and what follows it, to score by
// likelihood. The text is files of whoever runs the evaluation, read in place;
// a sample's task names their digest, so that samples of one name are the same.
// Thread-safe after Load.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/evaluate/context_builder.h"
#include "clients/evaluate/tasks.h"

namespace overture::clients {

// Tokens behind the excerpt: the decoder is fed all but the last, and predicts
// all but the first.
inline constexpr int64_t kContinuationTokens = 128;

class RealText {
 public:
  // Paths separated by ';': files, or folders, whose regular files are taken
  // (not links, not those of folders inside), in the order of their names.
  // Errors: NOT_FOUND names the path; INVALID_ARGUMENT if there is no text.
  static absl::StatusOr<RealText> Load(absl::string_view paths,
                                       const TokenizeText& tokenize);

  // "text:1f3a9c02": kRealText and the first half of the contents' digest.
  const std::string& task() const { return task_; }

  // `id.length` tokens from a random place of a file that has as many and the
  // continuation; every place of every file is as likely. The depth is a part
  // of the seed, no place. OUT_OF_RANGE, saying what the longest file has, if
  // all are too short.
  absl::StatusOr<Sample> MakeSample(const SampleId& id) const;

 private:
  RealText() = default;

  std::string task_;
  std::vector<std::vector<int32_t>> files_;  // token ids
};

}  // namespace overture::clients
