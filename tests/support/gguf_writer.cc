#include "tests/support/gguf_writer.h"

#include "absl/strings/str_cat.h"

namespace overture::testing {

std::string RawGgufString(absl::string_view text) {
  return absl::StrCat(Raw(uint64_t{text.size()}), text);
}

void GgufWriter::AddRaw(absl::string_view key, ValueType type,
                        absl::string_view bytes) {
  absl::StrAppend(&entries_, RawGgufString(key), Raw(type), bytes);
  ++num_entries_;
}

void GgufWriter::AddStrings(absl::string_view key,
                            const std::vector<std::string>& values) {
  std::string bytes =
      absl::StrCat(Raw(ValueType::kString), Raw(uint64_t{values.size()}));
  for (const std::string& value : values) bytes += RawGgufString(value);
  AddRaw(key, ValueType::kArray, bytes);
}

void GgufWriter::AddInt32s(absl::string_view key,
                           const std::vector<int32_t>& values) {
  std::string bytes =
      absl::StrCat(Raw(ValueType::kInt32), Raw(uint64_t{values.size()}));
  for (const int32_t value : values) bytes += Raw(value);
  AddRaw(key, ValueType::kArray, bytes);
}

void GgufWriter::AddTensor(absl::string_view name, engine::TensorType type,
                           const std::vector<uint64_t>& dims,
                           absl::string_view data) {
  data_.resize((data_.size() + alignment - 1) / alignment * alignment, '\0');
  AddTensorEntry(name, static_cast<uint32_t>(type), dims, data_.size());
  data_.append(data.data(), data.size());
}

void GgufWriter::AddTensorEntry(absl::string_view name, uint32_t type,
                                const std::vector<uint64_t>& dims,
                                uint64_t offset) {
  absl::StrAppend(&table_, RawGgufString(name),
                  Raw(static_cast<uint32_t>(dims.size())));
  for (const uint64_t dim : dims) table_ += Raw(dim);
  absl::StrAppend(&table_, Raw(type), Raw(offset));
  ++num_tensors_;
}

std::string GgufWriter::Finish() const {
  std::string file =
      absl::StrCat("GGUF", Raw(version), Raw(num_tensors_ + extra_tensors),
                   Raw(num_entries_ + extra_entries), entries_, table_);
  if (num_tensors_ > 0) {
    file.resize((file.size() + alignment - 1) / alignment * alignment, '\0');
  }
  return file + data_;
}

}  // namespace overture::testing
