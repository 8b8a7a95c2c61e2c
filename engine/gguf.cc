#include "engine/gguf.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace overture::engine {
namespace {

using ValueType = Gguf::ValueType;

// Arrays of arrays have no known use; deeper nesting than this is an attack on
// the stack.
constexpr int kMaxArrayDepth = 4;

// Smallest bytes of one metadata entry: key length, type, one-byte value.
constexpr uint64_t kMinEntryBytes = 8 + 4 + 1;
// Of one tensor's entry: name length, dims, one dim, type, offset.
constexpr uint64_t kMinTensorBytes = 8 + 4 + 8 + 4 + 8;

// Bytes of a scalar; 0 for strings, arrays and unknown types.
int64_t ScalarBytes(ValueType type) {
  switch (type) {
    case ValueType::kUint8:
    case ValueType::kInt8:
    case ValueType::kBool:
      return 1;
    case ValueType::kUint16:
    case ValueType::kInt16:
      return 2;
    case ValueType::kUint32:
    case ValueType::kInt32:
    case ValueType::kFloat32:
      return 4;
    case ValueType::kUint64:
    case ValueType::kInt64:
    case ValueType::kFloat64:
      return 8;
    case ValueType::kString:
    case ValueType::kArray:
      break;
  }
  return 0;
}

absl::string_view TypeName(ValueType type) {
  constexpr absl::string_view kNames[] = {
      "uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
      "bool",  "string", "array",  "uint64", "int64",  "float64"};
  const uint32_t index = static_cast<uint32_t>(type);
  return index < std::size(kNames) ? kNames[index] : "unknown";
}

// Names come from the file: escape them and keep messages short.
std::string Quote(absl::string_view name) {
  constexpr size_t kMaxShown = 80;
  return absl::StrCat("'", absl::CHexEscape(name.substr(0, kMaxShown)),
                      name.size() > kMaxShown ? "...'" : "'");
}

template <typename T>
T LoadAs(const char* p) {
  T value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

// False if a uint64 does not fit, or the type is no integer.
bool LoadInt(ValueType type, const char* p, int64_t* out) {
  switch (type) {
    case ValueType::kUint8:
      *out = LoadAs<uint8_t>(p);
      return true;
    case ValueType::kInt8:
      *out = LoadAs<int8_t>(p);
      return true;
    case ValueType::kUint16:
      *out = LoadAs<uint16_t>(p);
      return true;
    case ValueType::kInt16:
      *out = LoadAs<int16_t>(p);
      return true;
    case ValueType::kUint32:
      *out = LoadAs<uint32_t>(p);
      return true;
    case ValueType::kInt32:
      *out = LoadAs<int32_t>(p);
      return true;
    case ValueType::kInt64:
      *out = LoadAs<int64_t>(p);
      return true;
    case ValueType::kUint64: {
      const uint64_t value = LoadAs<uint64_t>(p);
      *out = static_cast<int64_t>(value);
      return value <= std::numeric_limits<int64_t>::max();
    }
    default:
      return false;
  }
}

bool LoadDouble(ValueType type, const char* p, double* out) {
  if (type == ValueType::kFloat32) {
    *out = LoadAs<float>(p);
    return true;
  }
  if (type == ValueType::kFloat64) {
    *out = LoadAs<double>(p);
    return true;
  }
  int64_t value = 0;
  if (!LoadInt(type, p, &value)) return false;
  *out = static_cast<double>(value);
  return true;
}

absl::Status WrongType(absl::string_view key, ValueType type,
                       absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(
      "key ", Quote(key), " is ", TypeName(type), ", expected ", expected));
}

}  // namespace

// Walks the bytes; every read says what it was for when too few are left.
class Gguf::Cursor {
 public:
  explicit Cursor(absl::string_view bytes) : bytes_(bytes) {}

  uint64_t position() const { return position_; }
  uint64_t left() const { return bytes_.size() - position_; }

