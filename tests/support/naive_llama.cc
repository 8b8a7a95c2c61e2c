#include "tests/support/naive_llama.h"

#include <cmath>

#include "base/status_macros.h"

namespace overture::testing {
namespace {

using engine::ModelConfig;
using engine::ModelFiles;
using engine::RopeScaling;
using engine::TensorRole;
using Row = std::vector<double>;

absl::StatusOr<Row> Read(const ModelFiles& files, TensorRole role,
                         int32_t layer) {
  OVERTURE_ASSIGN_OR_RETURN(const ModelFiles::Shape shape,
                            files.TensorShape(role, layer));
  std::vector<float> values(shape.rows * shape.columns);
  OVERTURE_RETURN_IF_ERROR(
      files.ReadTensor(role, layer, absl::MakeSpan(values)));
  return Row(values.begin(), values.end());
}

Row Norm(const Row& x, const Row& weight, double eps) {
  double squares = 0;
  for (const double value : x) squares += value * value;
  const double scale =
      1 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
  Row out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = x[i] * scale * weight[i];
  return out;
}

Row Multiply(const Row& weight, const Row& x, const Row& bias = {}) {
  const size_t rows = weight.size() / x.size();
  Row out(rows);
  for (size_t r = 0; r < rows; ++r) {
    double sum = bias.empty() ? 0 : bias[r];
    for (size_t c = 0; c < x.size(); ++c)
      sum += weight[r * x.size() + c] * x[c];
    out[r] = sum;
  }
  return out;
}

// Radians that one position turns the pair (i, i + head_dim / 2).
// Source: Hugging Face Transformers, modeling_rope_utils.py.
double Frequency(const ModelConfig& config, int32_t i) {
  const double plain =
      1 / std::pow(config.rope_theta, 2.0 * i / config.head_dim);
  const RopeScaling& scaling = config.rope_scaling;
  if (scaling.kind == RopeScaling::Kind::kNone) return plain;
  if (scaling.kind == RopeScaling::Kind::kLinear) return plain / scaling.factor;
  const double context = static_cast<double>(scaling.original_max_positions);
  const double low_wavelength = context / scaling.low_freq_factor;
  const double high_wavelength = context / scaling.high_freq_factor;
  const double wavelength = 2 * M_PI / plain;
  if (wavelength < high_wavelength) return plain;
  if (wavelength > low_wavelength) return plain / scaling.factor;
  const double smooth = (context / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * plain / scaling.factor + smooth * plain;
}

Row Rotate(const ModelConfig& config, const Row& head, int64_t position) {
  const int32_t half = config.head_dim / 2;
  Row out(head.size());
  for (int32_t i = 0; i < half; ++i) {
    const double angle = static_cast<double>(position) * Frequency(config, i);
    out[i] = head[i] * std::cos(angle) - head[i + half] * std::sin(angle);
    out[i + half] =
        head[i + half] * std::cos(angle) + head[i] * std::sin(angle);
  }
  return out;
}

Row Head(const Row& x, int32_t head, int32_t head_dim) {
  const auto begin = x.begin() + int64_t{head} * head_dim;
  return Row(begin, begin + head_dim);
}

void AddTo(const Row& y, Row& x) {
  for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

// Attention of one query head at position `at.q` over keys 0 .. at.q.
Row Attend(const Row& query, const std::vector<Row>& keys,
           const std::vector<Row>& values, NaivePair at,
           const NaiveMask& mask) {
  const int64_t q = at.q;
  Row weights(q + 1, 0);
  double max = -INFINITY;
  for (int64_t k = 0; k <= q; ++k) {
    at.k = k;
    double dot = 0;
    for (size_t i = 0; i < query.size(); ++i) dot += query[i] * keys[k][i];
    weights[k] = dot / std::sqrt(static_cast<double>(query.size()));
    if (mask && !mask(at)) weights[k] = -INFINITY;
    max = std::fmax(max, weights[k]);
  }
  double sum = 0;
  for (double& weight : weights) sum += weight = std::exp(weight - max);
  Row out(query.size(), 0);
  for (int64_t k = 0; k <= q; ++k) {
    for (size_t i = 0; i < out.size(); ++i) {
      out[i] += weights[k] / sum * values[k][i];
    }
  }
  return out;
}

}  // namespace

absl::StatusOr<NaiveForward> RunNaiveLlama(const ModelFiles& files,
                                           absl::Span<const int32_t> tokens,
                                           const NaiveMask& mask) {
  const ModelConfig& config = files.config();
  const int64_t n = static_cast<int64_t>(tokens.size());
  const int32_t group = config.num_q_heads / config.num_kv_heads;
  NaiveForward out;
  out.q.resize(config.num_layers);
  out.k.resize(config.num_layers);
  out.v.resize(config.num_layers);

  OVERTURE_ASSIGN_OR_RETURN(const Row embedding,
                            Read(files, TensorRole::kTokenEmbedding, 0));
  std::vector<Row> x(n);
  for (int64_t p = 0; p < n; ++p) {
    const auto row = embedding.begin() + tokens[p] * config.hidden_size;
    x[p] = Row(row, row + config.hidden_size);
  }
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    const auto read = [&](TensorRole role) { return Read(files, role, layer); };
    OVERTURE_ASSIGN_OR_RETURN(const Row norm, read(TensorRole::kAttentionNorm));
    OVERTURE_ASSIGN_OR_RETURN(const Row wq, read(TensorRole::kQ));
    OVERTURE_ASSIGN_OR_RETURN(const Row wk, read(TensorRole::kK));
    OVERTURE_ASSIGN_OR_RETURN(const Row wv, read(TensorRole::kV));
    OVERTURE_ASSIGN_OR_RETURN(const Row wo, read(TensorRole::kO));
    OVERTURE_ASSIGN_OR_RETURN(const Row mlp_norm, read(TensorRole::kMlpNorm));
    OVERTURE_ASSIGN_OR_RETURN(const Row gate, read(TensorRole::kGate));
    OVERTURE_ASSIGN_OR_RETURN(const Row up, read(TensorRole::kUp));
    OVERTURE_ASSIGN_OR_RETURN(const Row down, read(TensorRole::kDown));
    Row q_bias, k_bias, v_bias;
    if (config.qkv_bias) {
      OVERTURE_ASSIGN_OR_RETURN(q_bias, read(TensorRole::kQBias));
      OVERTURE_ASSIGN_OR_RETURN(k_bias, read(TensorRole::kKBias));
      OVERTURE_ASSIGN_OR_RETURN(v_bias, read(TensorRole::kVBias));
    }
    out.q[layer].resize(config.num_q_heads);
    out.k[layer].resize(config.num_kv_heads);
    out.v[layer].resize(config.num_kv_heads);
    for (int64_t p = 0; p < n; ++p) {
      const Row normed = Norm(x[p], norm, config.rms_norm_eps);
      const Row q = Multiply(wq, normed, q_bias);
      const Row k = Multiply(wk, normed, k_bias);
      const Row v = Multiply(wv, normed, v_bias);
      for (int32_t h = 0; h < config.num_q_heads; ++h) {
        out.q[layer][h].push_back(
            Rotate(config, Head(q, h, config.head_dim), p));
      }
      for (int32_t h = 0; h < config.num_kv_heads; ++h) {
        out.k[layer][h].push_back(
            Rotate(config, Head(k, h, config.head_dim), p));
        out.v[layer][h].push_back(Head(v, h, config.head_dim));
      }
    }
    for (int64_t p = 0; p < n; ++p) {
      Row attended;
      for (int32_t h = 0; h < config.num_q_heads; ++h) {
        const NaivePair at{.layer = layer, .q_head = h, .q = p, .k = 0};
        const Row head = Attend(out.q[layer][h][p], out.k[layer][h / group],
                                out.v[layer][h / group], at, mask);
        attended.insert(attended.end(), head.begin(), head.end());
      }
      AddTo(Multiply(wo, attended), x[p]);
      const Row normed = Norm(x[p], mlp_norm, config.rms_norm_eps);
      Row act = Multiply(gate, normed);
      const Row upped = Multiply(up, normed);
      for (size_t i = 0; i < act.size(); ++i) {
        act[i] = act[i] / (1 + std::exp(-act[i])) * upped[i];
      }
      AddTo(Multiply(down, act), x[p]);
    }
  }
  OVERTURE_ASSIGN_OR_RETURN(const Row norm,
                            Read(files, TensorRole::kOutputNorm, 0));
  Row head = embedding;
  if (!config.tied_embeddings) {
    OVERTURE_ASSIGN_OR_RETURN(head, Read(files, TensorRole::kLmHead, 0));
  }
  for (int64_t p = 0; p < n; ++p) {
    out.logits.push_back(Multiply(head, Norm(x[p], norm, config.rms_norm_eps)));
  }
  return out;
}

}  // namespace overture::testing
