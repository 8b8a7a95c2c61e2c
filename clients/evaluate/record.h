// The results of an evaluation: one JSON line per sample, turn and
// configuration behind a header line (docs/evaluation.md, section 5).
//
// RecordFile: one thread, one process at a time. A record is on its way to the
// disk when Append returns: it survives the end of this process.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/evaluate/grid.h"
#include "clients/evaluate/score.h"
#include "nlohmann/json_fwd.hpp"

namespace overture::clients {

struct Record {
  SampleId sample;
  Mode mode = Mode::kSingle;
  int turn = 0;
  Configuration configuration;
  Score score;
  std::vector<int32_t> answer;
  std::string text;      // what the answer spells
  double density = 0;    // of the rows that this prefill computed
  int64_t kv_bytes = 0;  // that the decode worker received
  double ttft_seconds = 0;
  int64_t reused_tokens = 0;  // not 0: the TTFT is a warm one
};

// Names a record among all of a grid's.
std::string Key(const Record& record);

nlohmann::json ToJson(const Record& record);
// INVALID_ARGUMENT if it is no record.
absl::StatusOr<Record> RecordFromJson(const nlohmann::json& json);

// What all records of a file have in common.
struct RecordHeader {
  std::string weights_digest;  // hexadecimal, as the rest
  std::string tokenizer_digest;
  std::string spelling;
  std::string backend;  // "cpu bf16"

  friend bool operator==(const RecordHeader&, const RecordHeader&) = default;
};

class RecordFile {
 public:
  // Makes the file, or continues it: a torn last line is cut off.
  // FAILED_PRECONDITION if it holds results of something else, DATA_LOSS naming
  // the line for one that is no record.
  static absl::StatusOr<std::unique_ptr<RecordFile>> Open(
      const std::string& path, const RecordHeader& header);
  ~RecordFile();
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  bool Has(const Record& record) const { return keys_.count(Key(record)) > 0; }
  const std::vector<Record>& records() const { return records_; }

  // ALREADY_EXISTS if it is there.
  absl::Status Append(const Record& record);

 private:
  RecordFile() = default;
  absl::Status WriteLine(const nlohmann::json& json);

  std::string path_;
  std::FILE* file_ = nullptr;
  std::vector<Record> records_;
  std::set<std::string> keys_;
};

}  // namespace overture::clients