  absl::Status Take(uint64_t size, absl::string_view what,
                    absl::string_view* out) {
    if (size > left()) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " needs ", size, " bytes at offset ", position_,
                       ", but the file has ", left(), " left"));
    }
    *out = bytes_.substr(position_, size);
    position_ += size;
    return absl::OkStatus();
  }

  template <typename T>
  absl::Status Read(absl::string_view what, T* out) {
    static_assert(std::is_integral_v<T>);
    absl::string_view raw;
    OVERTURE_RETURN_IF_ERROR(Take(sizeof(T), what, &raw));
    *out = LoadAs<T>(raw.data());
    return absl::OkStatus();
  }

  absl::Status ReadString(absl::string_view what, absl::string_view* out) {
    uint64_t size = 0;
    OVERTURE_RETURN_IF_ERROR(Read(what, &size));
    return Take(size, what, out);
  }

  // Passes over `count` elements of an array.
  absl::Status SkipElements(ValueType type, uint64_t count,
                            absl::string_view key, int depth) {
    if (const int64_t size = ScalarBytes(type); size != 0) {
      absl::string_view ignored;
      if (count > left() / size) {
        return absl::InvalidArgumentError(absl::StrCat(
            "array ", Quote(key), " claims ", count, " ", TypeName(type),
            " elements, but the file has ", left(), " bytes left"));
      }
      return Take(count * size, "array", &ignored);
    }
    // A string or nested array takes at least 8 bytes, so a hostile count ends
    // within the file.
    for (uint64_t i = 0; i < count; ++i) {
      absl::string_view ignored;
      if (type == ValueType::kString) {
        OVERTURE_RETURN_IF_ERROR(ReadString("string in an array", &ignored));
      } else {
        ValueType inner = ValueType::kUint8;
        uint64_t inner_count = 0;
        OVERTURE_RETURN_IF_ERROR(
            ReadArrayHeader(key, depth + 1, &inner, &inner_count));
        OVERTURE_RETURN_IF_ERROR(
            SkipElements(inner, inner_count, key, depth + 1));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadValueType(absl::string_view key, ValueType* out) {
    uint32_t raw = 0;
    OVERTURE_RETURN_IF_ERROR(Read("value type", &raw));
    if (raw > static_cast<uint32_t>(ValueType::kFloat64)) {
      return absl::InvalidArgumentError(
          absl::StrCat("key ", Quote(key), " has value type ", raw,
                       ", the largest known is 12"));
    }
    *out = static_cast<ValueType>(raw);
    return absl::OkStatus();
  }

  absl::Status ReadArrayHeader(absl::string_view key, int depth,
                               ValueType* type, uint64_t* count) {
    if (depth > kMaxArrayDepth) {
      return absl::InvalidArgumentError(
          absl::StrCat("array ", Quote(key), " is nested deeper than ",
                       kMaxArrayDepth, " levels"));
    }
    OVERTURE_RETURN_IF_ERROR(ReadValueType(key, type));
    return Read("array length", count);
  }

 private:
  absl::string_view bytes_;
  uint64_t position_ = 0;
};

absl::StatusOr<Gguf> Gguf::Parse(absl::string_view bytes) {
  Cursor cursor(bytes);
  absl::string_view magic;
  OVERTURE_RETURN_IF_ERROR(cursor.Take(4, "magic", &magic));
  if (magic != "GGUF") {
    return absl::InvalidArgumentError(
        absl::StrCat("magic is ", Quote(magic), ", expected 'GGUF'"));
  }
  Gguf gguf;
  OVERTURE_RETURN_IF_ERROR(cursor.Read("version", &gguf.version_));
  if (gguf.version_ != 2 && gguf.version_ != 3) {
    const bool big_endian = (gguf.version_ & 0xffffu) == 0;
    return absl::UnimplementedError(
        big_endian ? std::string("the file is big endian; only little-endian "
                                 "GGUF is supported")
                   : absl::StrCat("GGUF version ", gguf.version_,
                                  "; supported: 2, 3"));
  }
  uint64_t num_tensors = 0, num_entries = 0;
  OVERTURE_RETURN_IF_ERROR(cursor.Read("tensor count", &num_tensors));
  OVERTURE_RETURN_IF_ERROR(cursor.Read("metadata count", &num_entries));
  OVERTURE_RETURN_IF_ERROR(gguf.ParseMetadata(cursor, num_entries));
  OVERTURE_RETURN_IF_ERROR(gguf.ParseTensors(cursor, num_tensors));

  // Tensor data starts at the next multiple of the alignment. A file without
  // tensors may end before it.
  const uint64_t alignment = gguf.alignment_;
  const uint64_t data_begin =
      (cursor.position() + alignment - 1) / alignment * alignment;
  OVERTURE_RETURN_IF_ERROR(gguf.PlaceTensors(
      bytes.substr(std::min<uint64_t>(data_begin, bytes.size())),
      gguf.tensor_offsets_));
  return gguf;
}

absl::Status Gguf::ParseMetadata(Cursor& cursor, uint64_t count) {
  if (count > cursor.left() / kMinEntryBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file claims ", count, " metadata entries, but has ",
                     cursor.left(), " bytes left"));
  }
  for (uint64_t i = 0; i < count; ++i) {
    absl::string_view key;
    OVERTURE_RETURN_IF_ERROR(WithContext(cursor.ReadString("key", &key),
                                         absl::StrCat("metadata entry ", i)));
    Value value{};
    const absl::Status status = [&]() -> absl::Status {
      OVERTURE_RETURN_IF_ERROR(cursor.ReadValueType(key, &value.type));
      if (value.type == ValueType::kString) {
        return cursor.ReadString("string", &value.bytes);
      }
      if (const int64_t size = ScalarBytes(value.type); size != 0) {
        return cursor.Take(size, "value", &value.bytes);
      }
      uint64_t num_elements = 0;
      OVERTURE_RETURN_IF_ERROR(cursor.ReadArrayHeader(
          key, /*depth=*/1, &value.element_type, &num_elements));
      // A second cursor finds the end, so that the bytes are one view.
      Cursor end = cursor;
      OVERTURE_RETURN_IF_ERROR(end.SkipElements(value.element_type,
                                                num_elements, key,
                                                /*depth=*/1));
      value.count = static_cast<int64_t>(num_elements);
      return cursor.Take(end.position() - cursor.position(), "array",
                         &value.bytes);
    }();
    if (!status.ok()) {
      return WithContext(status, absl::StrCat("key ", Quote(key)));
    }
    if (!values_.emplace(key, value).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("key ", Quote(key), " appears twice"));
    }
    keys_.push_back(key);
  }
  if (Has("general.alignment")) {
    OVERTURE_ASSIGN_OR_RETURN(const int64_t alignment,
                              GetInt("general.alignment"));
    constexpr int64_t kMaxAlignment = int64_t{1} << 30;
    if (alignment < 1 || alignment > kMaxAlignment ||
        (alignment & (alignment - 1)) != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("general.alignment is ", alignment,
                       ", expected a power of two up to ", kMaxAlignment));
    }
    alignment_ = static_cast<uint64_t>(alignment);
  }
  return absl::OkStatus();
}

