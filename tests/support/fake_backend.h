// A back end that computes nothing: KV, logits and views are plain functions of
// tokens and positions, so that a test knows every byte that should come out.
// It can be held at a layer, to look at a prefill that is under way, and lose
// its device there.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "base/hash.h"
#include "base/kv_layout.h"
#include "engine/backend.h"
#include "engine/model_files.h"
#include "engine/tokenizer.h"

namespace overture::testing {

// The scripted KV: distinct for every element.
float FakeKv(int32_t token, int64_t position, int32_t layer, int32_t kv_head,
             bool is_v, int32_t dim);
// The greedy first token.
int32_t FakeFirstToken(absl::Span<const int32_t> tokens, int64_t vocab_size);
// Positions that the scripted view keeps for a head: the last ones, one fewer
// for every head, so that heads differ.
std::vector<int32_t> FakeViewPositions(int64_t num_tokens, int32_t capacity,
                                       int32_t kv_head);

// Holds whoever passes, while closed. Shared by a test and a back end.
class Gate {
 public:
  void Close();
  void Open();
  // Called by the back end; blocks while closed, but not beyond a stop.
  void Pass(std::stop_token stop);
  // Blocks until somebody waits in Pass().
  void AwaitArrival();
  // Blocks until nobody does.
  void AwaitNobody();

 private:
  std::mutex mutex_;
  std::condition_variable_any changed_;
  bool closed_ = false;  // guarded by mutex_, as below
  int waiting_ = 0;
};

class FakeBackend final : public engine::Backend {
 public:
  struct Options {
    // 256 tokens of a head are 128 KiB: more than the smallest chunk.
    KvLayout layout{.num_layers = 3,
                    .num_kv_heads = 2,
                    .head_dim = 64,
                    .dtype = DType::kF32};
    int64_t vocab_size = 1000;
    int64_t max_positions = 4096;
    int64_t workspace_bytes_per_token = 100;
    // Runs no vertical-slash, and is not token-pure.
    bool fp8_attention = false;
    Gate* gate = nullptr;  // passed before layer 1; may be null
    // Once true, the device is lost at the next layer 1; may be null.
    const std::atomic<bool>* device_fault = nullptr;
  };
  explicit FakeBackend(const Options& options);

  const engine::ModelConfig& config() const override { return config_; }
  const KvLayout& kv_layout() const override { return options_.layout; }
  std::string numerics() const override { return "fake"; }
  std::string device_name() const override { return "fake"; }
  int64_t WorkspaceBytes(int64_t num_tokens) const override {
    return num_tokens * options_.workspace_bytes_per_token;
  }
  absl::Status Supports(const engine::SelectorSpec& selector) const override;
  bool attention_is_token_pure() const override {
    return !options_.fp8_attention;
  }
  absl::StatusOr<engine::PrefillOutput> Prefill(
      const engine::PrefillJob& job) override;
  absl::Status Health() const override;

 private:
  const Options options_;
  engine::ModelConfig config_;
  std::atomic<bool> lost_ = false;
};

// Enough of a model for Engine::Create: its digest.
class FakeModelFiles final : public engine::ModelFiles {
 public:
  explicit FakeModelFiles(engine::ModelConfig config);
  const engine::ModelConfig& config() const override { return config_; }
  const Sha256Digest& weights_digest() const override { return digest_; }
  absl::Status ReadTensor(engine::TensorRole, int32_t,
                          absl::Span<float>) const override;
  absl::Status ReadRows(engine::TensorRole, int32_t, int64_t,
                        absl::Span<float>) const override;
  absl::StatusOr<Shape> TensorShape(engine::TensorRole, int32_t) const override;

 private:
  const engine::ModelConfig config_;
  Sha256Digest digest_;
};

// One token per byte; add_special_tokens puts 256 in front.
class FakeTokenizer final : public engine::Tokenizer {
 public:
  std::vector<int32_t> Encode(absl::string_view text,
                              const EncodeOptions& options) const override;
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids,
                                     bool keep_special) const override;
  int64_t vocab_size() const override { return 257; }
  int32_t TokenId(absl::string_view) const override { return -1; }
  const Sha256Digest& digest() const override { return digest_; }

 private:
  Sha256Digest digest_;
};

}  // namespace overture::testing
