#include "bench/structured_model.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <numeric>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/dtype.h"
#include "base/status_macros.h"
#include "engine/rope.h"
#include "engine/weight_table.h"

namespace overture::bench {
namespace {

using engine::ModelConfig;
using engine::TensorRole;

// Root mean squares of an ordinary embedding's parts, 1 in all, so that the
// norm before W_q and W_k leaves them.
constexpr float kCommon = 0.8f;
constexpr float kOwn = 0.6f;
// What the sink and the marked tokens carry besides. Channels are numbered
// sink, marks.
constexpr int kNumChannels = 2;
constexpr float kChannelPart[kNumChannels] = {1.5f, 0.75f};
// Noise of a query's or key's element. Logits of 20 come from means of norm 30
// and 11: it moves them by about 1, a token's own share by 0.6.
constexpr float kQkNoise = 0.35f;
// A layer adds this much to a residual of 1: 64 sums stay below 3%.
constexpr float kOutputGain = 0.02f;
// Norms of the key means: of one pair of dimensions, of one channel.
constexpr double kKeyPair = std::numbers::sqrt2;
constexpr double kKeyChannel = 12;
// Columns need frequencies that turn less than this over the whole context.
constexpr double kStill = 0.3;  // radians

constexpr int64_t kTokensPerMark = 512;

// SplitMix64's output function: a random-looking word for each counter.
uint64_t Mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Normal enough, variance 1: the sum of four uniform 16-bit parts.
float Gaussian(uint64_t word) {
  const int32_t sum =
      static_cast<int32_t>((word & 0xffff) + (word >> 16 & 0xffff) +
                           (word >> 32 & 0xffff) + (word >> 48));
  constexpr float kScale = static_cast<float>(std::numbers::sqrt3 / 65536);
  return static_cast<float>(sum - 2 * 0xffff) * kScale;
}

class Random {
 public:
  explicit Random(uint64_t seed) : state_(Mix(seed)) {}
  uint64_t Next() { return Mix(state_++); }
  double Uniform(double low, double high) {
    return low + (high - low) * std::ldexp(static_cast<double>(Next()), -64);
  }
  double LogUniform(double low, double high) {
    return std::exp(Uniform(std::log(low), std::log(high)));
  }

 private:
  uint64_t state_;
};

// The directions u, sink and mark: signs, orthogonal by construction.
enum Direction { kU = 0, kSinkPart = 1, kMarkPart = 2 };
std::vector<float> Signs(Direction direction, int64_t size) {
  std::vector<float> signs(size);
  for (int64_t i = 0; i < size; ++i) {
    const bool flip = (i & direction) != 0;
    signs[i] = (Mix(i) & 1) != flip ? 1.0f : -1.0f;
  }
  return signs;
}

HeadStructure Structure(int kind, double max_positions, Random& random) {
  HeadStructure head;
  // Shortest and longest slash; at a million tokens 512 and 131,072.
  const double nearest = std::max(1.0, max_positions / 2048);
  const auto spread = [&](double peak, double local, int num_slashes,
                          double farthest) {
    head.slashes = {{.distance = 0, .logit = peak * local}};
    for (int i = 0; i < num_slashes; ++i) {
      head.slashes.push_back({.distance = static_cast<int64_t>(
                                  random.LogUniform(nearest, farthest)),
                              .logit = peak * (1 - local) / num_slashes});
    }
  };
  switch (kind) {
    case 0:
      head.size = {.vertical = 1000, .slash = 6096};
      head.grain = random.LogUniform(4, 31);
      spread(random.Uniform(18, 22), 0.6, 1 + random.Next() % 5,
             max_positions / 8);
      head.sink_logit = 15;
      head.mark_logit = 7;
      break;
    case 1:
      head.size = {.vertical = 30, .slash = 800};
      head.grain = random.LogUniform(31, 245);
      spread(random.Uniform(15, 19), 1, 0, 0);
      head.sink_logit = 12;
      break;
    case 2:
      head.size = {.vertical = 100, .slash = 800};
      head.grain = random.LogUniform(31, 245);
      spread(random.Uniform(17, 21), 0.8, 1, max_positions / 64);
      head.sink_logit = 14;
      head.mark_logit = 4;
      break;
    case 3:
      head.size = {.vertical = 3500, .slash = 100};
      head.grain = random.LogUniform(2, 8);
      spread(random.Uniform(10, 12), 1, 0, 0);
      head.sink_logit = 8;
      head.mark_logit = 12;
      break;
    default:
      head.size = {.vertical = 500, .slash = 700};
      head.grain = random.LogUniform(31, 123);
      spread(random.Uniform(18, 21), 0.7, 1, max_positions / 64);
      head.sink_logit = 12;
      head.mark_logit = 9;
  }
  return head;
}

// Heads of MInference's Llama-3-8B file by size, in the order of Structure().
constexpr int64_t kHeadsOfKind[] = {473, 278, 153, 89, 31};

std::vector<int> ShuffledKinds(int64_t num_heads, Random& random) {
  const int64_t total =
      std::accumulate(std::begin(kHeadsOfKind), std::end(kHeadsOfKind), 0);
  std::vector<int> kinds;
  int64_t end = 0;
  for (size_t kind = 0; kind < std::size(kHeadsOfKind); ++kind) {
    end += kHeadsOfKind[kind];
    kinds.resize(num_heads * end / total, static_cast<int>(kind));
  }
  for (size_t i = kinds.size(); i > 1; --i) {
    std::swap(kinds[i - 1], kinds[random.Next() % i]);
  }
  return kinds;
}

// What one KV head's keys hold in the pairs of dimensions that RoPE turns
// together, as complex numbers, and which pairs serve what.
class KeyPairs {
 public:
  KeyPairs(const std::vector<double>& inv_freq, int64_t max_positions,
           uint64_t seed)
      : size_(inv_freq.size()), phases_(size_), channels_(size_, kUnused) {
    Random random(seed);
    std::vector<int> still;
    for (int i = 0; i < size_; ++i) {
      phases_[i] = random.Uniform(0, 2 * std::numbers::pi);
      const double turn = inv_freq[i] * max_positions;
      // Bands fade until a quarter of the context: slower frequencies would
      // raise every logit alike.
      if (turn > 4) channels_[i] = kLocal;
      if (turn < kStill) still.push_back(i);
    }
    for (size_t i = 0; i < still.size(); ++i) {
      const int channel = static_cast<int>(i * kNumChannels / still.size());
      channels_[still[i]] = channel;
      ++counts_[channel];
    }
  }

