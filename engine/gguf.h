// Reader of GGUF, versions 2 and 3, little endian: metadata keys and the table
// of tensors. Borrows the bytes it parsed, which outlive it and every view it
// returns; copies no string and no tensor. Immutable, so thread-safe.
//
// Parse() believes nothing: every count, length, type, offset and size is
// checked against the bytes that are really there before anything is reserved
// or read, so a hostile file costs at most about eight times its size.
//
// Errors: INVALID_ARGUMENT naming the key or tensor, the value and the limit;
// UNIMPLEMENTED for another version, byte order or tensor type. The getters
// return NOT_FOUND for an absent key and INVALID_ARGUMENT for one of another
// type.
//
// Source: ggml-org/ggml:docs/gguf.md. Stricter in that duplicate keys,
// duplicate tensors and overlapping tensor data are refused.
//
//   OVERTURE_ASSIGN_OR_RETURN(MappedFile file, MappedFile::Open(path));
//   OVERTURE_ASSIGN_OR_RETURN(Gguf gguf, Gguf::Parse(file.bytes()));
//   OVERTURE_ASSIGN_OR_RETURN(absl::string_view architecture,
//                             gguf.GetString("general.architecture"));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/tensor_type.h"

namespace overture::engine {

class Gguf {
 public:
  // The values are the file format's: do not renumber.
  enum class ValueType : uint32_t {
    kUint8 = 0,
    kInt8 = 1,
    kUint16 = 2,
    kInt16 = 3,
    kUint32 = 4,
    kInt32 = 5,
    kFloat32 = 6,
    kBool = 7,
    kString = 8,
    kArray = 9,
    kUint64 = 10,
    kInt64 = 11,
    kFloat64 = 12,
  };

  struct Tensor {
    absl::string_view name;
    TensorType type = TensorType::kF32;
    int32_t num_dims = 0;
    int64_t dims[4] = {1, 1, 1, 1};  // fastest first, all >= 1: a matrix is
                                     // {columns, rows}
    absl::string_view data;          // exactly the tensor's bytes

    int64_t NumElements() const {
      return dims[0] * dims[1] * dims[2] * dims[3];
    }
  };

  static absl::StatusOr<Gguf> Parse(absl::string_view bytes);

  uint32_t version() const { return version_; }
  absl::Span<const Tensor> tensors() const { return tensors_; }
  // Null if there is none.
  const Tensor* FindTensor(absl::string_view name) const;

  // Keys in file order.
  absl::Span<const absl::string_view> keys() const { return keys_; }
  bool Has(absl::string_view key) const { return values_.contains(key); }

  // Any integer type, if the value fits int64_t.
  absl::StatusOr<int64_t> GetInt(absl::string_view key) const;
  // Any integer or floating-point type.
  absl::StatusOr<double> GetDouble(absl::string_view key) const;
  absl::StatusOr<bool> GetBool(absl::string_view key) const;
  // Views into the parsed bytes, not checked to be UTF-8.
  absl::StatusOr<absl::string_view> GetString(absl::string_view key) const;

  // Arrays of the same types.
  absl::StatusOr<std::vector<int64_t>> GetInts(absl::string_view key) const;
  absl::StatusOr<std::vector<double>> GetDoubles(absl::string_view key) const;
  absl::StatusOr<std::vector<absl::string_view>> GetStrings(
      absl::string_view key) const;

 private:
  struct Value {
    ValueType type;
    ValueType element_type;   // of an array
    int64_t count = 0;        // elements of an array
    absl::string_view bytes;  // of the value; an array's elements; a string's
                              // text
  };

  class Cursor;
  absl::Status ParseMetadata(Cursor& cursor, uint64_t count);
  absl::Status ParseTensors(Cursor& cursor, uint64_t count);
  absl::Status PlaceTensors(absl::string_view data,
                            const std::vector<uint64_t>& offsets);
  absl::StatusOr<const Value*> Find(absl::string_view key) const;
  absl::StatusOr<const Value*> FindArray(absl::string_view key) const;

  uint32_t version_ = 0;
  uint64_t alignment_ = 32;
  std::vector<absl::string_view> keys_;
  absl::flat_hash_map<absl::string_view, Value> values_;
  std::vector<Tensor> tensors_;
  std::vector<uint64_t> tensor_offsets_;
  absl::flat_hash_map<absl::string_view, int64_t> tensor_index_;
};

}  // namespace overture::engine
