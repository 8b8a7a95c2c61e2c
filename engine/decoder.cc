#include "engine/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/cpu_weights.h"
#include "engine/decode_attention.h"

namespace overture::engine {
namespace {

class CpuDecoderModel final : public DecoderModel {
 public:
  explicit CpuDecoderModel(std::unique_ptr<const CpuWeights> weights)
      : weights_(std::move(weights)) {}
  const ModelConfig& config() const override { return weights_->config(); }
  const KvLayout& kv_layout() const override { return weights_->kv_layout(); }
  const CpuWeights& weights() const { return *weights_; }

 private:
  std::unique_ptr<const CpuWeights> weights_;
};

// Reads element `i` of `src` as a float.
float ReadElement(DType dtype, const std::byte* src, int64_t i) {
  src += i * SizeOf(dtype);
  switch (dtype) {
    case DType::kF32: {
      float value;
      std::memcpy(&value, src, sizeof value);
      return value;
    }
    case DType::kF16: {
      Float16 value;
      std::memcpy(&value, src, sizeof value);
      return static_cast<float>(value);
    }
    case DType::kBF16: {
      BFloat16 value;
      std::memcpy(&value, src, sizeof value);
      return static_cast<float>(value);
    }
  }
  return 0;
}

// Appends `src`, elements of `from`, to `dst` as elements of `to` (kF32 or
// kBF16).
void AppendConverted(DType from, absl::Span<const std::byte> src, DType to,
                     std::vector<std::byte>* dst) {
  if (from == to) {
    dst->insert(dst->end(), src.begin(), src.end());
    return;
  }
  const int64_t count = static_cast<int64_t>(src.size()) / SizeOf(from);
  size_t offset = dst->size();
  dst->resize(offset + count * SizeOf(to));
  for (int64_t i = 0; i < count; ++i, offset += SizeOf(to)) {
    const float value = ReadElement(from, src.data(), i);
    if (to == DType::kF32) {
      std::memcpy(dst->data() + offset, &value, sizeof value);
    } else {
      const BFloat16 rounded(value);
      std::memcpy(dst->data() + offset, &rounded, sizeof rounded);
    }
  }
}

// [rows, head_dim] of one KV head.
struct HeadRows {
  std::vector<std::byte> k;
  std::vector<std::byte> v;
};

class CpuDecoder final : public Decoder {
 public:
  CpuDecoder(std::shared_ptr<const DecoderModel> model,
             const CpuWeights& weights, int64_t logical_length);

  absl::Status AppendRows(int32_t layer, int32_t kv_head, DType dtype,
                          absl::Span<const std::byte> k,
                          absl::Span<const std::byte> v) override;
  absl::StatusOr<absl::Span<const float>> Step(int32_t token) override;
  int64_t logical_length() const override { return logical_length_; }
  int64_t rows(int32_t layer, int32_t kv_head) const override {
    return NumRows(head(layer, kv_head));
  }

 private:
  const HeadRows& head(int32_t layer, int32_t kv_head) const {
    return heads_[layer * config_.num_kv_heads + kv_head];
  }
  int64_t NumRows(const HeadRows& head) const {
    return static_cast<int64_t>(head.k.size()) /
           weights_.kv_layout().HeadBytes(1);
  }
  absl::Status RunLayer(int32_t layer);
  void AppendToken(int32_t layer);
  void Attend(int32_t layer);

  const std::shared_ptr<const DecoderModel> model_;  // keeps weights_ alive
  const CpuWeights& weights_;
  const ModelConfig& config_;
  const DType dtype_;
  int64_t logical_length_;
  std::vector<HeadRows> heads_;  // [num_layers * num_kv_heads]