  static constexpr int kLocal = -1;
  static constexpr int kUnused = -2;
  int size() const { return size_; }
  double phase(int i) const { return phases_[i]; }
  int channel(int i) const { return channels_[i]; }  // or one of the above
  double modulus(int i) const {
    if (channels_[i] == kUnused) return 0;
    if (channels_[i] == kLocal) return kKeyPair;
    return kKeyChannel / std::sqrt(counts_[channels_[i]]);
  }
  int count(int channel) const { return counts_[channel]; }

 private:
  const int size_;
  std::vector<double> phases_;
  std::vector<int> channels_;
  int counts_[kNumChannels] = {};
};

// RoPE turns dimensions i and i + size together: real and imaginary part.
void AddPolar(double modulus, double phase, float* head, int i, int size) {
  head[i] += static_cast<float>(modulus * std::cos(phase));
  head[i + size] += static_cast<float>(modulus * std::sin(phase));
}

uint64_t KeySeed(uint64_t seed, int32_t layer, int32_t kv_head) {
  return Mix(Mix(seed + 1) + layer) + kv_head;
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnknownError(absl::StrCat(path, " cannot be written"));
}

// A reader would take them for parts of this model.
absl::Status CheckNoOtherShards(const std::string& folder,
                                const std::vector<std::string>& names) {
  std::error_code error;
  for (std::filesystem::directory_iterator file(folder, error), end;
       !error && file != end; file.increment(error)) {
    const std::string name = file->path().filename().string();
    if (file->path().extension() == ".safetensors" &&
        std::find(names.begin(), names.end(), name) == names.end()) {
      return absl::FailedPreconditionError(absl::StrCat(
          folder, " holds ", name, " of another model: remove it"));
    }
  }
  if (!error) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(folder, ": ", error.message()));
}

}  // namespace

// noise * N(0, 1) + sum of left * right', rounded to bf16.
struct StructuredModel::Tensor {
  struct Term {
    std::vector<float> left;   // [rows]
    std::vector<float> right;  // [columns]
  };
  std::string name;
  int64_t rows = 0;
  int64_t columns = 0;
  bool is_vector = false;
  float noise = 0;
  std::vector<Term> terms;
  uint64_t seed = 0;

