// The real binaries on a tiny random model: a server as a child process, the
// decode worker and the command-line tool as further ones. One thread starts
// processes: the test's.
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
  // f32 everywhere: a prompt computed in two parts then differs from one
  // computed at once by about 1e-6 of a logit, which cannot turn an argmax of
  // random logits other than in one of thousands of tests; seeds are fixed.
  void SetUp() override;

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
                           const std::string& input = "");

  // Decodes a handle with overture-decode; the model is `model_path_` unless
  // given.
  absl::StatusOr<clients::DecodeReport> Decode(
      const std::string& handle, int64_t max_tokens,
      const std::string& source = "full");

  // Greedy continuation by the reference, dense and over the full KV.
  std::vector<int32_t> Expected(const std::vector<int32_t>& prompt,
                                int64_t max_tokens);

  TempDir dir_;
  std::string model_path_;
  std::string dtype_ = "f32";  // of the next server
  std::unique_ptr<Reference> reference_;
  clients::ServerProcess server_;
  std::unique_ptr<clients::OvertureClient> client_;
  int num_runs_ = 0;  // of RunProgram, for file names
};

// `a` followed by `b`.
std::vector<int32_t> Concat(std::vector<int32_t> a,
                            const std::vector<int32_t>& b);

}  // namespace overture::testing