  // One row of everything.
  std::vector<float> residual_;
  std::vector<std::byte> normed_;
  std::vector<float> qkv_;
  std::vector<float> q_;
  std::vector<std::byte> kv_row_;
  std::vector<std::byte> attended_;
  std::vector<float> hidden_;
  std::vector<std::byte> gate_up_;
  std::vector<std::byte> act_;
  std::vector<float> logits_;
  // Partial attention results, grown as needed: [part][group][head_dim].
  std::vector<float> part_out_;
  std::vector<float> part_max_;
  std::vector<float> part_sum_;
};

CpuDecoder::CpuDecoder(std::shared_ptr<const DecoderModel> model,
                       const CpuWeights& weights, int64_t logical_length)
    : model_(std::move(model)),
      weights_(weights),
      config_(weights.config()),
      dtype_(weights.dtype()),
      logical_length_(logical_length),
      heads_(int64_t{config_.num_layers} * config_.num_kv_heads),
      residual_(config_.hidden_size),
      normed_(config_.hidden_size * SizeOf(dtype_)),
      qkv_(weights.qkv_size()),
      q_(weights.q_size()),
      kv_row_(weights.kv_size() * SizeOf(dtype_)),
      attended_(weights.q_size() * SizeOf(dtype_)),
      hidden_(config_.hidden_size),
      gate_up_(2 * config_.intermediate_size * SizeOf(dtype_)),
      act_(config_.intermediate_size * SizeOf(dtype_)),
      logits_(config_.vocab_size) {}

absl::Status CpuDecoder::AppendRows(int32_t layer, int32_t kv_head, DType dtype,
                                    absl::Span<const std::byte> k,
                                    absl::Span<const std::byte> v) {
  if (layer < 0 || layer >= config_.num_layers) {
    return absl::InvalidArgumentError(absl::StrCat(
        "layer is ", layer, ", must be in [0, ", config_.num_layers, ")"));
  }
  if (kv_head < 0 || kv_head >= config_.num_kv_heads) {
    return absl::InvalidArgumentError(absl::StrCat("kv_head is ", kv_head,
                                                   ", must be in [0, ",
                                                   config_.num_kv_heads, ")"));
  }
  if (!IsValidDType(static_cast<uint32_t>(dtype))) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dtype is ", static_cast<uint32_t>(dtype), ", must be 1 to 3"));
  }
  const size_t row_bytes = config_.head_dim * SizeOf(dtype);
  if (k.size() != v.size() || k.size() % row_bytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("k has ", k.size(), " bytes and v ", v.size(),
                     ", must be the same multiple of ", row_bytes));
  }
  try {
    HeadRows& rows = heads_[layer * config_.num_kv_heads + kv_head];
    AppendConverted(dtype, k, dtype_, &rows.k);
    AppendConverted(dtype, v, dtype_, &rows.v);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("not enough memory for the KV");
  }
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const float>> CpuDecoder::Step(int32_t token) {
  if (token < 0 || token >= config_.vocab_size) {
    return absl::OutOfRangeError(absl::StrCat(
        "token is ", token, ", must be in [0, ", config_.vocab_size, ")"));
  }
  if (logical_length_ >= config_.max_positions) {
    return absl::OutOfRangeError(absl::StrCat("position ", logical_length_,
                                              " is past the model's ",
                                              config_.max_positions));
  }
  if (logical_length_ > 0) {
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
      for (int32_t h = 0; h < config_.num_kv_heads; ++h) {
        if (rows(layer, h) > 0) continue;
        return absl::FailedPreconditionError(
            absl::StrCat("layer ", layer, " KV head ", h, " holds no row of ",
                         logical_length_, " positions"));
      }
    }
  }
  weights_.Embed(token, residual_.data());
  try {
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
      OVERTURE_RETURN_IF_ERROR(RunLayer(layer));
    }
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("not enough memory for the KV");
  }
  kernels::RmsNormCpu(residual_.data(), weights_.output_norm().data(),
                      config_.rms_norm_eps, 1, config_.hidden_size, dtype_,
                      normed_.data());
  OVERTURE_RETURN_IF_ERROR(
      weights_.lm_head().Apply(normed_.data(), 1, logits_.data(), DType::kF32));
  ++logical_length_;
  return absl::MakeConstSpan(logits_);
}