  void FillRow(int64_t row, BFloat16* dst) const {
    std::vector<float> values(columns);
    if (noise != 0) {
      const uint64_t first = seed + row * columns;
      for (int64_t i = 0; i < columns; ++i) {
        values[i] = noise * Gaussian(Mix(first + i));
      }
    }
    for (const Term& term : terms) {
      const float left = term.left[row];
      if (left == 0) continue;
      for (int64_t i = 0; i < columns; ++i) values[i] += left * term.right[i];
    }
    for (int64_t i = 0; i < columns; ++i) dst[i] = BFloat16(values[i]);
  }

  static absl::Status WriteFile(const std::string& path,
                                const std::vector<Tensor>& tensors) {
    std::string header = R"({"__metadata__":{"format":"pt"})";
    int64_t end = 0;
    for (const Tensor& tensor : tensors) {
      const int64_t begin = end;
      end += tensor.rows * tensor.columns * sizeof(BFloat16);
      absl::StrAppend(
          &header, ",\"", tensor.name, R"(":{"dtype":"BF16","shape":[)",
          tensor.is_vector ? "" : absl::StrCat(tensor.rows, ","),
          tensor.columns, R"(],"data_offsets":[)", begin, ",", end, "]}");
    }
    header += "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    const uint64_t size = header.size();
    std::ofstream file(path, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&size), sizeof(size));
    file << header;
    for (const Tensor& tensor : tensors) {
      std::vector<BFloat16> row(tensor.columns);
      for (int64_t r = 0; r < tensor.rows; ++r) {
        tensor.FillRow(r, row.data());
        file.write(reinterpret_cast<const char*>(row.data()),
                   row.size() * sizeof(BFloat16));
      }
    }
    file.close();
    if (file) return absl::OkStatus();
    return absl::UnknownError(absl::StrCat(path, " cannot be written"));
  }
};

ModelConfig Llama3Config8B() {
  return {.architecture = "llama",
          .name = "structured synthetic weights",
          .vocab_size = 128256,
          .hidden_size = 4096,
          .intermediate_size = 14336,
          .num_layers = 32,
          .num_q_heads = 32,
          .num_kv_heads = 8,
          .head_dim = 128,
          .max_positions = int64_t{1} << 20,
          .rms_norm_eps = 1e-5,
          .rope_theta = 3580165449.0};
}

absl::StatusOr<StructuredModel> StructuredModel::Create(
    const ModelConfig& config, uint64_t seed) {
  OVERTURE_RETURN_IF_ERROR(engine::Validate(config));
  if (config.architecture != "llama" || config.tied_embeddings ||
      config.qkv_bias ||
      config.rope_scaling.kind != engine::RopeScaling::Kind::kNone) {
    return absl::InvalidArgumentError(
        "structured weights are a llama's with an output head of its own, "
        "without biases and RoPE scaling");
  }
  if (config.hidden_size % 4 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "hidden_size is ", config.hidden_size, ", must be a multiple of 4"));
  }
  if (config.vocab_size <= 1 + kNumMarkedTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("vocab_size is ", config.vocab_size, ", must be above ",
                     1 + kNumMarkedTokens));
  }
  StructuredModel model(config, seed);
  const double num_still = std::count_if(
      model.inv_freq_.begin(), model.inv_freq_.end(),
      [&](double theta) { return theta * config.max_positions < kStill; });
  if (num_still < kNumChannels) {
    return absl::InvalidArgumentError(absl::StrCat(
        "rope_theta is ", config.rope_theta, ": ", num_still,
        " frequencies turn less than ", kStill, " radians in ",
        config.max_positions, " positions, ", kNumChannels, " are needed"));
  }
  return model;
}

StructuredModel::StructuredModel(const ModelConfig& config, uint64_t seed)
    : config_(config),
      seed_(seed),
      inv_freq_(engine::RopeInverseFrequencies(config)) {
  Random random(seed);
  for (const int kind :
       ShuffledKinds(int64_t{config.num_layers} * config.num_q_heads, random)) {
    heads_.push_back(
        Structure(kind, static_cast<double>(config.max_positions), random));
  }
}