absl::Status Gguf::ParseTensors(Cursor& cursor, uint64_t count) {
  if (count > cursor.left() / kMinTensorBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file claims ", count, " tensors, but has ",
                     cursor.left(), " bytes left"));
  }
  for (uint64_t i = 0; i < count; ++i) {
    Tensor tensor;
    OVERTURE_RETURN_IF_ERROR(WithContext(
        cursor.ReadString("name", &tensor.name), absl::StrCat("tensor ", i)));
    const std::string context = absl::StrCat("tensor ", Quote(tensor.name));
    uint32_t num_dims = 0;
    OVERTURE_RETURN_IF_ERROR(
        WithContext(cursor.Read("dimension count", &num_dims), context));
    if (num_dims < 1 || num_dims > 4) {
      return absl::InvalidArgumentError(absl::StrCat(
          context, " has ", num_dims, " dimensions, expected 1 to 4"));
    }
    tensor.num_dims = static_cast<int32_t>(num_dims);
    // 2^48 elements: with at most 4 bytes each, no product below overflows.
    constexpr uint64_t kMaxElements = uint64_t{1} << 48;
    uint64_t num_elements = 1;
    for (uint32_t d = 0; d < num_dims; ++d) {
      uint64_t dim = 0;
      OVERTURE_RETURN_IF_ERROR(
          WithContext(cursor.Read("dimension", &dim), context));
      if (dim == 0 || dim > kMaxElements / num_elements) {
        return absl::InvalidArgumentError(
            absl::StrCat(context, " has dimension ", d, " = ", dim,
                         ", expected 1 or more and at most ", kMaxElements,
                         " elements in all"));
      }
      num_elements *= dim;
      tensor.dims[d] = static_cast<int64_t>(dim);
    }
    uint32_t type = 0;
    OVERTURE_RETURN_IF_ERROR(
        WithContext(cursor.Read("tensor type", &type), context));
    if (!IsSupportedTensorType(type)) {
      return absl::UnimplementedError(
          absl::StrCat(context, " has GGML type ", type,
                       "; supported: ", SupportedTensorTypes()));
    }
    tensor.type = static_cast<TensorType>(type);
    uint64_t offset = 0;
    OVERTURE_RETURN_IF_ERROR(
        WithContext(cursor.Read("tensor offset", &offset), context));
    if (!tensor_index_.emplace(tensor.name, tensors_.size()).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(context, " appears twice"));
    }
    tensors_.push_back(tensor);
    tensor_offsets_.push_back(offset);
  }
  return absl::OkStatus();
}

