// tokenizer_dump MODEL [--special] [--bos] [--decode]
//
// Tokenises records from standard input to standard output, for the
// differential test in tests/goldens/make_tokenizer_goldens.py. A record is a
// u32 length and that many bytes; the answer is a u32 count and that many
// int32 ids, with --decode followed by the decoded text as a record. With
// "time" as the last argument it reads all of the input as one text and prints
// MB/s instead.
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <string>

#include "engine/tokenizer.h"

namespace {

using overture::engine::Tokenizer;

void WriteU32(uint32_t value) { std::fwrite(&value, sizeof(value), 1, stdout); }

int Time(const Tokenizer& tokenizer) {
  const std::string text((std::istreambuf_iterator<char>(std::cin)), {});
  for (int run = 0; run < 3; ++run) {
    const auto begin = std::chrono::steady_clock::now();
    const size_t num_ids = tokenizer.Encode(text, {}).size();
    const std::chrono::duration<double> seconds =
        std::chrono::steady_clock::now() - begin;
    std::printf("%zu bytes, %zu ids, %.3f s, %.1f MB/s\n", text.size(), num_ids,
                seconds.count(), text.size() / seconds.count() / 1e6);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: tokenizer_dump MODEL [options]\n");
    return 2;
  }
  const auto loaded = Tokenizer::Load(argv[1]);
  if (!loaded.ok()) {
    std::fprintf(stderr, "%s\n", loaded.status().ToString().c_str());
    return 1;
  }
  const Tokenizer& tokenizer = **loaded;
  Tokenizer::EncodeOptions options;
  options.parse_special = false;
  bool decode = false;
  for (int i = 2; i < argc; ++i) {
    if (std::strcmp(argv[i], "--special") == 0) options.parse_special = true;
    if (std::strcmp(argv[i], "--bos") == 0) options.add_special_tokens = true;
    if (std::strcmp(argv[i], "--decode") == 0) decode = true;
    if (std::strcmp(argv[i], "time") == 0) return Time(tokenizer);
  }
  uint32_t size;
  std::string text;
  while (std::fread(&size, sizeof(size), 1, stdin) == 1) {
    text.resize(size);
    if (std::fread(text.data(), 1, size, stdin) != size) return 1;
    const auto ids = tokenizer.Encode(text, options);
    WriteU32(static_cast<uint32_t>(ids.size()));
    std::fwrite(ids.data(), sizeof(ids[0]), ids.size(), stdout);
    if (decode) {
      const std::string decoded = *tokenizer.Decode(ids, true);
      WriteU32(static_cast<uint32_t>(decoded.size()));
      std::fwrite(decoded.data(), 1, decoded.size(), stdout);
    }
  }
  return 0;
}
