// Writes structured synthetic weights of the shape of Llama-3-8B, 16 GB, and a
// prompt for them (bench/structured_model.h):
//
//   make_structured_model --out FOLDER [--prompt 1048576] [--layers 32]
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "bench/structured_model.h"

ABSL_FLAG(std::string, out, "", "folder to write; created if need be");
ABSL_FLAG(int64_t, prompt, 1 << 20, "ids in prompt.txt, one a line");
ABSL_FLAG(int32_t, layers, 32, "layers of the model");

namespace overture::bench {
namespace {

absl::Status Run() {
  const std::string out = absl::GetFlag(FLAGS_out);
  std::error_code error;
  if (!std::filesystem::create_directories(out, error) && error) {
    return absl::InvalidArgumentError(
        absl::StrCat("--out is '", out, "': ", error.message()));
  }
  engine::ModelConfig config = Llama3Config8B();
  config.num_layers = absl::GetFlag(FLAGS_layers);
  const int64_t prompt_tokens = absl::GetFlag(FLAGS_prompt);
  if (prompt_tokens < 1 || prompt_tokens > config.max_positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("--prompt is ", prompt_tokens, ", must be in [1, ",
                     config.max_positions, "]"));
  }
  OVERTURE_ASSIGN_OR_RETURN(const StructuredModel model,
                            StructuredModel::Create(config));
  OVERTURE_RETURN_IF_ERROR(model.Write(out));
  std::ofstream prompt(absl::StrCat(out, "/prompt.txt"));
  for (const int32_t token : model.Prompt(prompt_tokens)) {
    prompt << token << '\n';
  }
  prompt.close();
  if (prompt) return absl::OkStatus();
  return absl::UnknownError(absl::StrCat(out, "/prompt.txt: write failed"));
}

}  // namespace
}  // namespace overture::bench

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage("writes structured synthetic weights");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = overture::bench::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
