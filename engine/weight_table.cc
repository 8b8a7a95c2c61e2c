#include "engine/weight_table.h"

#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/dequantize.h"

namespace overture::engine {
namespace {

struct RoleNames {
  absl::string_view role;
  absl::string_view gguf;          // behind "blk.<layer>." if per layer
  absl::string_view hugging_face;  // behind "model.layers.<layer>." likewise
};

// In the order of TensorRole.
constexpr RoleNames kNames[] = {
    {"token embedding", "token_embd.weight", "model.embed_tokens.weight"},
    {"output norm", "output_norm.weight", "model.norm.weight"},
    {"LM head", "output.weight", "lm_head.weight"},
    {"attention norm", "attn_norm.weight", "input_layernorm.weight"},
    {"Q", "attn_q.weight", "self_attn.q_proj.weight"},
    {"K", "attn_k.weight", "self_attn.k_proj.weight"},
    {"V", "attn_v.weight", "self_attn.v_proj.weight"},
    {"Q bias", "attn_q.bias", "self_attn.q_proj.bias"},
    {"K bias", "attn_k.bias", "self_attn.k_proj.bias"},
    {"V bias", "attn_v.bias", "self_attn.v_proj.bias"},
    {"O", "attn_output.weight", "self_attn.o_proj.weight"},
    {"MLP norm", "ffn_norm.weight", "post_attention_layernorm.weight"},
    {"gate", "ffn_gate.weight", "mlp.gate_proj.weight"},
    {"up", "ffn_up.weight", "mlp.up_proj.weight"},
    {"down", "ffn_down.weight", "mlp.down_proj.weight"},
};
static_assert(std::size(kNames) == kNumTensorRoles);

const RoleNames& NamesOf(TensorRole role) {
  return kNames[static_cast<int>(role)];
}

bool IsVector(TensorRole role) {
  switch (role) {
    case TensorRole::kOutputNorm:
    case TensorRole::kAttentionNorm:
    case TensorRole::kMlpNorm:
    case TensorRole::kQBias:
    case TensorRole::kKBias:
    case TensorRole::kVBias:
      return true;
    default:
      return false;
  }
}

// Where row `row` of the rotate-halves order stands in an interleaved tensor.
int64_t InterleavedRow(int64_t row, int64_t head_dim) {
  const int64_t head = row / head_dim;
  const int64_t within = row % head_dim;
  const int64_t half = head_dim / 2;
  return head * head_dim + 2 * (within % half) + within / half;
}

}  // namespace

absl::string_view Name(TensorRole role) { return NamesOf(role).role; }

ModelFiles::Shape ExpectedShape(const ModelConfig& config, TensorRole role) {
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.intermediate_size;
  const int64_t q_size = int64_t{config.num_q_heads} * config.head_dim;
  const int64_t kv_size = int64_t{config.num_kv_heads} * config.head_dim;
  switch (role) {
    case TensorRole::kTokenEmbedding:
      return {config.vocab_size, hidden};
    case TensorRole::kLmHead:
      if (config.tied_embeddings) return {};
      return {config.vocab_size, hidden};
    case TensorRole::kOutputNorm:
    case TensorRole::kAttentionNorm:
    case TensorRole::kMlpNorm:
      return {1, hidden};
    case TensorRole::kQ:
      return {q_size, hidden};
    case TensorRole::kK:
    case TensorRole::kV:
      return {kv_size, hidden};
    case TensorRole::kQBias:
      if (!config.qkv_bias) return {};
      return {1, q_size};
    case TensorRole::kKBias:
    case TensorRole::kVBias:
      if (!config.qkv_bias) return {};
      return {1, kv_size};
    case TensorRole::kO:
      return {hidden, q_size};
    case TensorRole::kGate:
    case TensorRole::kUp:
      return {intermediate, hidden};
    case TensorRole::kDown:
      return {hidden, intermediate};
  }
  return {};
}

std::string GgufName(TensorRole role, int32_t layer) {
  const absl::string_view name = NamesOf(role).gguf;
  if (!IsPerLayer(role)) return std::string(name);
  return absl::StrCat("blk.", layer, ".", name);
}

std::string HuggingFaceName(TensorRole role, int32_t layer) {
  const absl::string_view name = NamesOf(role).hugging_face;
  if (!IsPerLayer(role)) return std::string(name);
  return absl::StrCat("model.layers.", layer, ".", name);
}

absl::StatusOr<WeightTable> WeightTable::Build(const ModelConfig& config,
                                               NameFunction name,
                                               const FindFunction& find) {
  WeightTable table;
  table.num_layers_ = config.num_layers;
  table.head_dim_ = config.head_dim;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    // Grown layer by layer: a config that claims layers which the file lacks
    // costs nothing.
    table.weights_.resize(table.weights_.size() + kNumTensorRoles);
    for (int r = 0; r < kNumTensorRoles; ++r) {
      const TensorRole role = static_cast<TensorRole>(r);
      const ModelFiles::Shape expected = ExpectedShape(config, role);
      if (expected.rows == 0 || (layer > 0 && !IsPerLayer(role))) continue;
      std::string tensor_name = name(role, layer);
      const std::optional<Weight> weight = find(tensor_name);
      if (!weight.has_value()) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor '", tensor_name, "' is missing"));
      }
      if (weight->is_matrix == IsVector(role) ||
          weight->rows != expected.rows ||
          weight->columns != expected.columns) {
        const auto text = [](bool is_matrix, int64_t rows, int64_t columns) {
          return is_matrix ? absl::StrCat("[", rows, ", ", columns, "]")
                           : absl::StrCat("[", columns, "]");
        };
        return absl::InvalidArgumentError(absl::StrCat(
            "tensor '", tensor_name, "' has shape ",
            text(weight->is_matrix, weight->rows, weight->columns),
            ", the config implies ",
            text(!IsVector(role), expected.rows, expected.columns)));
      }
      table.weights_[layer * kNumTensorRoles + r] = *weight;
      table.names_.insert(std::move(tensor_name));
    }
  }
  return table;
}

