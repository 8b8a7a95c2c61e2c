// Structured synthetic weights: a Llama-shaped checkpoint whose attention has
// the patterns of long-context models, local bands, slashes, a sink and
// columns, so that sparse prefill can be timed without a trained model. It
// computes nothing meaningful and is no measure of quality.
//
// Every embedding shares a component u; W_q and W_k map it to mean vectors, a
// pair per query head, and RoPE turns their product into a function of the
// distance D:
//
//   logit(D) = sum over pairs i of a_i cos(theta_i (D - D_0))
//
// which peaks at D = D_0: at 0 a local band, elsewhere a slash. The frequencies
// it uses set the band's grain and its decay, about D^(-a / spacing of ln
// theta_i). The sink token and marked tokens carry components of their own that
// W_k maps onto the query means in frequencies too low to turn over the whole
// context: their logits do not depend on D, which makes columns. W_o and W_down
// are small, so that u reaches the last layer; all else is noise.
//
// Each head gets one of MInference's five Llama-3-8B sizes, in that file's
// proportions, and a structure to match. Deterministic: equal arguments give
// equal bytes. Immutable, so thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model_config.h"
#include "engine/model_files.h"
#include "kernels/selectors/vertical_slash.h"

namespace overture::bench {

// Llama-3-8B, with the RoPE theta of its variant for a million tokens: with the
// original 500,000 no frequency is low enough to make columns of tokens.
engine::ModelConfig Llama3Config8B();

inline constexpr int32_t kSinkToken = 0;
inline constexpr int32_t kNumMarkedTokens = 64;  // ids 1 .. 64

struct Slash {
  int64_t distance = 0;  // 0: the local band
  double logit = 0;      // of a pair at that distance
};

struct HeadStructure {
  kernels::VerticalSlashSize size;  // what the pattern file says
  // 1 / the highest frequency used, tokens: the width of a band's core.
  double grain = 0;
  std::vector<Slash> slashes;
  double sink_logit = 0;
  double mark_logit = 0;
};

// Means of a layer's unrotated queries and keys, [heads * head_dim].
struct AttentionMeans {
  std::vector<float> q;
  std::vector<float> k;  // ordinary tokens
  std::vector<float> k_sink;
  std::vector<float> k_mark;
};

class StructuredModel {
 public:
  // INVALID_ARGUMENT unless `config` is a plain llama with its own output head,
  // hidden_size a multiple of 4, a vocabulary beyond the marked tokens, and
  // frequencies that do not turn within max_positions.
  static absl::StatusOr<StructuredModel> Create(
      const engine::ModelConfig& config, uint64_t seed = 1);

  const HeadStructure& head(int32_t layer, int32_t q_head) const {
    return heads_[layer * config_.num_q_heads + q_head];
  }

  AttentionMeans Means(int32_t layer) const;

  // Fills the existing `folder` with config.json, one safetensors file per
  // layer and two more, and heads.json, MInference's pattern file. On all
  // cores. UNKNOWN names a file that cannot be written; FAILED_PRECONDITION one
  // of another model in the folder.
  absl::Status Write(const std::string& folder) const;

  // The sink token, then random ones, one in 512 marked. Shorter prompts are
  // prefixes of longer ones.
  std::vector<int32_t> Prompt(int64_t num_tokens) const;

 private:
  struct Tensor;
  StructuredModel(const engine::ModelConfig& config, uint64_t seed);

  std::vector<std::vector<Tensor>> Shards() const;
  Tensor Describe(engine::TensorRole role, int32_t layer) const;
  std::vector<float> QueryMeans(int32_t layer) const;
  std::vector<float> KeyChannel(int32_t layer, int channel) const;

  engine::ModelConfig config_;
  uint64_t seed_ = 0;
  std::vector<double> inv_freq_;
  std::vector<HeadStructure> heads_;  // [layer][query head]
};

}  // namespace overture::bench