// [num_q_heads * head_dim]; what makes logit(D) of the header.
std::vector<float> StructuredModel::QueryMeans(int32_t layer) const {
  std::vector<float> means(config_.num_q_heads * config_.head_dim);
  const double root = std::sqrt(config_.head_dim);
  for (int32_t h = 0; h < config_.num_q_heads; ++h) {
    const HeadStructure& structure = head(layer, h);
    const KeyPairs keys(
        inv_freq_, config_.max_positions,
        KeySeed(seed_, layer,
                h / (config_.num_q_heads / config_.num_kv_heads)));
    const double channel_logits[] = {structure.sink_logit,
                                     structure.mark_logit};
    const auto is_local = [&](int i) {
      return keys.channel(i) == KeyPairs::kLocal &&
             inv_freq_[i] * structure.grain <= 1;
    };
    int num_local = 0;
    for (int i = 0; i < keys.size(); ++i) num_local += is_local(i);
    float* mean = means.data() + h * config_.head_dim;
    for (int i = 0; i < keys.size(); ++i) {
      if (is_local(i)) {
        for (const Slash& slash : structure.slashes) {
          AddPolar(slash.logit * root / num_local / keys.modulus(i),
                   keys.phase(i) - inv_freq_[i] * slash.distance, mean, i,
                   keys.size());
        }
      } else if (keys.channel(i) >= 0) {
        AddPolar(channel_logits[keys.channel(i)] * root /
                     keys.count(keys.channel(i)) / keys.modulus(i),
                 keys.phase(i), mean, i, keys.size());
      }
    }
  }
  return means;
}

// [num_kv_heads * head_dim]; one channel, or KeyPairs::kLocal.
std::vector<float> StructuredModel::KeyChannel(int32_t layer,
                                               int channel) const {
  std::vector<float> means(config_.num_kv_heads * config_.head_dim);
  for (int32_t h = 0; h < config_.num_kv_heads; ++h) {
    const KeyPairs keys(inv_freq_, config_.max_positions,
                        KeySeed(seed_, layer, h));
    for (int i = 0; i < keys.size(); ++i) {
      if (keys.channel(i) != channel) continue;
      AddPolar(keys.modulus(i), keys.phase(i),
               means.data() + h * config_.head_dim, i, keys.size());
    }
  }
  return means;
}

AttentionMeans StructuredModel::Means(int32_t layer) const {
  AttentionMeans means{.q = QueryMeans(layer),
                       .k = KeyChannel(layer, KeyPairs::kLocal),
                       .k_sink = KeyChannel(layer, 0),
                       .k_mark = KeyChannel(layer, 1)};
  for (size_t i = 0; i < means.k.size(); ++i) {
    means.k_sink[i] += means.k[i] / std::hypot(1.0f, kChannelPart[0]);
    means.k_mark[i] += means.k[i] / std::hypot(1.0f, kChannelPart[1]);
  }
  return means;
}

StructuredModel::Tensor StructuredModel::Describe(TensorRole role,
                                                  int32_t layer) const {
  const engine::ModelFiles::Shape shape = engine::ExpectedShape(config_, role);
  Tensor tensor{
      .name = engine::HuggingFaceName(role, layer),
      .rows = shape.rows,
      .columns = shape.columns,
      .seed = Mix(Mix(Mix(seed_) + static_cast<uint64_t>(role)) + layer)};
  const double hidden = static_cast<double>(config_.hidden_size);
  const float unit = static_cast<float>(1 / std::sqrt(shape.columns));
  // Maps the part of size `share` of a normed row in `direction` onto `to`.
  const auto map = [&](std::vector<float> to, Direction direction,
                       double share) {
    for (float& value : to) value /= static_cast<float>(share * hidden);
    tensor.terms.push_back(
        {std::move(to), Signs(direction, config_.hidden_size)});
  };
  switch (role) {
    case TensorRole::kTokenEmbedding: {
      tensor.noise = kOwn;
      std::vector<float> sink(shape.rows), mark(shape.rows);
      sink[kSinkToken] = kChannelPart[0];
      std::fill_n(mark.begin() + 1, kNumMarkedTokens, kChannelPart[1]);
      tensor.terms = {{std::vector<float>(shape.rows, kCommon),
                       Signs(kU, config_.hidden_size)},
                      {sink, Signs(kSinkPart, config_.hidden_size)},
                      {mark, Signs(kMarkPart, config_.hidden_size)}};
      break;
    }
    case TensorRole::kOutputNorm:
    case TensorRole::kAttentionNorm:
    case TensorRole::kMlpNorm:
      tensor.is_vector = true;
      tensor.terms = {{{1.0f}, std::vector<float>(shape.columns, 1.0f)}};
      break;
    case TensorRole::kQ:
      tensor.noise = kQkNoise * unit;
      map(QueryMeans(layer), kU, kCommon);
      break;
    case TensorRole::kK:
      tensor.noise = kQkNoise * unit;
      map(KeyChannel(layer, KeyPairs::kLocal), kU, kCommon);
      for (int channel = 0; channel < kNumChannels; ++channel) {
        const double part = kChannelPart[channel];
        map(KeyChannel(layer, channel), channel == 0 ? kSinkPart : kMarkPart,
            part / std::sqrt(1 + part * part));
      }
      break;
    case TensorRole::kO:
    case TensorRole::kDown:
      tensor.noise = kOutputGain * unit;
      break;
    default:
      tensor.noise = unit;
  }
  return tensor;
}