absl::Status CpuDecoder::RunLayer(int32_t layer) {
  const CpuLayerWeights& weights = weights_.layer(layer);
  const int64_t hidden = config_.hidden_size;
  kernels::RmsNormCpu(residual_.data(), weights.attention_norm.data(),
                      config_.rms_norm_eps, 1, hidden, dtype_, normed_.data());
  OVERTURE_RETURN_IF_ERROR(
      weights.qkv->Apply(normed_.data(), 1, qkv_.data(), DType::kF32));
  AppendToken(layer);
  Attend(layer);
  OVERTURE_RETURN_IF_ERROR(
      weights.o->Apply(attended_.data(), 1, hidden_.data(), DType::kF32));
  kernels::AddCpu(residual_.data(), hidden_.data(), hidden);
  kernels::RmsNormCpu(residual_.data(), weights.mlp_norm.data(),
                      config_.rms_norm_eps, 1, hidden, dtype_, normed_.data());
  OVERTURE_RETURN_IF_ERROR(
      weights.gate_up->Apply(normed_.data(), 1, gate_up_.data(), dtype_));
  kernels::SwiGluCpu(gate_up_.data(), dtype_, 1, config_.intermediate_size,
                     dtype_, act_.data());
  OVERTURE_RETURN_IF_ERROR(
      weights.down->Apply(act_.data(), 1, hidden_.data(), DType::kF32));
  kernels::AddCpu(residual_.data(), hidden_.data(), hidden);
  return absl::OkStatus();
}

void CpuDecoder::AppendToken(int32_t layer) {
  const int64_t head_dim = config_.head_dim;
  kernels::RopeParams params{.x = qkv_.data() + weights_.q_size(),
                             .stride_x_row = weights_.qkv_size(),
                             .stride_x_head = head_dim,
                             .out = kv_row_.data(),
                             .stride_out_row = weights_.kv_size(),
                             .stride_out_head = head_dim,
                             .dtype = dtype_,
                             .rows = 1,
                             .num_heads = config_.num_kv_heads,
                             .head_dim = config_.head_dim,
                             .position_begin = logical_length_};
  const int64_t row_bytes = weights_.kv_layout().HeadBytes(1);
  const auto append = [&](std::vector<std::byte> HeadRows::*rows) {
    for (int32_t h = 0; h < config_.num_kv_heads; ++h) {
      std::vector<std::byte>& dst =
          heads_[layer * config_.num_kv_heads + h].*rows;
      const auto src = kv_row_.begin() + h * row_bytes;
      dst.insert(dst.end(), src, src + row_bytes);
    }
  };
  kernels::RopeCpu(weights_.rope(), params);
  append(&HeadRows::k);
  params.x += weights_.kv_size();
  kernels::CastHeadsCpu(params);
  append(&HeadRows::v);
}

