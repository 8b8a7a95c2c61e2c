// Entry point for fuzzing the reader of tokenizer.json: loads, then uses what
// loaded.
#include <vector>

#include "engine/tokenizer_json.h"
#include "tests/fuzz/corpus_runner.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  namespace engine = overture::engine;
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = engine::TokenizerFromJson(text, "fuzz");
  if (!tokenizer.ok()) return 0;
  engine::Tokenizer::EncodeOptions options;
  options.add_special_tokens = true;
  // The file is also a text that holds its own tokens.
  const std::vector<int32_t> ids =
      (*tokenizer)->Encode(text.substr(0, 256), options);
  (void)(*tokenizer)->Decode(ids, true);
  (void)(*tokenizer)->Decode(std::vector<int32_t>{-1}, true);
  (void)(*tokenizer)->TokenId("a");
  return 0;
}
