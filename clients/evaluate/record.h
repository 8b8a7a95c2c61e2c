// The results of an evaluation: one JSON line per sample, turn and
// configuration behind a header line (docs/evaluation.md, section 5).
//
// RecordFile: one thread, and by a lock on the file one process at a time. A
// record is on its way to the disk when Append returns: it survives the end of
// this process.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/evaluate/grid.h"
#include "clients/evaluate/score.h"
#include "clients/evaluate/spelling.h"
#include "nlohmann/json_fwd.hpp"
#include "overture/v1/admin.pb.h"

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
  std::string backend;            // "cpu bf16"
  std::string numerics;           // ServerInfo.numerics
  std::string head_sizes_digest;  // empty: the server holds none

  friend bool operator==(const RecordHeader&, const RecordHeader&) = default;
};

// What `server` answers with, in samples of that spelling.
RecordHeader HeaderOf(const v1::ServerInfo& server, Spelling spelling);

// A file that no other process appends to while this lives.
struct LockedFile {
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::string path;
  std::unique_ptr<std::FILE, Close> file;  // appends
};
// Makes the file if absent, changes nothing else. FAILED_PRECONDITION if
// another process has it; what the system says if it cannot be written.
absl::StatusOr<LockedFile> LockFile(const std::string& path);

class RecordFile {
 public:
  // Begins an empty file, or continues one: a torn last line is cut off.
  // FAILED_PRECONDITION if it holds anything but results under this header,
  // DATA_LOSS naming the line for one that is no record or repeats one; then it
  // is left as it was.
  static absl::StatusOr<std::unique_ptr<RecordFile>> Open(
      LockedFile file, const RecordHeader& header);
  RecordFile(const RecordFile&) = delete;
  RecordFile& operator=(const RecordFile&) = delete;

  bool Has(const Record& record) const { return keys_.count(Key(record)) > 0; }
  const std::vector<Record>& records() const { return records_; }

  // ALREADY_EXISTS if it is there.
  absl::Status Append(const Record& record);

 private:
  explicit RecordFile(LockedFile file) : file_(std::move(file)) {}
  absl::Status Read(const std::string& text, const RecordHeader& header);
  absl::Status WriteLine(const nlohmann::json& json);

  LockedFile file_;
  std::vector<Record> records_;
  std::set<std::string> keys_;
};

}  // namespace overture::clients
