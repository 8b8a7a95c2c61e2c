// overture-decode: answers from the KV of one handle.
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "clients/cpp/client.h"
#include "clients/decode_worker/decode_worker.h"
#include "clients/tool/flags.h"
#include "engine/passive_waits.h"
#include "nlohmann/json.hpp"

namespace overture::clients {
namespace {

struct Options {
  std::string server = "127.0.0.1:50051";
  std::string handle;
  std::string source = "full";
  std::string model;
  std::string compute = "auto";
  std::string json;
  int64_t max_tokens = 128;
};

absl::StatusOr<engine::ComputeDType> ParseCompute(const std::string& text) {
  if (text == "auto") return engine::ComputeDType::kAuto;
  if (text == "bf16") return engine::ComputeDType::kBF16;
  if (text == "f32") return engine::ComputeDType::kF32;
  return absl::InvalidArgumentError(
      absl::StrCat("--compute is '", text, "', must be auto, bf16 or f32"));
}

absl::StatusOr<v1::FetchRequest::Source> ParseSource(const std::string& text) {
  if (text == "full") return v1::FetchRequest::SOURCE_FULL;
  if (text == "view") return v1::FetchRequest::SOURCE_VIEW;
  return absl::InvalidArgumentError(
      absl::StrCat("--source is '", text, "', must be full or view"));
}

std::string ToJson(const Options& options, const DecodeResult& result,
                   double load_seconds) {
  const nlohmann::json json = {
      {"handle", options.handle},
      {"source", options.source},
      {"token_ids", result.token_ids},
      {"text", result.text},
      {"stopped", result.stopped},
      {"logical_length", result.logical_length},
      {"kv_bytes", result.kv_bytes},
      {"chunks", result.chunks},
      {"resumes", result.resumes},
      {"load_seconds", load_seconds},
      {"fetch_seconds", result.fetch_seconds},
      {"decode_seconds", result.decode_seconds},
      {"seconds_per_token",
       result.steps > 0
           ? result.decode_seconds / static_cast<double>(result.steps)
           : 0.0},
  };
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

absl::Status Run(const Options& options) {
  if (options.handle.empty() || options.model.empty()) {
    return absl::InvalidArgumentError("--handle and --model are needed");
  }
  OVERTURE_ASSIGN_OR_RETURN(engine::ComputeDType compute,
                            ParseCompute(options.compute));
  DecodeRequest request{.handle = options.handle,
                        .max_tokens = options.max_tokens};
  OVERTURE_ASSIGN_OR_RETURN(request.source, ParseSource(options.source));

  const absl::Time start = absl::Now();
  OVERTURE_ASSIGN_OR_RETURN(auto worker,
                            DecodeWorker::Load(options.model, compute));
  const double load_seconds = absl::ToDoubleSeconds(absl::Now() - start);
  OVERTURE_ASSIGN_OR_RETURN(auto client,
                            OvertureClient::Connect(options.server));

  const bool show_text = options.json != "-";
  OVERTURE_ASSIGN_OR_RETURN(
      DecodeResult result,
      worker->Run(*client, request, [show_text](absl::string_view text) {
        if (!show_text) return;
        std::fwrite(text.data(), 1, text.size(), stdout);
        std::fflush(stdout);
      }));
  const std::string json = ToJson(options, result, load_seconds);
  if (show_text) {
    std::puts("");
  } else {
    std::puts(json.c_str());
  }
  if (show_text && !options.json.empty()) {
    std::ofstream file(options.json);
    file << json << '\n' << std::flush;
    if (!file) {
      return absl::PermissionDeniedError(
          absl::StrCat("cannot write ", options.json));
    }
  }
  return absl::OkStatus();
}

int Main(const std::vector<std::string>& args) {
  Options options;
  FlagParser flags(
      "overture-decode",
      "Fetches the KV of one handle and decodes greedily; the text goes to\n"
      "standard output as it is made.");
  flags.Add("server", &options.server, "Address of the Overture server.");
  flags.Add("handle", &options.handle, "What a prefill returned. Needed.");
  flags.Add("source", &options.source, "full, or view: what to decode over.");
  flags.Add("model", &options.model,
            "A .gguf file or Hugging Face folder: the very weights that the "
            "server runs. Needed.");
  flags.Add("max-tokens", &options.max_tokens,
            "Tokens of the answer at most; an end-of-text token ends it too.");
  flags.Add("compute", &options.compute,
            "auto, bf16 or f32: as for the server.");
  flags.Add("json", &options.json,
            "File for one line with ids, text, bytes and times; - writes it to "
            "standard output in place of the text.");
  absl::Status status = flags.Parse(args);
  if (status.ok() && flags.help_requested()) {
    std::fputs(flags.Help().c_str(), stdout);
    return 0;
  }
  if (status.ok()) status = Run(options);
  if (status.ok()) return 0;
  std::fprintf(stderr, "overture-decode: %s\n", status.ToString().c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace
}  // namespace overture::clients

int main(int argc, char** argv) {
  overture::engine::WaitPassively(argv);
  return overture::clients::Main(
      std::vector<std::string>(argv + 1, argv + argc));
}
