// Builds safetensors files in memory. Source: huggingface/safetensors
// README.md, "Format".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace overture::testing {

struct SafetensorsEntry {
  std::string name;
  std::string dtype;  // "F32"
  std::vector<int64_t> shape;
  std::string data;
};

// Tensors one behind the other, with the metadata that Hugging Face writes.
std::string MakeSafetensors(const std::vector<SafetensorsEntry>& tensors);

// A file of any header text, which need not describe `data`.
std::string MakeRawSafetensors(absl::string_view header,
                               absl::string_view data);

}  // namespace overture::testing
