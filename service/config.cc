#include "service/config.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "proto/selector_text.h"
#include "service/convert.h"

namespace overture::service {
namespace {

using Setter = absl::Status (*)(absl::string_view, Config*);

struct Option {
  absl::string_view name;
  absl::string_view fallback;  // parsed like any other value
  Setter set;
  absl::string_view help;  // lines of at most 48 columns
};

absl::Status SetBool(absl::string_view text, bool* out) {
  if (text == "true" || text == "false") {
    *out = text == "true";
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError("must be true or false");
}

template <typename T>
absl::Status SetInt(absl::string_view text, int64_t least, int64_t most,
                    T* out) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value) || value < least || value > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("must be a whole number in [", least, ", ", most, "]"));
  }
  *out = static_cast<T>(value);
  return absl::OkStatus();
}

absl::Status SetBytes(absl::string_view text, bool allow_auto, int64_t* out) {
  if (allow_auto && text == "auto") {
    *out = 0;
    return absl::OkStatus();
  }
  OVERTURE_ASSIGN_OR_RETURN(*out, ParseBytes(text));
  return absl::OkStatus();
}

absl::Status SetDuration(absl::string_view text, absl::Duration least,
                         absl::Duration most, absl::Duration* out) {
  if (!absl::ParseDuration(text, out) || *out < least || *out > most) {
    return absl::InvalidArgumentError(absl::StrCat(
        "must be a duration such as 90s or 10m in [",
        absl::FormatDuration(least), ", ", absl::FormatDuration(most), "]"));
  }
  return absl::OkStatus();
}

constexpr int64_t kMaxTokens = int64_t{1} << 24;

