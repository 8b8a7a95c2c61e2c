// Entry point for fuzzing the GGUF reader: parses, then uses all that parsed.
#include <algorithm>
#include <vector>

#include "engine/dequantize.h"
#include "engine/gguf.h"
#include "engine/gguf_config.h"
#include "tests/fuzz/corpus_runner.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace engine = overture::engine;
  const absl::StatusOr<engine::Gguf> gguf = engine::Gguf::Parse(
      absl::string_view(reinterpret_cast<const char*>(data), size));
  if (!gguf.ok()) return 0;
  for (const absl::string_view key : gguf->keys()) {
    (void)gguf->GetInt(key);
    (void)gguf->GetDouble(key);
    (void)gguf->GetBool(key);
    (void)gguf->GetString(key);
    (void)gguf->GetInts(key);
    (void)gguf->GetDoubles(key);
    (void)gguf->GetStrings(key);
  }
  for (const engine::Gguf::Tensor& tensor : gguf->tensors()) {
    // One block decodes the type; all bytes must be readable.
    const engine::BlockShape block = engine::BlockShapeOf(tensor.type);
    std::vector<float> values(block.num_elements);
    (void)engine::Dequantize(tensor.type,
                             tensor.data.substr(0, block.num_bytes),
                             absl::MakeSpan(values));
    volatile char last = tensor.data.back();
    (void)last;
  }
  (void)engine::ReadGgufConfig(*gguf);
  return 0;
}