void CpuDecoder::Attend(int32_t layer) {
  const int32_t head_dim = config_.head_dim;
  const int32_t group = config_.num_q_heads / config_.num_kv_heads;
  // Q is rounded to the compute dtype as in a prefill, then scaled in fp32.
  kernels::RopeParams params{.x = qkv_.data(),
                             .stride_x_row = weights_.qkv_size(),
                             .stride_x_head = head_dim,
                             .out = attended_.data(),
                             .stride_out_row = weights_.q_size(),
                             .stride_out_head = head_dim,
                             .dtype = dtype_,
                             .rows = 1,
                             .num_heads = config_.num_q_heads,
                             .head_dim = head_dim,
                             .position_begin = logical_length_};
  kernels::RopeCpu(weights_.rope(), params);
  const float scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
  for (int64_t i = 0; i < weights_.q_size(); ++i) {
    q_[i] = ReadElement(dtype_, attended_.data(), i) * scale;
  }

  // One part per KV head and kDecodePartRows rows; heads may differ in rows.
  struct Part {
    int32_t kv_head;
    int64_t row_begin;
    int64_t num_rows;
  };
  std::vector<Part> parts;
  std::vector<int64_t> first_part(config_.num_kv_heads + 1);
  for (int32_t h = 0; h < config_.num_kv_heads; ++h) {
    first_part[h] = static_cast<int64_t>(parts.size());
    const int64_t num_rows = rows(layer, h);
    for (int64_t row = 0; row < num_rows; row += kDecodePartRows) {
      parts.push_back({h, row, std::min(kDecodePartRows, num_rows - row)});
    }
  }
  const int64_t num_parts = static_cast<int64_t>(parts.size());
  first_part.back() = num_parts;
  part_out_.resize(num_parts * group * head_dim);
  part_max_.resize(num_parts * group);
  part_sum_.resize(num_parts * group);
  const int64_t row_bytes = weights_.kv_layout().HeadBytes(1);
#pragma omp parallel for schedule(dynamic, 1) if (num_parts > 1)
  for (int64_t p = 0; p < num_parts; ++p) {
    const Part& part = parts[p];
    const HeadRows& kv = head(layer, part.kv_head);
    AttendPart({.dtype = dtype_,
                .q = q_.data() + part.kv_head * group * head_dim,
                .k = kv.k.data() + part.row_begin * row_bytes,
                .v = kv.v.data() + part.row_begin * row_bytes,
                .num_rows = part.num_rows,
                .group = group,
                .head_dim = head_dim,
                .out = part_out_.data() + p * group * head_dim,
                .max = part_max_.data() + p * group,
                .sum = part_sum_.data() + p * group});
  }
  std::vector<float> out(head_dim);
  for (int32_t h = 0; h < config_.num_q_heads; ++h) {
    const int32_t kv_head = h / group;
    const int64_t first = first_part[kv_head] * group + h % group;
    MergeParts(part_out_.data() + first * head_dim, part_max_.data() + first,
               part_sum_.data() + first,
               first_part[kv_head + 1] - first_part[kv_head],
               int64_t{group} * head_dim, group, head_dim, out.data());
    for (int32_t i = 0; i < head_dim; ++i) {
      std::byte* dst =
          attended_.data() + (int64_t{h} * head_dim + i) * SizeOf(dtype_);
      if (dtype_ == DType::kF32) {
        std::memcpy(dst, &out[i], sizeof(float));
      } else {
        const BFloat16 rounded(out[i]);
        std::memcpy(dst, &rounded, sizeof rounded);
      }
    }
  }
}

}  // namespace

absl::StatusOr<std::shared_ptr<const DecoderModel>> DecoderModel::Create(
    const ModelFiles& files, ComputeDType dtype) {
  OVERTURE_ASSIGN_OR_RETURN(std::unique_ptr<const CpuWeights> weights,
                            CpuWeights::Create(files, dtype));
  return std::make_shared<const CpuDecoderModel>(std::move(weights));
}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(
    std::shared_ptr<const DecoderModel> model, int64_t logical_length) {
  const auto* cpu_model = dynamic_cast<const CpuDecoderModel*>(model.get());
  OVERTURE_CHECK(cpu_model != nullptr);
  if (logical_length < 0 ||
      logical_length > cpu_model->config().max_positions) {
    return absl::InvalidArgumentError(
        absl::StrCat("logical_length is ", logical_length, ", must be in [0, ",
                     cpu_model->config().max_positions, "]"));
  }
  const CpuWeights& weights = cpu_model->weights();
  return std::make_unique<CpuDecoder>(std::move(model), weights,
                                      logical_length);
}

int32_t Argmax(absl::Span<const float> logits) {
  return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) -
                              logits.begin());
}

float LogProbability(absl::Span<const float> logits, int32_t token) {
  const float max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - max);
  }
  return static_cast<float>(static_cast<double>(logits[token]) - max -
                            std::log(sum));
}

}  // namespace overture::engine