// The order of --help. `auto` of a byte limit is 0: chosen at start.
constexpr Option kOptions[] = {
    {"model", "",
     [](absl::string_view v, Config* c) {
       c->model = std::string(v);
       return absl::OkStatus();
     },
     "GGUF file or Hugging Face folder; required"},
    {"listen", "127.0.0.1:50051",
     [](absl::string_view v, Config* c) -> absl::Status {
       c->listen = absl::StrSplit(v, ',', absl::SkipWhitespace());
       for (const std::string& address : c->listen) {
         if (!absl::StrContains(address, ':')) {
           return absl::InvalidArgumentError(
               "each address must be host:port or unix:path");
         }
       }
       if (c->listen.empty()) {
         return absl::InvalidArgumentError("must name an address");
       }
       return absl::OkStatus();
     },
     "addresses, comma-separated: host:port (0 = any free\n"
     "port) or unix:path (same host, about twice as fast)"},
    {"allow_insecure_remote", "false",
     [](absl::string_view v, Config* c) {
       return SetBool(v, &c->allow_insecure_remote);
     },
     "listen beyond loopback without TLS or a token:\n"
     "whoever reaches the port reads every prompt's KV"},
    {"port_file", "",
     [](absl::string_view v, Config* c) {
       c->port_file = std::string(v);
       return absl::OkStatus();
     },
     "gets the first listener's port once ready"},
    {"store", "rocksdb",
     [](absl::string_view v, Config* c) -> absl::Status {
       if (v != "rocksdb" && v != "memory") {
         return absl::InvalidArgumentError("must be rocksdb or memory");
       }
       c->rocksdb = v == "rocksdb";
       return absl::OkStatus();
     },
     "rocksdb survives a crash; memory is for tests"},
    {"data_dir", "",
     [](absl::string_view v, Config* c) {
       c->data_dir = std::string(v);
       return absl::OkStatus();
     },
     "folder of the store; required with rocksdb"},
    {"max_store_bytes", "auto",
     [](absl::string_view v, Config* c) {
       return SetBytes(v, /*allow_auto=*/true, &c->max_store_bytes);
     },
     "KV kept, least recently used goes first. More: more\n"
     "reuse, less disk. auto: min(20GiB, half of free)"},
    {"max_prompt_tokens", "0",
     [](absl::string_view v, Config* c) {
       return SetInt(v, 0, kMaxTokens, &c->max_prompt_tokens);
     },
     "longer prompts are refused; 0: the model's limit"},
    {"max_queued", "64",
     [](absl::string_view v, Config* c) {
       return SetInt(v, 0, 4096, &c->max_queued);
     },
     "prefills that wait. More: patience for latency"},
    {"max_work_bytes", "auto",
     [](absl::string_view v, Config* c) {
       return SetBytes(v, /*allow_auto=*/true, &c->max_work_bytes);
     },
     "memory of the running prefill beyond the weights;\n"
     "longer prompts are refused. auto: half of RAM"},
    {"max_handles", "1024",
     [](absl::string_view v, Config* c) {
       return SetInt(v, 1, 1000000, &c->max_handles);
     },
     "live handles; each holds its KV against eviction"},
    {"max_view_bytes", "1GiB",
     [](absl::string_view v, Config* c) {
       return SetBytes(v, /*allow_auto=*/false, &c->max_view_bytes);
     },
     "memory of all handles' views together"},
    {"max_memory_bytes", "1GiB",
     [](absl::string_view v, Config* c) {
       return SetBytes(v, /*allow_auto=*/false, &c->max_memory_bytes);
     },
     "memory of all handles' KV that is not stored"},
    {"handle_ttl", "10m",
     [](absl::string_view v, Config* c) {
       return SetDuration(v, absl::Seconds(1), kMaxHandleTtl, &c->handle_ttl);
     },
     "life of a handle that did not ask for its own.\n"
     "Longer: slower workers; shorter: sooner evictable"},
    {"selector", "dense",
     [](absl::string_view v, Config* c) -> absl::Status {
       OVERTURE_ASSIGN_OR_RETURN(c->selector, v1::ParseSelector(v));
       // Its limits; sizes per head are not read yet.
       if (c->selector.vertical_slash().per_head()) return absl::OkStatus();
       return SelectorFromProto(c->selector, {}, {}).status();
     },
     "attention of requests that name none; forms:\n"
     "docs/clients.md"},
    {"minference_config", "",
     [](absl::string_view v, Config* c) {
       c->minference_config = std::string(v);
       return absl::OkStatus();
     },
     "this model's file of overture calibrate, or\n"
     "MInference's pattern file: what per_head asks for"},
    {"device", "auto",
     [](absl::string_view v, Config* c) -> absl::Status {
       const auto device = engine::ParseDeviceChoice(v);
       if (!device.ok()) {
         return absl::InvalidArgumentError("must be auto, cpu or cuda");
       }
       c->device = *device;
       return absl::OkStatus();
     },
     "of prefills: cpu, cuda; auto: a GPU that can"},
    {"dtype", "auto",
     [](absl::string_view v, Config* c) -> absl::Status {
       if (v == "auto") {
         c->dtype = engine::ComputeDType::kAuto;
       } else if (v == "bf16") {
         c->dtype = engine::ComputeDType::kBF16;
       } else if (v == "f32") {
         c->dtype = engine::ComputeDType::kF32;
       } else {
         return absl::InvalidArgumentError("must be auto, bf16 or f32");
       }
       return absl::OkStatus();
     },
     "of compute and KV: bf16 halves the bytes, f32 is\n"
     "exact; auto: bf16 where the hardware multiplies it"},
    {"linears", "bf16",
     [](absl::string_view v, Config* c) -> absl::Status {
       const auto linears = engine::ParseLinearPrecision(v);
       if (!linears.ok())
         return absl::InvalidArgumentError("must be bf16 or fp8");
       c->linears = *linears;
       return absl::OkStatus();
     },
     "products of a layer: bf16: of dtype; fp8: e4m3; on a\n"
     "GPU half the weights' memory and faster"},
    {"attention", "bf16",
     [](absl::string_view v, Config* c) -> absl::Status {
       const auto attention = engine::ParseAttentionPrecision(v);
       if (!attention.ok())
         return absl::InvalidArgumentError("must be bf16 or fp8");
       c->attention = *attention;
       return absl::OkStatus();
     },
     "bf16: of dtype; fp8: e4m3, on a Hopper GPU (a CPU\n"
     "simulates it); no vertical_slash, no blocks"},
    {"threads", "0",
     [](absl::string_view v, Config* c) {
       return SetInt(v, 0, 1024, &c->threads);
     },
     "compute threads of a prefill; 0: one per core"},
    {"grace", "10s",
     [](absl::string_view v, Config* c) {
       return SetDuration(v, absl::ZeroDuration(), absl::Hours(1), &c->grace);
     },
     "on SIGTERM: calls under way may end, then stop"},
};