absl::Status Gguf::PlaceTensors(absl::string_view data,
                                const std::vector<uint64_t>& offsets) {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    Tensor& tensor = tensors_[i];
    const BlockShape block = BlockShapeOf(tensor.type);
    if (tensor.dims[0] % block.num_elements != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", Quote(tensor.name), " has rows of ",
                       tensor.dims[0], " elements, ", Name(tensor.type),
                       " needs a multiple of ", block.num_elements));
    }
    const uint64_t size =
        tensor.NumElements() / block.num_elements * block.num_bytes;
    if (offsets[i] % alignment_ != 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Quote(tensor.name), " is at data offset ", offsets[i],
          ", not a multiple of the alignment ", alignment_));
    }
    if (offsets[i] > data.size() || size > data.size() - offsets[i]) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Quote(tensor.name), " takes ", size,
          " bytes at data offset ", offsets[i], ", but the file has ",
          data.size(), " bytes of tensor data"));
    }
    tensor.data = data.substr(offsets[i], size);
  }
  std::vector<int64_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](int64_t a, int64_t b) { return offsets[a] < offsets[b]; });
  for (size_t i = 1; i < order.size(); ++i) {
    const Tensor& before = tensors_[order[i - 1]];
    const Tensor& after = tensors_[order[i]];
    if (offsets[order[i - 1]] + before.data.size() > offsets[order[i]]) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensors ", Quote(before.name), " and ",
                       Quote(after.name), " overlap"));
    }
  }
  return absl::OkStatus();
}

const Gguf::Tensor* Gguf::FindTensor(absl::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

absl::StatusOr<const Gguf::Value*> Gguf::Find(absl::string_view key) const {
  const auto it = values_.find(key);
  if (it == values_.end()) {
    return absl::NotFoundError(absl::StrCat("key ", Quote(key), " is missing"));
  }
  return &it->second;
}

absl::StatusOr<const Gguf::Value*> Gguf::FindArray(
    absl::string_view key) const {
  OVERTURE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type != ValueType::kArray) {
    return WrongType(key, value->type, "array");
  }
  return value;
}

absl::StatusOr<int64_t> Gguf::GetInt(absl::string_view key) const {
  OVERTURE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  int64_t out = 0;
  if (!LoadInt(value->type, value->bytes.data(), &out)) {
    return WrongType(key, value->type, "an integer that fits int64");
  }
  return out;
}

absl::StatusOr<double> Gguf::GetDouble(absl::string_view key) const {
  OVERTURE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  double out = 0;
  if (!LoadDouble(value->type, value->bytes.data(), &out)) {
    return WrongType(key, value->type, "a number");
  }
  return out;
}

absl::StatusOr<bool> Gguf::GetBool(absl::string_view key) const {
  OVERTURE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type != ValueType::kBool) {
    return WrongType(key, value->type, "bool");
  }
  return value->bytes[0] != 0;
}

absl::StatusOr<absl::string_view> Gguf::GetString(absl::string_view key) const {
  OVERTURE_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type != ValueType::kString) {
    return WrongType(key, value->type, "string");
  }
  return value->bytes;
}

absl::StatusOr<std::vector<int64_t>> Gguf::GetInts(
    absl::string_view key) const {
  OVERTURE_ASSIGN_OR_RETURN(const Value* value, FindArray(key));
  const int64_t size = ScalarBytes(value->element_type);
  std::vector<int64_t> out(size == 0 ? 0 : value->count);
  for (int64_t i = 0; i < value->count; ++i) {
    if (size == 0 || !LoadInt(value->element_type,
                              value->bytes.data() + i * size, &out[i])) {
      return WrongType(key, value->element_type,
                       "an array of integers that fit int64");
    }
  }
  return out;
}

absl::StatusOr<std::vector<double>> Gguf::GetDoubles(
    absl::string_view key) const {
  OVERTURE_ASSIGN_OR_RETURN(const Value* value, FindArray(key));
  const int64_t size = ScalarBytes(value->element_type);
  std::vector<double> out(size == 0 ? 0 : value->count);
  for (int64_t i = 0; i < value->count; ++i) {
    if (size == 0 || !LoadDouble(value->element_type,
                                 value->bytes.data() + i * size, &out[i])) {
      return WrongType(key, value->element_type, "an array of numbers");
    }
  }
  return out;
}

absl::StatusOr<std::vector<absl::string_view>> Gguf::GetStrings(
    absl::string_view key) const {
  OVERTURE_ASSIGN_OR_RETURN(const Value* value, FindArray(key));
  if (value->element_type != ValueType::kString) {
    return WrongType(key, value->element_type, "an array of strings");
  }
  std::vector<absl::string_view> out;
  out.reserve(value->count);
  // Parse() walked these bytes already; the checks here cannot fail.
  Cursor cursor(value->bytes);
  for (int64_t i = 0; i < value->count; ++i) {
    absl::string_view text;
    OVERTURE_RETURN_IF_ERROR(cursor.ReadString("string", &text));
    out.push_back(text);
  }
  return out;
}

}  // namespace overture::engine
