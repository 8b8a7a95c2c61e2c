#include "tests/support/induction_model.h"

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "nlohmann/json.hpp"
#include "tests/support/safetensors_writer.h"

namespace overture::testing {
namespace {

constexpr int kVocab = kInductionVocab;
constexpr int kHidden = 256;
constexpr int kHeadDim = 128;
constexpr int kPairs = kHeadDim / 2;  // dims i and i + kPairs turn together
constexpr int kIntermediate = 32;
constexpr double kTheta = 1e10;

// Slots of the residual.
constexpr int kToken = 0;
constexpr int kBefore = kVocab;
constexpr int kOutput = 2 * kVocab;
constexpr int kOne = 3 * kVocab;

// Pair i turns by 10^(-10 i / 64) a position. The first 16 tell neighbours
// apart: over all distances but 1, sum(1 - cos) is at least 0.92, at distances
// 0 and 2. From pair 30 on 2,048 positions turn by less than 0.05.
constexpr int kFastPairs = 16;
constexpr int kSlowPair = 30;
// Scores are divided by sqrt(128). 560 * 0.92 / 11.3 = 45 for layer 0; 520
// / 11.3 = 46 for layer 1, less 5% where another token shares the pair: both
// over 40.
constexpr double kFastGain = 560;
constexpr double kSlowGain = 520;

int SlowDim(int token) {
  const int low = kPairs - kSlowPair;
  return token < low ? kSlowPair + token : kPairs + kSlowPair + token - low;
}

double Frequency(int pair) {
  return std::pow(kTheta, -static_cast<double>(pair) / kPairs);
}

class Matrix {
 public:
  Matrix(int rows, int columns)
      : rows_(rows),
        columns_(columns),
        values_(static_cast<size_t>(rows) * columns, 0.0f) {}
  void Set(int row, int column, double value) {
    values_[static_cast<size_t>(row) * columns_ + column] =
        static_cast<float>(value);
  }
  SafetensorsEntry Entry(const std::string& name) const {
    std::string data(values_.size() * sizeof(float), '\0');
    std::memcpy(data.data(), values_.data(), data.size());
    return {.name = name,
            .dtype = "F32",
            .shape = {rows_, columns_},
            .data = std::move(data)};
  }

 private:
  int rows_;
  int columns_;
  std::vector<float> values_;
};

SafetensorsEntry Ones(const std::string& name) {
  SafetensorsEntry entry = [&] {
    Matrix ones(1, kHidden);
    for (int i = 0; i < kHidden; ++i) ones.Set(0, i, 1);
    return ones.Entry(name);
  }();
  entry.shape = {kHidden};
  return entry;
}

struct Attention {
  Matrix q{kHeadDim, kHidden};
  Matrix k{kHeadDim, kHidden};
  Matrix v{kHeadDim, kHidden};
  Matrix o{kHidden, kHeadDim};
};

// `num_ones`: slots that hold 1 when the layer begins. The norm multiplies each
// by sqrt(kHidden / num_ones), which queries, keys and values divide out.
double Undo(int num_ones) {
  return 1 / std::sqrt(static_cast<double>(kHidden) / num_ones);
}

Attention PreviousToken() {
  const double undo = Undo(2);  // token and the one
  Attention a;
  for (int i = 0; i < kFastPairs; ++i) {
    // The query is turned back by one position: it meets the key before it.
    const double angle = -Frequency(i);
    a.q.Set(i, kOne, kFastGain * undo * std::cos(angle));
    a.q.Set(i + kPairs, kOne, kFastGain * undo * std::sin(angle));
    a.k.Set(i, kOne, undo);
  }
  for (int token = 0; token < kVocab; ++token) {
    a.v.Set(token, kToken + token, undo);
    a.o.Set(kBefore + token, token, 1);
  }
  return a;
}

Attention Induction() {
  const double undo = Undo(3);  // token, the one before, and the one
  Attention a;
  for (int token = 0; token < kVocab; ++token) {
    a.q.Set(SlowDim(token), kToken + token, kSlowGain * undo);
    a.k.Set(SlowDim(token), kBefore + token, undo);
    a.v.Set(token, kToken + token, undo);
    a.o.Set(kOutput + token, token, 1);
  }
  return a;
}

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  return file ? absl::OkStatus()
              : absl::InternalError(absl::StrCat("cannot write ", path));
}

}  // namespace