absl::Status Set(absl::string_view name, absl::string_view value,
                 absl::string_view where, Config* config) {
  for (const Option& option : kOptions) {
    if (option.name != name) continue;
    const absl::Status status = option.set(value, config);
    if (status.ok()) return status;
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": ", name, ": ", Quoted(value), " ", status.message()));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      where, ": unknown option ", Quoted(name), "; --help lists all"));
}

// The file's settings that no flag overrides.
absl::Status ApplyFile(absl::string_view text, const std::string& path,
                       const absl::flat_hash_map<std::string, int>& flags,
                       Config* config) {
  absl::flat_hash_map<std::string, int> seen;
  int line_number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++line_number;
    line = absl::StripAsciiWhitespace(line.substr(0, line.find('#')));
    if (line.empty()) continue;
    const std::string where = absl::StrCat(path, ":", line_number);
    const size_t equals = line.find('=');
    if (equals == absl::string_view::npos) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, ": ", Quoted(line), " is not name = value"));
    }
    const absl::string_view name =
        absl::StripAsciiWhitespace(line.substr(0, equals));
    const absl::string_view value =
        absl::StripAsciiWhitespace(line.substr(equals + 1));
    const auto [it, is_new] = seen.emplace(name, line_number);
    if (!is_new) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, ": ", name, " was set in line ", it->second, " already"));
    }
    // A shadowed value is checked all the same: it is a mistake that waits.
    Config scratch;
    OVERTURE_RETURN_IF_ERROR(
        Set(name, value, where, flags.contains(name) ? &scratch : config));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Config> ParseConfig(absl::Span<const std::string> args,
                                   const ReadFile& read_file) {
  Config config;
  for (const Option& option : kOptions) {
    OVERTURE_RETURN_IF_ERROR(
        Set(option.name, option.fallback, "default", &config));
  }
  std::string file;
  absl::flat_hash_map<std::string, int> flags;  // names seen
  for (const std::string& arg : args) {
    absl::string_view text = arg;
    if (!absl::ConsumePrefix(&text, "--") || text.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "flag: ", Quoted(arg), " is not --name=value; --help lists all"));
    }
    const size_t equals = text.find('=');
    std::string name(text.substr(0, equals));
    std::replace(name.begin(), name.end(), '-', '_');
    const bool has_value = equals != absl::string_view::npos;
    const absl::string_view value =
        has_value ? text.substr(equals + 1) : absl::string_view("true");
    if (name == "help" || name == "version") {
      (name == "help" ? config.help : config.version) = true;
      continue;
    }
    if (!has_value && name != "allow_insecure_remote") {
      return absl::InvalidArgumentError(
          absl::StrCat("flag: ", Quoted(arg),
                       " is not --name=value; --help "
                       "lists all"));
    }
    if (!flags.emplace(name, 1).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("flag: --", name, " is given twice"));
    }
    if (name == "config") {
      file = std::string(value);
      continue;
    }
    OVERTURE_RETURN_IF_ERROR(Set(name, value, "flag", &config));
  }
  if (config.help || config.version) return config;
  if (!file.empty()) {
    OVERTURE_ASSIGN_OR_RETURN(const std::string text, read_file(file));
    OVERTURE_RETURN_IF_ERROR(ApplyFile(text, file, flags, &config));
  }

  if (config.model.empty()) {
    return absl::InvalidArgumentError("model: required, see --help");
  }
  if (config.rocksdb && config.data_dir.empty()) {
    return absl::InvalidArgumentError(
        "data_dir: required with store = rocksdb, see --help");
  }
  if (config.selector.vertical_slash().per_head() &&
      config.minference_config.empty()) {
    return absl::InvalidArgumentError(
        "selector: vertical_slash:per_head needs minference_config");
  }
  for (const std::string& address : config.listen) {
    if (!config.allow_insecure_remote && !IsLocalAddress(address)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "listen: ", Quoted(address),
          " is reached from other machines, and this version has neither TLS "
          "nor tokens: use a loopback address or a Unix socket, or say "
          "--allow_insecure_remote inside a network that you trust"));
    }
  }
  return config;
}

