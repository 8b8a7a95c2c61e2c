#include "tests/support/safetensors_writer.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace overture::testing {

std::string MakeRawSafetensors(absl::string_view header,
                               absl::string_view data) {
  const uint64_t size = header.size();
  return absl::StrCat(
      absl::string_view(reinterpret_cast<const char*>(&size), sizeof(size)),
      header, data);
}

std::string MakeSafetensors(const std::vector<SafetensorsEntry>& tensors) {
  std::string header = R"({"__metadata__":{"format":"pt"})";
  std::string data;
  for (const SafetensorsEntry& tensor : tensors) {
    absl::StrAppend(&header, ",\"", tensor.name, "\":{\"dtype\":\"",
                    tensor.dtype, "\",\"shape\":[",
                    absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[",
                    data.size(), ",", data.size() + tensor.data.size(), "]}");
    data += tensor.data;
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  return MakeRawSafetensors(header, data);
}

}  // namespace overture::testing
