// Builds GGUF files in memory, well formed or, through AddRaw() and the public
// counts, as hostile as a test needs. Source: ggml-org/ggml:docs/gguf.md.
#pragma once

#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "engine/gguf.h"
#include "engine/tensor_type.h"

namespace overture::testing {

// The bytes of a number, little endian.
template <typename T>
std::string Raw(T value) {
  static_assert(std::is_arithmetic_v<T> || std::is_enum_v<T>);
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}

// A string as GGUF stores it: u64 length, bytes.
std::string RawGgufString(absl::string_view text);

class GgufWriter {
 public:
  using ValueType = engine::Gguf::ValueType;

  uint32_t version = 3;
  uint64_t alignment = 32;    // AddUint32("general.alignment") if you change it
  int64_t extra_entries = 0;  // added to the counts in the header, which then
  int64_t extra_tensors = 0;  // lie

  void AddUint32(absl::string_view key, uint32_t value) {
    AddRaw(key, ValueType::kUint32, Raw(value));
  }
  void AddFloat32(absl::string_view key, float value) {
    AddRaw(key, ValueType::kFloat32, Raw(value));
  }
  void AddBool(absl::string_view key, bool value) {
    AddRaw(key, ValueType::kBool, std::string(1, value ? 1 : 0));
  }
  void AddString(absl::string_view key, absl::string_view value) {
    AddRaw(key, ValueType::kString, RawGgufString(value));
  }
  void AddStrings(absl::string_view key,
                  const std::vector<std::string>& values);
  void AddInt32s(absl::string_view key, const std::vector<int32_t>& values);
  void AddRaw(absl::string_view key, ValueType type, absl::string_view bytes);

  // `dims` fastest first. Tensors are placed one behind the other, aligned.
  void AddTensor(absl::string_view name, engine::TensorType type,
                 const std::vector<uint64_t>& dims, absl::string_view data);
  // Only the table entry, at any offset.
  void AddTensorEntry(absl::string_view name, uint32_t type,
                      const std::vector<uint64_t>& dims, uint64_t offset);

  std::string Finish() const;

 private:
  int64_t num_entries_ = 0;
  int64_t num_tensors_ = 0;
  std::string entries_;
  std::string table_;
  std::string data_;
};

}  // namespace overture::testing
