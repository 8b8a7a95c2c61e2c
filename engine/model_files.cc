#include "engine/model_files.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/gguf.h"
#include "engine/gguf_config.h"
#include "engine/hf_config.h"
#include "engine/json.h"
#include "engine/mapped_file.h"
#include "engine/safetensors.h"
#include "engine/weight_table.h"
#include "nlohmann/json.hpp"

namespace overture::engine {
namespace {

namespace fs = std::filesystem;

class MappedModel : public ModelFiles {
 public:
  MappedModel(std::vector<MappedFile> files, ModelConfig config,
              WeightTable weights, Sha256Digest digest)
      : files_(std::move(files)),
        config_(std::move(config)),
        weights_(std::move(weights)),
        digest_(digest) {}

  const ModelConfig& config() const override { return config_; }
  const Sha256Digest& weights_digest() const override { return digest_; }
  absl::Status ReadTensor(TensorRole role, int32_t layer,
                          absl::Span<float> dst) const override {
    return weights_.ReadTensor(role, layer, dst);
  }
  absl::Status ReadRows(TensorRole role, int32_t layer, int64_t row_begin,
                        absl::Span<float> dst) const override {
    return weights_.ReadRows(role, layer, row_begin, dst);
  }
  absl::Status ReadRowsBf16(TensorRole role, int32_t layer, int64_t row_begin,
                            absl::Span<BFloat16> dst) const override {
    return weights_.ReadRows(role, layer, row_begin, dst);
  }
  absl::StatusOr<Shape> TensorShape(TensorRole role,
                                    int32_t layer) const override {
    return weights_.TensorShape(role, layer);
  }

 private:
  std::vector<MappedFile> files_;  // what weights_ borrows
  ModelConfig config_;
  WeightTable weights_;
  Sha256Digest digest_;
};

// One digest per file, that of the digests of its pieces. Pieces in parallel:
// one core does about 1.5 GB/s with SHA instructions, 0.4 GB/s without.
std::vector<Sha256Digest> DigestFiles(absl::Span<const MappedFile> files) {
  constexpr size_t kPieceBytes = size_t{64} << 20;
  std::vector<absl::string_view> pieces;
  for (const MappedFile& file : files) {
    for (size_t i = 0; i < file.bytes().size(); i += kPieceBytes) {
      pieces.push_back(file.bytes().substr(i, kPieceBytes));
    }
  }
  std::vector<Sha256Digest> digests(pieces.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < pieces.size(); i = next++) {
      Sha256 sha;
      sha.Update(pieces[i]);
      digests[i] = sha.Digest();
    }
  };
  const size_t num_threads = std::min<size_t>(
      pieces.size(), std::max(1u, std::thread::hardware_concurrency()));
  std::vector<std::thread> threads;
  for (size_t t = 1; t < num_threads; ++t) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();