std::string HelpText() {
  std::string out =
      "overtured: prefills prompts, keeps their KV, serves it over gRPC.\n"
      "Usage: overtured --model=PATH --data_dir=DIR [--name=value ...]\n"
      "       --config=FILE reads `name = value` lines; flags win.\n";
  for (const Option& option : kOptions) {
    // 80 columns: a name with its default, then the help.
    const std::string head = absl::StrFormat(
        " %s=%s", option.name, option.fallback.empty() ? "" : option.fallback);
    bool first = true;
    for (absl::string_view line : absl::StrSplit(option.help, '\n')) {
      absl::StrAppendFormat(&out, "%-27s %s\n", first ? head : "", line);
      first = false;
    }
  }
  return out;
}

absl::StatusOr<int64_t> ChooseMaxStoreBytes(int64_t configured,
                                            int64_t free_bytes) {
  constexpr int64_t kLeast = int64_t{64} << 20;
  int64_t chosen = configured;
  if (chosen == 0) {
    if (free_bytes < 0) {
      return absl::FailedPreconditionError(
          "max_store_bytes: auto, but the free space of data_dir is unknown: "
          "set it");
    }
    chosen = std::min(int64_t{20} << 30, free_bytes / 2);
  }
  if (chosen < kLeast) {
    return absl::FailedPreconditionError(absl::StrCat(
        "max_store_bytes: ", chosen,
        configured == 0 ? " (half of its own and the free space)" : "",
        " is below ", kLeast));
  }
  return chosen;
}

int64_t RoomForStore(const std::string& data_dir) {
  std::error_code error;
  const std::filesystem::space_info space =
      std::filesystem::space(data_dir, error);
  if (error) return -1;
  int64_t bytes = static_cast<int64_t>(space.available);
  const std::filesystem::directory_iterator end;
  for (std::filesystem::directory_iterator file(
           std::filesystem::path(data_dir) / "kv", error);
       !error && file != end; file.increment(error)) {
    std::error_code gone;  // such a file counts nothing
    const std::uintmax_t size = file->file_size(gone);
    if (!gone) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

bool IsLocalAddress(absl::string_view address) {
  if (absl::StartsWith(address, "unix:") ||
      absl::StartsWith(address, "unix-abstract:")) {
    return true;
  }
  const absl::string_view host = address.substr(0, address.rfind(':'));
  if (host == "localhost" || host == "[::1]") return true;
  // 127.0.0.0/8, as four numbers: "127.evil.example" is a name.
  const std::vector<absl::string_view> parts = absl::StrSplit(host, '.');
  if (parts.size() != 4 || parts[0] != "127") return false;
  return std::all_of(parts.begin(), parts.end(), [](absl::string_view part) {
    int value = 0;
    return absl::SimpleAtoi(part, &value) && value >= 0 && value <= 255;
  });
}

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) {
  int shift = 0;
  absl::string_view number = text;
  if (absl::ConsumeSuffix(&number, "KiB")) shift = 10;
  if (absl::ConsumeSuffix(&number, "MiB")) shift = 20;
  if (absl::ConsumeSuffix(&number, "GiB")) shift = 30;
  if (absl::ConsumeSuffix(&number, "TiB")) shift = 40;
  int64_t value = 0;
  if (!absl::SimpleAtoi(number, &value) || value < 1 ||
      value > (int64_t{1} << 50) >> shift) {
    return absl::InvalidArgumentError(
        "must be bytes such as 536870912, 512MiB or 20GiB");
  }
  return value << shift;
}

}  // namespace overture::service
