#include "tests/e2e/harness.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "clients/tool/child_process.h"
#include "clients/tool/request_text.h"
#include "tests/support/status_matchers.h"
#include "tests/support/tiny_model.h"

namespace overture::testing {
namespace {

std::string Variable(const char* name, const std::string& fallback) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? fallback : value;
}

}  // namespace

void EndToEndTest::SetUp() {
  const std::string device = Variable("OVERTURE_TEST_DEVICE", "cpu");
  OVERTURE_ASSERT_OK_AND_ASSIGN(device_, engine::ParseDeviceChoice(device));
  ASSERT_NE(device_, engine::DeviceChoice::kAuto)
      << "OVERTURE_TEST_DEVICE must be cpu or cuda";
  numerics_ = {absl::StrCat("--device=", device),
               OnGpu() ? "--dtype=bf16" : "--dtype=f32"};
  model_path_ = Variable("OVERTURE_TEST_MODEL", "");
  is_tiny_ = model_path_.empty();
  if (is_tiny_) model_path_ = WriteModel(/*seed=*/1);
  OVERTURE_ASSERT_OK_AND_ASSIGN(reference_,
                                Reference::Load(model_path_, device_));
}

std::string EndToEndTest::ProgramPath(const std::string& name) {
  return absl::StrCat(Variable("OVERTURE_BIN_DIR", OVERTURE_BIN_DIR), "/",
                      name);
}

std::string EndToEndTest::WriteModel(uint32_t seed) {
  std::string path = dir_.Join(absl::StrCat("model", seed, ".gguf"));
  // Four layers, so that a prefill has several moments to be killed at.
  // A head of its own: tied to the embedding, a random model repeats its last
  // token whatever came before.
  const TinyModel model({.num_layers = 4,
                         .head_dim = OnGpu() ? 64 : 16,  // the GPU's least
                         .tied_embeddings = false,
                         .seed = seed});
  OVERTURE_EXPECT_OK(model.WriteGguf(path));
  return path;
}

void EndToEndTest::StartServer(const std::vector<std::string>& flags) {
  StartServerWith(model_path_, flags);
}

void EndToEndTest::StartServerWith(const std::string& model,
                                   const std::vector<std::string>& flags) {
  client_.reset();
  server_.process().Kill();
  std::vector<std::string> all = numerics_;
  all.insert(all.end(), flags.begin(), flags.end());
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      server_,
      clients::ServerProcess::Start({.program = ProgramPath("overtured"),
                                     .model = model,
                                     .data_dir = data_dir(),
                                     .work_dir = dir_.path().string(),
                                     .flags = all,
                                     .ready_timeout = kPatience}));
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      client_, clients::OvertureClient::Connect(server_.address()));
}

v1::PrefillRequest EndToEndTest::Request(const std::vector<int32_t>& tokens,
                                         const std::string& session) {
  v1::PrefillRequest request;
  request.mutable_tokens()->mutable_ids()->Add(tokens.begin(), tokens.end());
  request.set_session_id(session);
  return request;
}

ProgramResult EndToEndTest::RunProgram(const std::string& name,
                                       const std::vector<std::string>& args,
                                       const std::string& input,
                                       absl::Duration patience) {
  const std::string prefix = dir_.Join(absl::StrCat("run", num_runs_++));
  std::ofstream(prefix + ".in") << input;
  std::vector<std::string> argv = {ProgramPath(name)};
  argv.insert(argv.end(), args.begin(), args.end());
  ProgramResult result;
  auto child = clients::ChildProcess::Start({.argv = argv,
                                             .stdin_path = prefix + ".in",
                                             .stdout_path = prefix + ".out",
                                             .stderr_path = prefix + ".err"});
  EXPECT_THAT(child, IsOk());
  if (!child.ok()) return result;
  const absl::StatusOr<int> exit_code = child->Wait(patience);
  EXPECT_THAT(exit_code, IsOk());
  if (exit_code.ok()) result.exit_code = *exit_code;
  result.out = clients::ReadTextFile(prefix + ".out").value_or("");
  result.err = clients::ReadTextFile(prefix + ".err").value_or("");
  return result;
}

absl::StatusOr<clients::DecodeReport> EndToEndTest::Decode(
    const std::string& handle, int64_t max_tokens, const std::string& source) {
  const ProgramResult run =
      RunProgram("overture-decode",
                 {"--server", server_.address(), "--handle", handle, "--model",
                  model_path_, "--source", source, "--compute", "f32",
                  "--max-tokens", absl::StrCat(max_tokens), "--json", "-"});
  if (run.exit_code != 0) return absl::InternalError(run.err);
  return clients::ParseDecodeReport(run.out);
}

void EndToEndTest::ExpectAnswer(const std::string& handle,
                                const Question& question) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const clients::DecodeReport answer,
      Decode(handle, question.max_tokens,
             question.view.has_value() ? "view" : "full"));
  OVERTURE_EXPECT_OK(reference_->Check(question, answer.token_ids));
}

std::vector<int32_t> Concat(std::vector<int32_t> a,
                            const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace overture::testing
