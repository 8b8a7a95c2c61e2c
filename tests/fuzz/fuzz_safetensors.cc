// Entry point for fuzzing the readers of a Hugging Face checkpoint: the same
// bytes are tried as a safetensors file, its index and a config.json.
#include "engine/hf_config.h"
#include "engine/safetensors.h"
#include "tests/fuzz/corpus_runner.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace engine = overture::engine;
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const auto file = engine::Safetensors::Parse(bytes); file.ok()) {
    for (const engine::Safetensors::Tensor& tensor : file->tensors()) {
      if (tensor.data.empty()) continue;
      volatile char last = tensor.data.back();
      (void)last;
    }
  }
  (void)engine::ParseSafetensorsIndex(bytes);
  (void)engine::ParseHfConfig(bytes);
  return 0;
}
