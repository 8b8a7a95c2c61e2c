// The results of an evaluation: one JSON line per sample, turn and
// configuration behind a header line (docs/evaluation.md, section 5).
//
// RecordFile: thread-safe, and by a lock on the file for one process at a time.
// A record is on its way to the disk when Append returns: it survives the end
// of this process.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "clients/evaluate/grid.h"
#include "clients/evaluate/likelihood.h"
#include "clients/evaluate/score.h"
#include "clients/evaluate/spelling.h"
#include "nlohmann/json_fwd.hpp"
#include "overture/v1/admin.pb.h"

namespace overture::clients {

// Shares of attention that plans kept, of the rows that the server sampled.
struct KeptMass {
  double mean = 0;
  double lowest = 0;  // of all heads of all layers, each a mean over its rows

  friend bool operator==(const KeptMass&, const KeptMass&) = default;
};

struct Record {
  SampleId sample;
  Mode mode = Mode::kSingle;
  int turn = 0;
  Configuration configuration;
  Score score;
  std::vector<int32_t> answer;
  std::string text;  // what the answer spells
  // Of real text, which has no answer and no score.
  std::optional<Likelihood> likelihood;
  double density = 0;                 // of the rows that this prefill computed
  std::optional<KeptMass> kept_mass;  // of some of them; none: not sampled
  double selector_seconds = 0;
  int64_t kv_bytes = 0;  // that the decode worker received
  // Without the wait for other requests.
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
  // What second runs of dense are answered by; empty: by the same server.
  std::string noise_server;

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

  bool Has(const Record& record) const;
  // All so far, in the order of the file.
  std::vector<Record> records() const;

  // ALREADY_EXISTS if it is there.
  absl::Status Append(const Record& record);

 private:
  explicit RecordFile(LockedFile file) : file_(std::move(file)) {}
  absl::Status Read(const std::string& text, const RecordHeader& header)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status WriteLine(const nlohmann::json& json)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  LockedFile file_ ABSL_GUARDED_BY(mutex_);
  std::vector<Record> records_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> keys_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace overture::clients