  std::vector<Sha256Digest> of_files;
  auto digest = digests.begin();
  for (const MappedFile& file : files) {
    Sha256 sha;
    for (size_t i = 0; i < file.bytes().size(); i += kPieceBytes) {
      sha.Update((digest++)->AsStringView());
    }
    of_files.push_back(sha.Digest());
  }
  return of_files;
}

// A GGUF file says everything itself; beside safetensors, config.json decides
// how the same bytes are used.
Sha256Digest CheckpointDigest(const ModelConfig& config,
                              absl::Span<const Sha256Digest> files) {
  Sha256 sha;
  sha.Update("overture.checkpoint.v2");
  sha.UpdateU32(static_cast<uint32_t>(config.architecture.size()));
  sha.Update(config.architecture);
  for (const int64_t value :
       {config.vocab_size, config.hidden_size, config.intermediate_size,
        int64_t{config.num_layers}, int64_t{config.num_q_heads},
        int64_t{config.num_kv_heads}, int64_t{config.head_dim},
        int64_t{config.tied_embeddings}, int64_t{config.qkv_bias},
        static_cast<int64_t>(config.rope_scaling.kind),
        config.rope_scaling.original_max_positions}) {
    sha.UpdateU64(static_cast<uint64_t>(value));
  }
  for (const double value :
       {config.rms_norm_eps, config.rope_theta, config.rope_scaling.factor,
        config.rope_scaling.low_freq_factor,
        config.rope_scaling.high_freq_factor}) {
    sha.UpdateU64(std::bit_cast<uint64_t>(value));
  }
  sha.UpdateU64(files.size());
  for (const Sha256Digest& digest : files) sha.Update(digest.AsStringView());
  return sha.Digest();
}

absl::Status UnknownTensor(absl::string_view name,
                           absl::string_view architecture) {
  return absl::UnimplementedError(
      absl::StrCat("tensor '", absl::CHexEscape(name.substr(0, 80)),
                   "' has no place in architecture ", architecture,
                   ": ignoring it could change the output"));
}

absl::StatusOr<std::unique_ptr<ModelFiles>> LoadGguf(const std::string& path) {
  std::vector<MappedFile> files(1);
  OVERTURE_ASSIGN_OR_RETURN(files[0], MappedFile::Open(path));
  OVERTURE_ASSIGN_OR_RETURN(const Gguf gguf, Gguf::Parse(files[0].bytes()));
  OVERTURE_ASSIGN_OR_RETURN(ModelConfig config, ReadGgufConfig(gguf));

  // llama.cpp's converter interleaves the rotated halves for llama only.
  const bool interleaves = config.architecture == "llama";
  const auto find = [&](const std::string& name) -> std::optional<Weight> {
    const Gguf::Tensor* tensor = gguf.FindTensor(name);
    if (tensor == nullptr || tensor->num_dims > 2) return std::nullopt;
    const bool is_q_or_k = absl::StrContains(name, ".attn_q.") ||
                           absl::StrContains(name, ".attn_k.");
    return Weight{.type = tensor->type,
                  .is_matrix = tensor->num_dims == 2,
                  .rows = tensor->dims[1],
                  .columns = tensor->dims[0],
                  .data = tensor->data,
                  .interleaved = interleaves && is_q_or_k};
  };
  OVERTURE_ASSIGN_OR_RETURN(WeightTable weights,
                            WeightTable::Build(config, GgufName, find));
  for (const Gguf::Tensor& tensor : gguf.tensors()) {
    // ReadGgufConfig() turned the RoPE divisors into the config's scaling.
    if (tensor.name == "rope_freqs.weight") continue;
    if (!weights.names().contains(std::string(tensor.name))) {
      return UnknownTensor(tensor.name, config.architecture);
    }
  }
  const Sha256Digest digest = DigestFiles(files)[0];
  return std::make_unique<MappedModel>(std::move(files), std::move(config),
                                       std::move(weights), digest);
}

// The weight files of a folder in name order, and which of them holds a tensor
// where an index says so.
absl::StatusOr<SafetensorsIndex> ListShards(const fs::path& folder) {
  std::error_code error;
  const fs::path index_path = folder / "model.safetensors.index.json";
  if (fs::exists(index_path, error)) {
    OVERTURE_ASSIGN_OR_RETURN(const MappedFile file,
                              MappedFile::Open(index_path.string()));
    absl::StatusOr<SafetensorsIndex> index =
        ParseSafetensorsIndex(file.bytes());
    if (!index.ok()) return WithContext(index.status(), file.path());
    return index;
  }
  SafetensorsIndex index;
  if (fs::exists(folder / "model.safetensors", error)) {
    index.files.push_back("model.safetensors");
    return index;
  }
  for (fs::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (absl::StartsWith(name, "model-") &&
        absl::EndsWith(name, ".safetensors")) {
      index.files.push_back(name);
    }
  }
  std::sort(index.files.begin(), index.files.end());
  if (index.files.empty()) {
    return absl::NotFoundError(
        absl::StrCat(folder.string(),
                     " has neither model.safetensors.index.json, nor "
                     "model.safetensors, nor model-*.safetensors"));
  }
  return index;
}

// Every tensor of a checkpoint by name.
using TensorMap = absl::flat_hash_map<std::string, const Safetensors::Tensor*>;

absl::StatusOr<TensorMap> MergeShards(const SafetensorsIndex& index,
                                      absl::Span<const Safetensors> shards) {
  TensorMap tensors;
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const Safetensors::Tensor& tensor : shards[i].tensors()) {
      const auto it = index.file_of_tensor.find(tensor.name);
      const bool listed = it != index.file_of_tensor.end();
      if (listed ? it->second != index.files[i]
                 : !index.file_of_tensor.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor '", absl::CHexEscape(tensor.name), "' is in ",
                         index.files[i], ", the index ",
                         listed ? absl::StrCat("places it in ", it->second)
                                : std::string("does not name it")));
      }
      if (!tensors.emplace(tensor.name, &tensor).second) {
        return absl::InvalidArgumentError(
            absl::StrCat("tensor '", absl::CHexEscape(tensor.name), "' is in ",
                         index.files[i], " and in a file before it"));
      }
    }
  }
  return tensors;
}

