// The server's configuration: one table of options, read from flags
// (--name=value) and from one file (name = value, # comments), flags first.
// Everything that an operator may set stands here and fits one screen.
//
// Own code rather than absl flags: the same names, defaults and messages serve
// the file, an unknown name is an error value instead of an exit, and --help is
// one screen.
//
// Errors are INVALID_ARGUMENT naming the option, the value, the limit and where
// it was read (flag, or file with line).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/backend.h"
#include "engine/create_backend.h"
#include "overture/v1/common.pb.h"

namespace overture::service {

struct Config {
  bool help = false;
  bool version = false;

  std::string model;
  std::vector<std::string> listen;  // "host:port" or "unix:path"
  bool allow_insecure_remote = false;
  std::string port_file;  // empty: none
  bool rocksdb = true;    // else memory
  std::string data_dir;
  int64_t max_store_bytes = 0;    // 0: chosen at start
  int64_t max_prompt_tokens = 0;  // 0: the model's
  int32_t max_queued = 0;
  int64_t max_work_bytes = 0;  // 0: chosen at start
  int32_t max_handles = 0;
  int64_t max_view_bytes = 0;
  int64_t max_memory_bytes = 0;
  absl::Duration handle_ttl;
  v1::Selector selector;          // has a kind
  std::string minference_config;  // empty: none
  engine::DeviceChoice device = engine::DeviceChoice::kAuto;
  engine::ComputeDType dtype = engine::ComputeDType::kAuto;
  engine::LinearPrecision linears = engine::LinearPrecision::kBF16;
  engine::AttentionPrecision attention = engine::AttentionPrecision::kBF16;
  int32_t threads = 0;  // 0: OpenMP's choice
  absl::Duration grace;
};

// `args` without the program's name. `read_file` returns a file's text; it is
// called at most once, for --config.
using ReadFile =
    std::function<absl::StatusOr<std::string>(const std::string& path)>;
absl::StatusOr<Config> ParseConfig(absl::Span<const std::string> args,
                                   const ReadFile& read_file);

// What --help prints: at most 50 lines of 80 columns.
std::string HelpText();

// The byte limit of the store, `configured` or, if 0, the smaller of 20 GiB and
// half of `free_bytes` (negative: unknown). FAILED_PRECONDITION if it cannot be
// chosen or is below 64 MiB.
absl::StatusOr<int64_t> ChooseMaxStoreBytes(int64_t configured,
                                            int64_t free_bytes);

// Bytes that the store in `data_dir` may have: what is free there and what its
// folder `kv` holds already, without which the limit would shrink at every
// start. Negative: unknown.
int64_t RoomForStore(const std::string& data_dir);

// True for Unix sockets and addresses that only this machine reaches.
bool IsLocalAddress(absl::string_view address);

// "512", "64KiB", "20GiB": bytes.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);

}  // namespace overture::service
