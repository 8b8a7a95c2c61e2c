#include "engine/calibration_file.h"

#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/json.h"
#include "engine/mapped_file.h"
#include "engine/minference_config.h"
#include "nlohmann/json.hpp"

namespace overture::engine {
namespace {

using kernels::VerticalSlashSize;

constexpr char kFormat[] = "overture calibration 1";

nlohmann::json HeadJson(const VerticalSlashSize& size,
                        const CandidateScore& score) {
  nlohmann::json json = {{"vertical", size.vertical},
                         {"slash", size.slash},
                         {"forced_columns", size.forced_columns},
                         {"forced_distances", size.forced_distances},
                         {"density", score.density},
                         {"recall", score.recall},
                         {"error", score.error}};
  if (size.mass > 0) json["mass"] = size.mass;
  if (size.blocks.threshold > 0) {
    json["block_threshold"] = size.blocks.threshold;
  }
  if (size.blocks.count > 0) json["block_count"] = size.blocks.count;
  if (size.blocks.correct_means) json["correct_means"] = true;
  return json;
}

absl::StatusOr<int32_t> GetInt32(const nlohmann::json& object,
                                 absl::string_view key) {
  OVERTURE_ASSIGN_OR_RETURN(const int64_t value, GetJsonInt(object, key));
  if (value < 0 || value > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, " is ", value, ", must be in [0, 2^31)"));
  }
  return static_cast<int32_t>(value);
}

absl::Status ReadHead(const nlohmann::json& json, VerticalSlashSize* size,
                      CandidateScore* score) {
  OVERTURE_ASSIGN_OR_RETURN(size->vertical, GetInt32(json, "vertical"));
  OVERTURE_ASSIGN_OR_RETURN(size->slash, GetInt32(json, "slash"));
  OVERTURE_ASSIGN_OR_RETURN(size->forced_columns,
                            GetInt32(json, "forced_columns"));
  OVERTURE_ASSIGN_OR_RETURN(size->forced_distances,
                            GetInt32(json, "forced_distances"));
  OVERTURE_ASSIGN_OR_RETURN(score->density, GetJsonDouble(json, "density"));
  OVERTURE_ASSIGN_OR_RETURN(score->recall, GetJsonDouble(json, "recall"));
  OVERTURE_ASSIGN_OR_RETURN(score->error, GetJsonDouble(json, "error"));
  if (HasJsonMember(json, "mass")) {
    OVERTURE_ASSIGN_OR_RETURN(const double mass, GetJsonDouble(json, "mass"));
    size->mass = static_cast<float>(mass);
  }
  if (HasJsonMember(json, "block_threshold")) {
    OVERTURE_ASSIGN_OR_RETURN(const double threshold,
                              GetJsonDouble(json, "block_threshold"));
    size->blocks.threshold = static_cast<float>(threshold);
  }
  if (HasJsonMember(json, "block_count")) {
    OVERTURE_ASSIGN_OR_RETURN(size->blocks.count,
                              GetInt32(json, "block_count"));
  }
  if (HasJsonMember(json, "correct_means")) {
    OVERTURE_ASSIGN_OR_RETURN(size->blocks.correct_means,
                              GetJsonBool(json, "correct_means"));
  }
  return absl::OkStatus();
}

// An array member of so many entries.
absl::StatusOr<const nlohmann::json*> GetList(const nlohmann::json& object,
                                              absl::string_view key,
                                              size_t size) {
  OVERTURE_ASSIGN_OR_RETURN(const nlohmann::json* list,
                            GetJsonMember(object, key));
  if (!list->is_array() || list->size() != size) {
    return absl::InvalidArgumentError(
        absl::StrCat(key, " is no list of ", size));
  }
  return list;
}

absl::Status ReadHeads(const nlohmann::json& root, int32_t num_layers,
                       int32_t num_q_heads, Calibration* out) {
  OVERTURE_ASSIGN_OR_RETURN(const nlohmann::json* layers,
                            GetList(root, "layers", num_layers));
  HeadSizes::Table table(num_layers);
  out->scores.resize(num_layers);
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    const nlohmann::json& heads = (*layers)[layer];
    if (!heads.is_array() || heads.size() != static_cast<size_t>(num_q_heads)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "layer ", layer, " is no list of ", num_q_heads, " heads"));
    }
    table[layer].resize(num_q_heads);
    out->scores[layer].resize(num_q_heads);
    for (int32_t head = 0; head < num_q_heads; ++head) {
      OVERTURE_RETURN_IF_ERROR(WithContext(
          ReadHead(heads[head], &table[layer][head], &out->scores[layer][head]),
          absl::StrCat("layer ", layer, ": head ", head)));
    }
  }
  OVERTURE_ASSIGN_OR_RETURN(out->sizes, HeadSizes::Create(std::move(table)));
  return absl::OkStatus();
}

absl::StatusOr<Sha256Digest> GetDigest(const nlohmann::json& object,
                                       absl::string_view key) {
  OVERTURE_ASSIGN_OR_RETURN(const std::string hex, GetJsonString(object, key));
  return ParseHexDigest(hex);
}