absl::Status ReadGenerationConfig(const fs::path& folder, ModelConfig* config) {
  const absl::StatusOr<MappedFile> file =
      MappedFile::Open((folder / "generation_config.json").string());
  if (absl::IsNotFound(file.status())) return absl::OkStatus();
  OVERTURE_RETURN_IF_ERROR(file.status());
  constexpr size_t kMaxBytes = size_t{1} << 20;
  if (file->bytes().size() > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(file->path(), " has ", file->bytes().size(),
                     " bytes, the limit is ", kMaxBytes));
  }
  OVERTURE_ASSIGN_OR_RETURN(const nlohmann::json root,
                            ParseJson(file->bytes(), file->path()));
  OVERTURE_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                            ParseHfEosIds(root));
  for (const int32_t id : ids) {
    auto& all = config->eos_token_ids;
    if (std::find(all.begin(), all.end(), id) == all.end()) all.push_back(id);
  }
  return Validate(*config);
}

// Tensors that a checkpoint may carry without meaning: the copy of a tied head,
// and RoPE's inverse frequencies, which old exports stored.
bool IsRedundant(absl::string_view name, const ModelConfig& config) {
  return (config.tied_embeddings && name == "lm_head.weight") ||
         absl::EndsWith(name, ".self_attn.rotary_emb.inv_freq");
}

absl::StatusOr<std::unique_ptr<ModelFiles>> LoadHuggingFace(
    const fs::path& folder) {
  OVERTURE_ASSIGN_OR_RETURN(
      const MappedFile config_file,
      MappedFile::Open((folder / "config.json").string()));
  OVERTURE_ASSIGN_OR_RETURN(ModelConfig config,
                            ParseHfConfig(config_file.bytes()));
  OVERTURE_RETURN_IF_ERROR(ReadGenerationConfig(folder, &config));
  if (config.name.empty()) config.name = folder.filename().string();

  OVERTURE_ASSIGN_OR_RETURN(const SafetensorsIndex index, ListShards(folder));
  std::vector<MappedFile> files;
  std::vector<Safetensors> shards;
  for (const std::string& name : index.files) {
    OVERTURE_ASSIGN_OR_RETURN(MappedFile file,
                              MappedFile::Open((folder / name).string()));
    absl::StatusOr<Safetensors> shard = Safetensors::Parse(file.bytes());
    if (!shard.ok()) return WithContext(shard.status(), name);
    files.push_back(std::move(file));
    shards.push_back(*std::move(shard));
  }
  OVERTURE_ASSIGN_OR_RETURN(const TensorMap tensors,
                            MergeShards(index, shards));
  const auto find = [&](const std::string& name) -> std::optional<Weight> {
    const auto it = tensors.find(name);
    if (it == tensors.end()) return std::nullopt;
    const std::vector<int64_t>& shape = it->second->shape;
    if (shape.empty() || shape.size() > 2) return std::nullopt;
    const bool is_matrix = shape.size() == 2;
    return Weight{.type = it->second->type,
                  .is_matrix = is_matrix,
                  .rows = is_matrix ? shape[0] : 1,
                  .columns = shape.back(),
                  .data = it->second->data};
  };
  OVERTURE_ASSIGN_OR_RETURN(WeightTable weights,
                            WeightTable::Build(config, HuggingFaceName, find));
  for (const auto& [name, tensor] : tensors) {
    if (!weights.names().contains(name) && !IsRedundant(name, config)) {
      return UnknownTensor(name, config.architecture);
    }
  }
  const Sha256Digest digest = CheckpointDigest(config, DigestFiles(files));
  return std::make_unique<MappedModel>(std::move(files), std::move(config),
                                       std::move(weights), digest);
}

}  // namespace

absl::Status ModelFiles::ReadRowsBf16(TensorRole role, int32_t layer,
                                      int64_t row_begin,
                                      absl::Span<BFloat16> dst) const {
  std::vector<float> values(dst.size());
  OVERTURE_RETURN_IF_ERROR(
      ReadRows(role, layer, row_begin, absl::MakeSpan(values)));
  std::transform(values.begin(), values.end(), dst.begin(),
                 [](float value) { return BFloat16(value); });
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ModelFiles>> LoadModelFiles(
    absl::string_view path) {
  // An absolute path without "." gives the folder a name.
  const fs::path given{std::string(path)};
  std::error_code error;
  const fs::path resolved = fs::canonical(given, error);
  if (error) {
    return absl::NotFoundError(
        absl::StrCat("no model at ", path, ": ", error.message()));
  }
  absl::StatusOr<std::unique_ptr<ModelFiles>> model =
      fs::is_directory(resolved, error) ? LoadHuggingFace(resolved)
                                        : LoadGguf(resolved.string());
  if (!model.ok()) return WithContext(model.status(), path);
  return model;
}

}  // namespace overture::engine
