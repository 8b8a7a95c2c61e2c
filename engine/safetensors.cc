#include "engine/safetensors.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/json.h"
#include "nlohmann/json.hpp"

namespace overture::engine {
namespace {

// The format's own limit.
constexpr uint64_t kMaxHeaderBytes = 100'000'000;

// A weight map has about 100 bytes per tensor; 16 MiB are 160,000 tensors.
constexpr size_t kMaxIndexBytes = size_t{16} << 20;

std::string Quote(absl::string_view name) {
  constexpr size_t kMaxShown = 80;
  return absl::StrCat("'", absl::CHexEscape(name.substr(0, kMaxShown)),
                      name.size() > kMaxShown ? "...'" : "'");
}

struct Entry {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  std::vector<uint64_t> offsets;
  bool has_shape = false;
};

// Collects {"name": {"dtype": "F32", "shape": [..], "data_offsets": [b, e]},
// ..., "__metadata__": {"key": "text", ...}} and stops at anything else. The
// deepest value is at level 3, so no nesting is ever followed further.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  std::vector<Entry> entries;
  std::string error;

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t) override {
    return Unexpected("a negative number");
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (list_ == nullptr) return Unexpected("a number");
    // 8 dimensions are plenty; data_offsets has two.
    if (list_->size() == 8) return Unexpected("a list of more than 8 numbers");
    list_->push_back(value);
    return true;
  }
  bool number_float(number_float_t, const string_t&) override {
    return Unexpected("a fraction");
  }
  bool string(string_t& value) override {
    if (level_ == 2 && in_metadata_) return true;
    if (level_ != 2 || list_ != nullptr || key_ != "dtype") {
      return Unexpected("a string");
    }
    entries.back().dtype = value;
    return true;
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }
  bool start_object(size_t) override {
    if (level_ > 1 || list_ != nullptr) return Unexpected("an object");
    if (++level_ == 2 && !in_metadata_) {
      entries.emplace_back();
      entries.back().name = key_;
    }
    return true;
  }
  bool key(string_t& value) override {
    if (level_ == 1) in_metadata_ = value == "__metadata__";
    key_ = value;
    return true;
  }
  bool end_object() override {
    --level_;
    return true;
  }
  bool start_array(size_t) override {
    if (level_ != 2 || in_metadata_ || list_ != nullptr) {
      return Unexpected("a list");
    }
    if (key_ == "shape") {
      list_ = &entries.back().shape;
      entries.back().has_shape = true;
    } else if (key_ == "data_offsets") {
      list_ = &entries.back().offsets;
    } else {
      return Unexpected("a list");
    }
    list_->clear();
    return true;
  }
  bool end_array() override {
    list_ = nullptr;
    return true;
  }
  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& exception) override {
    error = absl::StrCat("header is not JSON at byte ", position, ": ",
                         exception.what());
    return false;
  }

 private:
  bool Unexpected(absl::string_view what) {
    const std::string where =
        level_ == 2 && !in_metadata_
            ? absl::StrCat("tensor ", Quote(entries.back().name), ", ")
            : std::string();
    error =
        absl::StrCat("header has ", what, " at ", where, "key ", Quote(key_));
    return false;
  }

  int level_ = 0;
  bool in_metadata_ = false;
  std::string key_;
  std::vector<uint64_t>* list_ = nullptr;
};

std::optional<TensorType> ParseType(absl::string_view dtype) {
  if (dtype == "F32") return TensorType::kF32;
  if (dtype == "F16") return TensorType::kF16;
  if (dtype == "BF16") return TensorType::kBF16;
  return std::nullopt;
}

// Checks one entry against the bytes behind the header.
absl::StatusOr<Safetensors::Tensor> MakeTensor(Entry entry,
                                               absl::string_view data) {
  const std::string context = absl::StrCat("tensor ", Quote(entry.name));
  const std::optional<TensorType> type = ParseType(entry.dtype);
  if (!type.has_value()) {
    return absl::UnimplementedError(absl::StrCat(context, " has dtype ",
                                                 Quote(entry.dtype),
                                                 "; supported: F32, F16, "
                                                 "BF16"));
  }
  if (!entry.has_shape || entry.offsets.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(context, " needs a shape and two data_offsets"));
  }
  Safetensors::Tensor tensor{.name = std::move(entry.name), .type = *type};
  constexpr uint64_t kMaxElements = uint64_t{1} << 48;
  uint64_t num_elements = 1;
  for (const uint64_t dim : entry.shape) {
    if (dim > kMaxElements || (dim != 0 && num_elements > kMaxElements / dim)) {
      return absl::InvalidArgumentError(
          absl::StrCat(context, " has dimension ", dim, ", expected at most ",
                       kMaxElements, " elements in all"));
    }
    num_elements *= dim;
    tensor.shape.push_back(static_cast<int64_t>(dim));
  }
  const uint64_t begin = entry.offsets[0];
  const uint64_t end = entry.offsets[1];
  if (begin > end || end > data.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(context, " has data_offsets [", begin, ", ", end,
                     "], the file has ", data.size(), " bytes of data"));
  }
  const uint64_t size = num_elements * BlockShapeOf(*type).num_bytes;
  if (end - begin != size) {
    return absl::InvalidArgumentError(absl::StrCat(
        context, " has ", end - begin, " bytes, its shape needs ", size));
  }
  tensor.data = data.substr(begin, size);
  return tensor;
}

}  // namespace