std::vector<std::vector<StructuredModel::Tensor>> StructuredModel::Shards()
    const {
  // The two largest first: each shard is one core's work.
  std::vector<std::vector<Tensor>> shards = {
      {Describe(TensorRole::kTokenEmbedding, 0)},
      {Describe(TensorRole::kLmHead, 0), Describe(TensorRole::kOutputNorm, 0)}};
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    auto& shard = shards.emplace_back();
    for (const TensorRole role :
         {TensorRole::kAttentionNorm, TensorRole::kQ, TensorRole::kK,
          TensorRole::kV, TensorRole::kO, TensorRole::kMlpNorm,
          TensorRole::kGate, TensorRole::kUp, TensorRole::kDown}) {
      shard.push_back(Describe(role, layer));
    }
  }
  return shards;
}

absl::Status StructuredModel::Write(const std::string& folder) const {
  const std::vector<std::vector<Tensor>> shards = Shards();
  std::vector<std::string> names;
  for (size_t i = 0; i < shards.size(); ++i) {
    names.push_back(absl::StrFormat("model-%05d-of-%05d.safetensors", i + 1,
                                    shards.size()));
  }
  OVERTURE_RETURN_IF_ERROR(CheckNoOtherShards(folder, names));
  OVERTURE_RETURN_IF_ERROR(WriteText(
      absl::StrCat(folder, "/config.json"),
      absl::StrFormat(
          R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
 "_name_or_path": "structured synthetic weights", "torch_dtype": "bfloat16",
 "vocab_size": %d, "hidden_size": %d, "intermediate_size": %d,
 "num_hidden_layers": %d, "num_attention_heads": %d,
 "num_key_value_heads": %d, "head_dim": %d, "max_position_embeddings": %d,
 "rms_norm_eps": %.9g, "rope_theta": %.17g, "hidden_act": "silu",
 "tie_word_embeddings": false}
)",
          config_.vocab_size, config_.hidden_size, config_.intermediate_size,
          config_.num_layers, config_.num_q_heads, config_.num_kv_heads,
          config_.head_dim, config_.max_positions, config_.rms_norm_eps,
          config_.rope_theta)));
  std::vector<std::string> layers;
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    std::vector<std::string> heads;
    for (int32_t h = 0; h < config_.num_q_heads; ++h) {
      const kernels::VerticalSlashSize& size = head(layer, h).size;
      heads.push_back(
          absl::StrFormat(R"("%d": ["vertical_and_slash", %d, %d, 0])", h,
                          size.vertical, size.slash));
    }
    layers.push_back(absl::StrCat("{", absl::StrJoin(heads, ", "), "}"));
  }
  OVERTURE_RETURN_IF_ERROR(
      WriteText(absl::StrCat(folder, "/heads.json"),
                absl::StrCat("[", absl::StrJoin(layers, ",\n"), "]\n")));

  std::vector<absl::Status> statuses(shards.size());
#pragma omp parallel for schedule(dynamic)
  for (size_t i = 0; i < shards.size(); ++i) {
    statuses[i] =
        Tensor::WriteFile(absl::StrCat(folder, "/", names[i]), shards[i]);
  }
  for (const absl::Status& status : statuses) {
    OVERTURE_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

std::vector<int32_t> StructuredModel::Prompt(int64_t num_tokens) const {
  std::vector<int32_t> tokens(num_tokens, kSinkToken);
  Random random(seed_ + 2);
  for (int64_t i = 1; i < num_tokens; ++i) {
    const uint64_t word = random.Next();
    const int64_t rest = static_cast<int64_t>(word / kTokensPerMark);
    tokens[i] = static_cast<int32_t>(
        word % kTokensPerMark == 0
            ? 1 + rest % kNumMarkedTokens
            : 1 + kNumMarkedTokens +
                  rest % (config_.vocab_size - 1 - kNumMarkedTokens));
  }
  return tokens;
}

}  // namespace overture::bench