absl::Status WriteInductionModel(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const nlohmann::json config = {{"architectures", {"LlamaForCausalLM"}},
                                 {"model_type", "llama"},
                                 {"vocab_size", kVocab},
                                 {"hidden_size", kHidden},
                                 {"intermediate_size", kIntermediate},
                                 {"num_hidden_layers", 2},
                                 {"num_attention_heads", 1},
                                 {"num_key_value_heads", 1},
                                 {"head_dim", kHeadDim},
                                 {"max_position_embeddings", 65536},
                                 {"rms_norm_eps", 1e-9},
                                 {"rope_theta", kTheta},
                                 {"hidden_act", "silu"},
                                 {"tie_word_embeddings", false},
                                 {"torch_dtype", "float32"}};
  Matrix embedding(kVocab, kHidden);
  Matrix head(kVocab, kHidden);
  for (int token = 0; token < kVocab; ++token) {
    embedding.Set(token, kToken + token, 1);
    embedding.Set(token, kOne, 1);
    head.Set(token, kOutput + token, 1);
  }
  std::vector<SafetensorsEntry> tensors = {
      embedding.Entry("model.embed_tokens.weight"),
      head.Entry("lm_head.weight"), Ones("model.norm.weight")};
  const Attention layers[] = {PreviousToken(), Induction()};
  for (int i = 0; i < 2; ++i) {
    const std::string prefix = absl::StrCat("model.layers.", i, ".");
    const Attention& a = layers[i];
    tensors.push_back(a.q.Entry(prefix + "self_attn.q_proj.weight"));
    tensors.push_back(a.k.Entry(prefix + "self_attn.k_proj.weight"));
    tensors.push_back(a.v.Entry(prefix + "self_attn.v_proj.weight"));
    tensors.push_back(a.o.Entry(prefix + "self_attn.o_proj.weight"));
    const Matrix up(kIntermediate, kHidden);
    tensors.push_back(up.Entry(prefix + "mlp.gate_proj.weight"));
    tensors.push_back(up.Entry(prefix + "mlp.up_proj.weight"));
    tensors.push_back(
        Matrix(kHidden, kIntermediate).Entry(prefix + "mlp.down_proj.weight"));
    tensors.push_back(Ones(prefix + "input_layernorm.weight"));
    tensors.push_back(Ones(prefix + "post_attention_layernorm.weight"));
  }
  const absl::Status status =
      WriteFile(folder + "/config.json", config.dump(2));
  if (!status.ok()) return status;
  return WriteFile(folder + "/model.safetensors", MakeSafetensors(tensors));
}

InductionPrompt MakeInductionPrompt(int64_t length, int64_t key_position) {
  OVERTURE_CHECK(key_position >= 1 && key_position <= length - 3);
  constexpr int32_t kStart = 0;
  constexpr int32_t kFiller = 1;
  constexpr int32_t kKey = 2;
  constexpr int32_t kAnswer = 40;
  InductionPrompt prompt{
      .tokens = std::vector<int32_t>(static_cast<size_t>(length), kFiller),
      .key_position = key_position,
      .answer_position = key_position + 1,
      .answer = kAnswer};
  prompt.tokens.front() = kStart;
  prompt.tokens[static_cast<size_t>(key_position)] = kKey;
  prompt.tokens[static_cast<size_t>(key_position) + 1] = kAnswer;
  prompt.tokens.back() = kKey;
  return prompt;
}

}  // namespace overture::testing