absl::StatusOr<Safetensors> Safetensors::Parse(absl::string_view bytes) {
  if (bytes.size() < 8) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the file has ", bytes.size(), " bytes, the header size takes 8"));
  }
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  const uint64_t limit = std::min<uint64_t>(kMaxHeaderBytes, bytes.size() - 8);
  if (header_size > limit) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the header claims ", header_size, " bytes, the limit is ", limit));
  }
  const absl::string_view header = bytes.substr(8, header_size);
  const absl::string_view data = bytes.substr(8 + header_size);

  HeaderReader reader;
  bool parsed = false;
  try {
    parsed = nlohmann::json::sax_parse(header.begin(), header.end(), &reader);
  } catch (const nlohmann::json::exception& exception) {
    reader.error = exception.what();
  }
  if (!parsed) return absl::InvalidArgumentError(reader.error);

  Safetensors file;
  file.tensors_.reserve(reader.entries.size());
  for (Entry& entry : reader.entries) {
    OVERTURE_ASSIGN_OR_RETURN(Tensor tensor,
                              MakeTensor(std::move(entry), data));
    file.tensors_.push_back(std::move(tensor));
  }
  // Empty tensors stand before the one that starts at the same byte.
  std::sort(file.tensors_.begin(), file.tensors_.end(),
            [](const Tensor& a, const Tensor& b) {
              return std::pair(a.data.data(), a.data.size()) <
                     std::pair(b.data.data(), b.data.size());
            });
  const char* expected = data.data();
  for (size_t i = 0; i < file.tensors_.size(); ++i) {
    const Tensor& tensor = file.tensors_[i];
    if (tensor.data.data() != expected) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Quote(tensor.name), " starts at data byte ",
          tensor.data.data() - data.data(), ", but the one before it ends at ",
          expected - data.data()));
    }
    expected += tensor.data.size();
    if (!file.index_.emplace(tensor.name, i).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quote(tensor.name), " appears twice"));
    }
  }
  if (expected != data.data() + data.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensors end at data byte ", expected - data.data(),
                     ", the file has ", data.size()));
  }
  return file;
}

const Safetensors::Tensor* Safetensors::FindTensor(
    absl::string_view name) const {
  const auto it = index_.find(name);
  return it == index_.end() ? nullptr : &tensors_[it->second];
}

absl::StatusOr<SafetensorsIndex> ParseSafetensorsIndex(absl::string_view text) {
  if (text.size() > kMaxIndexBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the index has ", text.size(), " bytes, the limit is ",
                     kMaxIndexBytes));
  }
  OVERTURE_ASSIGN_OR_RETURN(const nlohmann::json root,
                            ParseJson(text, "safetensors index"));
  const absl::StatusOr<const nlohmann::json*> member =
      GetJsonMember(root, "weight_map");
  // A missing key is the file's fault, not a missing file.
  if (!member.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("safetensors index: ", member.status().message()));
  }
  const nlohmann::json* map = *member;
  if (!map->is_object() || map->empty()) {
    return absl::InvalidArgumentError(
        "'weight_map' must be an object with at least one tensor");
  }
  SafetensorsIndex index;
  for (const auto& [tensor, file] : map->items()) {
    const std::string* name = file.get_ptr<const std::string*>();
    if (name == nullptr || !absl::EndsWith(*name, ".safetensors") ||
        name->find_first_of("/\\\0", 0, 3) != std::string::npos) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'weight_map' places ", Quote(tensor), " in ",
          name == nullptr ? file.type_name() : Quote(*name),
          ", expected the name of a .safetensors file in the same folder"));
    }
    index.file_of_tensor.emplace(tensor, *name);
    index.files.push_back(*name);
  }
  std::sort(index.files.begin(), index.files.end());
  index.files.erase(std::unique(index.files.begin(), index.files.end()),
                    index.files.end());
  return index;
}

}  // namespace overture::engine