absl::Status ReadSamples(const nlohmann::json& root, Calibration* out) {
  OVERTURE_ASSIGN_OR_RETURN(const nlohmann::json* samples,
                            GetJsonMember(root, "samples"));
  if (!samples->is_array()) {
    return absl::InvalidArgumentError("samples is no list");
  }
  for (const nlohmann::json& entry : *samples) {
    CalibrationSample sample;
    OVERTURE_ASSIGN_OR_RETURN(sample.name, GetJsonString(entry, "name"));
    OVERTURE_ASSIGN_OR_RETURN(sample.digest, GetDigest(entry, "sha256"));
    OVERTURE_ASSIGN_OR_RETURN(sample.num_tokens, GetJsonInt(entry, "tokens"));
    out->samples.push_back(std::move(sample));
  }
  return absl::OkStatus();
}

absl::StatusOr<Calibration> Read(const nlohmann::json& root,
                                 const Sha256Digest& weights_digest,
                                 int32_t num_layers, int32_t num_q_heads) {
  OVERTURE_ASSIGN_OR_RETURN(const std::string format,
                            GetJsonString(root, "format"));
  if (format != kFormat) {
    return absl::InvalidArgumentError(
        absl::StrCat("format is not '", kFormat, "'"));
  }
  Calibration out;
  OVERTURE_ASSIGN_OR_RETURN(const nlohmann::json* model,
                            GetJsonMember(root, "model"));
  OVERTURE_ASSIGN_OR_RETURN(out.model, GetJsonString(*model, "name"));
  OVERTURE_ASSIGN_OR_RETURN(out.weights_digest,
                            GetDigest(*model, "weights_sha256"));
  if (out.weights_digest != weights_digest) {
    return absl::FailedPreconditionError(absl::StrCat(
        "was made for a model whose weights have SHA-256 ",
        out.weights_digest.Hex(), ", this one's is ", weights_digest.Hex()));
  }
  OVERTURE_RETURN_IF_ERROR(ReadSamples(root, &out));
  OVERTURE_ASSIGN_OR_RETURN(const int32_t seed, GetInt32(root, "seed"));
  out.seed = static_cast<uint32_t>(seed);
  OVERTURE_ASSIGN_OR_RETURN(out.rows, GetInt32(root, "rows"));
  OVERTURE_ASSIGN_OR_RETURN(out.density, GetJsonDouble(root, "density"));
  OVERTURE_ASSIGN_OR_RETURN(out.segment_tokens,
                            GetJsonInt(root, "segment_tokens"));
  OVERTURE_RETURN_IF_ERROR(ReadHeads(root, num_layers, num_q_heads, &out));
  return out;
}

}  // namespace

std::string CalibrationJson(const Calibration& calibration) {
  nlohmann::json samples = nlohmann::json::array();
  for (const CalibrationSample& sample : calibration.samples) {
    samples.push_back({{"name", sample.name},
                       {"sha256", sample.digest.Hex()},
                       {"tokens", sample.num_tokens}});
  }
  nlohmann::json layers = nlohmann::json::array();
  for (int32_t layer = 0; layer < calibration.sizes.num_layers(); ++layer) {
    nlohmann::json heads = nlohmann::json::array();
    for (int32_t head = 0; head < calibration.sizes.num_q_heads(); ++head) {
      heads.push_back(HeadJson(calibration.sizes.layer(layer)[head],
                               calibration.scores[layer][head]));
    }
    layers.push_back(std::move(heads));
  }
  const nlohmann::json root = {
      {"format", kFormat},
      {"model",
       {{"name", calibration.model},
        {"weights_sha256", calibration.weights_digest.Hex()}}},
      {"samples", std::move(samples)},
      {"seed", calibration.seed},
      {"rows", calibration.rows},
      {"density", calibration.density},
      {"segment_tokens", calibration.segment_tokens},
      {"layers", std::move(layers)}};
  return root.dump(1, ' ', /*ensure_ascii=*/false,
                   nlohmann::json::error_handler_t::replace);
}

absl::StatusOr<Calibration> ParseCalibration(absl::string_view text,
                                             absl::string_view what,
                                             const Sha256Digest& weights_digest,
                                             int32_t num_layers,
                                             int32_t num_q_heads) {
  OVERTURE_ASSIGN_OR_RETURN(const nlohmann::json root,
                            ParseJson(text, what, DuplicateMembers::kRefused));
  absl::StatusOr<Calibration> calibration =
      Read(root, weights_digest, num_layers, num_q_heads);
  if (calibration.ok()) return calibration;
  // What lacks a member is no such file, too.
  const absl::Status& status = calibration.status();
  return WithContext(absl::IsNotFound(status)
                         ? absl::InvalidArgumentError(status.message())
                         : status,
                     what);
}

absl::StatusOr<HeadSizes> LoadHeadSizes(const std::string& path,
                                        const ModelFiles& model) {
  OVERTURE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  const ModelConfig& config = model.config();
  const size_t first = file.bytes().find_first_not_of(" \t\r\n");
  if (first == absl::string_view::npos || file.bytes()[first] != '{') {
    return ParseMInferenceConfig(file.bytes(), path, config.num_layers,
                                 config.num_q_heads);
  }
  OVERTURE_ASSIGN_OR_RETURN(
      Calibration calibration,
      ParseCalibration(file.bytes(), path, model.weights_digest(),
                       config.num_layers, config.num_q_heads));
  return std::move(calibration.sizes);
}

}  // namespace overture::engine
