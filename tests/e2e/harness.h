// The real binaries: a server as a child process, the decode worker and the
// command-line tool as further ones. One thread starts processes: the test's.
//
// Environment, for runs elsewhere than in the build folder:
//   OVERTURE_TEST_DEVICE  cpu (default) or cuda: where the server computes
//   OVERTURE_TEST_MODEL   a .gguf file or Hugging Face folder in place of a
//   tiny
//                         random model
//   OVERTURE_BIN_DIR      folder of the programs
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "clients/cpp/client.h"
#include "clients/tool/decode_run.h"
#include "clients/tool/server_process.h"
#include "gtest/gtest.h"
#include "tests/e2e/reference.h"
#include "tests/support/temp_dir.h"

namespace overture::testing {

// How long anything that should happen may take before a test fails.
inline constexpr absl::Duration kPatience = absl::Seconds(50);

struct ProgramResult {
  int exit_code = -1;
  std::string out;  // standard output
  std::string err;
};

class EndToEndTest : public ::testing::Test {
 protected:
  // On the CPU f32 everywhere: a prompt computed in two parts then differs from
  // one computed at once by about 1e-6 of a logit, which cannot turn an argmax
  // of random logits other than in one of thousands of tests; seeds are fixed.
  // A GPU has bf16 only; reference.h says how its answers are judged.
  void SetUp() override;

  // The server's device.
  bool OnGpu() const { return device_ == engine::DeviceChoice::kCuda; }
  // Whether the model is the tiny random one.
  bool IsTiny() const { return is_tiny_; }

  // Writes a tiny model with other weights for another seed; returns its path.
  std::string WriteModel(uint32_t seed);

  // (Re)starts the server on the same data folder and connects to it.
  void StartServer(const std::vector<std::string>& flags = {});
  void StartServerWith(const std::string& model,
                       const std::vector<std::string>& flags = {});
  clients::OvertureClient& client() {
    OVERTURE_CHECK(client_ != nullptr);  // StartServer failed, and said why
    return *client_;
  }
  clients::ServerProcess& server() { return server_; }
  std::string data_dir() const { return dir_.Join("data"); }

  // Prefills token ids; `session` may be empty.
  static v1::PrefillRequest Request(const std::vector<int32_t>& tokens,
                                    const std::string& session = "");

  // Runs a program of ours to its end. Its standard input is `input`.
  ProgramResult RunProgram(const std::string& name,
                           const std::vector<std::string>& args,
                           const std::string& input = "",
                           absl::Duration patience = kPatience);
  static std::string ProgramPath(const std::string& name);

  // Decodes a handle with overture-decode; the model is `model_path_` unless
  // given.
  absl::StatusOr<clients::DecodeReport> Decode(
      const std::string& handle, int64_t max_tokens,
      const std::string& source = "full");

  // Decodes the handle of `question` and expects what the reference accepts.
  void ExpectAnswer(const std::string& handle, const Question& question);

  TempDir dir_;
  std::string model_path_;
  engine::DeviceChoice device_ = engine::DeviceChoice::kCpu;
  bool is_tiny_ = true;
  // Device and dtype of the next server.
  std::vector<std::string> numerics_;
  std::unique_ptr<Reference> reference_;
  clients::ServerProcess server_;
  std::unique_ptr<clients::OvertureClient> client_;
  int num_runs_ = 0;  // of RunProgram, for file names
};

// `a` followed by `b`.
std::vector<int32_t> Concat(std::vector<int32_t> a,
                            const std::vector<int32_t>& b);

}  // namespace overture::testing
