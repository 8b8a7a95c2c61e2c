#include "engine/minference_config.h"

#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/json.h"
#include "engine/mapped_file.h"
#include "kernels/selectors/vertical_slash.h"
#include "nlohmann/json.hpp"

namespace overture::engine {
namespace {

// Keys of a block_sparse head's blocks, and those that we force.
constexpr int32_t kBlockSparseKeys = 100 * 64;
constexpr int32_t kBlockSparseInitial = 64;

absl::StatusOr<int32_t> ParseSize(const nlohmann::json& value,
                                  absl::string_view name, int32_t least) {
  constexpr int64_t kMax = std::numeric_limits<int32_t>::max();
  // Above int64_t an integer is kept unsigned; either way it is too large.
  const bool fits = value.is_number_integer() &&
                    !(value.is_number_unsigned() &&
                      value.get<uint64_t>() > static_cast<uint64_t>(kMax));
  if (!fits || value.get<int64_t>() < least || value.get<int64_t>() > kMax) {
    const std::string shown =
        value.is_number() ? value.dump() : std::string(value.type_name());
    return absl::InvalidArgumentError(absl::StrCat(
        name, " is ", shown, ", must be an integer ", least, " .. ", kMax));
  }
  return static_cast<int32_t>(value.get<int64_t>());
}

absl::StatusOr<kernels::VerticalSlashSize> ParsePattern(
    const nlohmann::json& entry) {
  if (!entry.is_array() || entry.size() != 4 || !entry[0].is_string() ||
      !entry[3].is_number()) {
    return absl::InvalidArgumentError(
        "entry is not [pattern, int, int, score]");
  }
  const std::string& name = entry[0].get_ref<const std::string&>();
  if (name == "vertical_and_slash") {
    kernels::VerticalSlashSize size;
    OVERTURE_ASSIGN_OR_RETURN(size.vertical,
                              ParseSize(entry[1], "vertical size", 0));
    OVERTURE_ASSIGN_OR_RETURN(size.slash, ParseSize(entry[2], "slash size", 0));
    return size;
  }
  if (name == "stream_llm") {
    OVERTURE_ASSIGN_OR_RETURN(const int32_t num_initial,
                              ParseSize(entry[1], "initial tokens", 0));
    OVERTURE_ASSIGN_OR_RETURN(const int32_t num_local,
                              ParseSize(entry[2], "local tokens", 1));
    return kernels::StaticSize(num_initial, num_local);
  }
  if (name == "block_sparse") {
    OVERTURE_RETURN_IF_ERROR(ParseSize(entry[1], "first size", 0).status());
    OVERTURE_RETURN_IF_ERROR(ParseSize(entry[2], "second size", 0).status());
    kernels::VerticalSlashSize size =
        kernels::StaticSize(kBlockSparseInitial, 1);
    size.blocks.count = kBlockSparseKeys / kernels::kMeanBlockKeys;
    return size;
  }
  return absl::InvalidArgumentError(
      "pattern is unknown, accepted are vertical_and_slash, stream_llm and "
      "block_sparse");
}

absl::StatusOr<std::vector<kernels::VerticalSlashSize>> ParseLayer(
    const nlohmann::json& layer, int32_t num_q_heads) {
  if (!layer.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("is ", layer.type_name(), ", expected an object"));
  }
  std::vector<kernels::VerticalSlashSize> heads(num_q_heads);
  for (const auto& [key, entry] : layer.items()) {
    int32_t head = 0;
    // Canonical numbers only, or "1" and "01" would name one head twice.
    if (!absl::SimpleAtoi(key, &head) || absl::StrCat(head) != key ||
        head < 0 || head >= num_q_heads) {
      return absl::InvalidArgumentError(
          absl::StrCat("head '", key.substr(0, 20),
                       "' is not a number below num_q_heads = ", num_q_heads));
    }
    absl::StatusOr<kernels::VerticalSlashSize> size = ParsePattern(entry);
    if (!size.ok()) {
      return WithContext(size.status(), absl::StrCat("head ", head));
    }
    heads[head] = *size;
  }
  return heads;
}

}  // namespace

absl::StatusOr<HeadSizes> ParseMInferenceConfig(absl::string_view text,
                                                absl::string_view what,
                                                int32_t num_layers,
                                                int32_t num_q_heads) {
  OVERTURE_ASSIGN_OR_RETURN(const nlohmann::json root,
                            ParseJson(text, what, DuplicateMembers::kRefused));
  if (!root.is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": is ", root.type_name(), ", expected a list of layers"));
  }
  if (root.size() != static_cast<size_t>(num_layers)) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": has ", root.size(),
                     " layers, the model has num_layers = ", num_layers));
  }
  HeadSizes::Table table;
  table.reserve(num_layers);
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    absl::StatusOr<std::vector<kernels::VerticalSlashSize>> heads =
        ParseLayer(root[layer], num_q_heads);
    if (!heads.ok()) {
      return WithContext(heads.status(), absl::StrCat(what, ": layer ", layer));
    }
    table.push_back(*std::move(heads));
  }
  return HeadSizes::Create(std::move(table));
}

absl::StatusOr<std::string> MInferenceConfigJson(
    const HeadSizes& sizes, const std::vector<std::vector<double>>& scores) {
  nlohmann::json root = nlohmann::json::array();
  for (int32_t layer = 0; layer < sizes.num_layers(); ++layer) {
    nlohmann::json heads = nlohmann::json::object();
    for (int32_t head = 0; head < sizes.num_q_heads(); ++head) {
      const kernels::VerticalSlashSize& size = sizes.layer(layer)[head];
      const kernels::VerticalSlashSize plain = {.vertical = size.vertical,
                                                .slash = size.slash};
      const bool is_plain = size == plain;
      // Read as its A-shape, which is what keeps the same.
      if (!is_plain && size != kernels::StaticSize(size.vertical, size.slash)) {
        return absl::InvalidArgumentError(absl::StrCat(
            "layer ", layer, ": head ", head,
            ": a MInference file has no blocks, mass or forced counts"));
      }
      heads[absl::StrCat(head)] = {
          is_plain ? "vertical_and_slash" : "stream_llm", size.vertical,
          size.slash, scores[layer][head]};
    }
    root.push_back(std::move(heads));
  }
  return root.dump();
}

absl::StatusOr<HeadSizes> LoadMInferenceConfig(const std::string& path,
                                               int32_t num_layers,
                                               int32_t num_q_heads) {
  OVERTURE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
  return ParseMInferenceConfig(file.bytes(), path, num_layers, num_q_heads);
}

}  // namespace overture::engine