absl::StatusOr<const Weight*> WeightTable::Find(TensorRole role,
                                                int32_t layer) const {
  const int r = static_cast<int>(role);
  if (r >= kNumTensorRoles) {
    return absl::NotFoundError(absl::StrCat("no tensor role ", r));
  }
  if (!IsPerLayer(role)) layer = 0;
  if (layer < 0 || layer >= num_layers_) {
    return absl::NotFoundError(absl::StrCat(Name(role), " of layer ", layer,
                                            ": the model has layers 0 to ",
                                            num_layers_ - 1));
  }
  const Weight& weight = weights_[layer * kNumTensorRoles + r];
  if (weight.rows == 0) {
    return absl::NotFoundError(absl::StrCat("the model has no ", Name(role)));
  }
  return &weight;
}

absl::StatusOr<ModelFiles::Shape> WeightTable::TensorShape(
    TensorRole role, int32_t layer) const {
  OVERTURE_ASSIGN_OR_RETURN(const Weight* weight, Find(role, layer));
  return ModelFiles::Shape{weight->rows, weight->columns};
}

absl::Status WeightTable::ReadTensor(TensorRole role, int32_t layer,
                                     absl::Span<float> dst) const {
  OVERTURE_ASSIGN_OR_RETURN(const Weight* weight, Find(role, layer));
  const int64_t size = static_cast<int64_t>(dst.size());
  if (size != weight->rows * weight->columns) {
    return absl::InvalidArgumentError(
        absl::StrCat(Name(role), " has ", weight->rows * weight->columns,
                     " elements, the destination ", size));
  }
  return ReadRows(role, layer, 0, dst);
}

template <typename T>
absl::Status WeightTable::ReadRows(TensorRole role, int32_t layer,
                                   int64_t row_begin, absl::Span<T> dst) const {
  OVERTURE_ASSIGN_OR_RETURN(const Weight* weight, Find(role, layer));
  const int64_t columns = weight->columns;
  const int64_t num_rows = static_cast<int64_t>(dst.size()) / columns;
  if (num_rows * columns != static_cast<int64_t>(dst.size())) {
    return absl::InvalidArgumentError(absl::StrCat(
        Name(role), " has rows of ", columns, " elements, the destination has ",
        dst.size(), ", which is no whole number of them"));
  }
  if (row_begin < 0 || row_begin > weight->rows ||
      num_rows > weight->rows - row_begin) {
    return absl::OutOfRangeError(absl::StrCat(Name(role), " has ", weight->rows,
                                              " rows, asked for ", num_rows,
                                              " from row ", row_begin));
  }
  // Rows are whole blocks, so each has the same number of bytes.
  const int64_t row_bytes =
      static_cast<int64_t>(weight->data.size()) / weight->rows;
  if (!weight->interleaved) {
    return Dequantize(
        weight->type,
        weight->data.substr(row_begin * row_bytes, num_rows * row_bytes), dst);
  }
  if (!weight->is_matrix) {
    std::vector<T> stored(dst.size());
    OVERTURE_RETURN_IF_ERROR(
        Dequantize(weight->type, weight->data, absl::MakeSpan(stored)));
    for (int64_t i = 0; i < columns; ++i) {
      dst[i] = stored[InterleavedRow(i, head_dim_)];
    }
    return absl::OkStatus();
  }
  for (int64_t i = 0; i < num_rows; ++i) {
    const int64_t row = InterleavedRow(row_begin + i, head_dim_);
    OVERTURE_RETURN_IF_ERROR(Dequantize(
        weight->type, weight->data.substr(row * row_bytes, row_bytes),
        dst.subspan(i * columns, columns)));
  }
  return absl::OkStatus();
}

template absl::Status WeightTable::ReadRows(TensorRole, int32_t, int64_t,
                                            absl::Span<float>) const;
template absl::Status WeightTable::ReadRows(TensorRole, int32_t, int64_t,
                                            absl::Span<BFloat16>) const;

}  // namespace overture::engine
