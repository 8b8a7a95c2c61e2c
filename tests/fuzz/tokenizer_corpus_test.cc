#include <string>
#include <vector>

#include "engine/tokenizer_json.h"
#include "gtest/gtest.h"
#include "tests/fuzz/corpus_runner.h"
#include "tests/support/status_matchers.h"

namespace overture::testing {
namespace {

// Everything that the reader knows, once.
constexpr char kBpe[] = R"({"added_tokens":[
{"id":5,"content":"<s>","special":true,"lstrip":true},
{"id":6,"content":"b","single_word":true,"normalized":true,"rstrip":true}],
"normalizer":{"type":"Sequence","normalizers":[{"type":"NFC"}]},
"pre_tokenizer":{"type":"Sequence","pretokenizers":[
{"type":"Digits","individual_digits":true},
{"type":"Split","pattern":{"Regex":"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"},"behavior":"Removed","invert":true},
{"type":"ByteLevel","add_prefix_space":true,"use_regex":false}]},
"post_processor":{"type":"Sequence","processors":[{"type":"ByteLevel"},
{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>"}},
{"Sequence":{"id":"A"}}],"special_tokens":{"<s>":{"ids":[5]}}}]},
"decoder":{"type":"ByteLevel"},
"model":{"type":"BPE","unk_token":"u","fuse_unk":true,"ignore_merges":false,
"vocab":{"a":0,"t":1,"at":2,"u":3,"ata":4},
"merges":["a t",["at","a"]]}})";

constexpr char kWordLevel[] =
    R"({"added_tokens":[],"pre_tokenizer":{"type":"WhitespaceSplit"},
"model":{"type":"WordLevel","vocab":{"aa":0,"bb":1,"?":2},"unk_token":"?"}})";

TEST(TokenizerFuzzTest, DamagedFilesNeitherCrashNorCostMemory) {
  OVERTURE_ASSERT_OK(engine::TokenizerFromJson(kBpe, "seed"));
  OVERTURE_ASSERT_OK(engine::TokenizerFromJson(kWordLevel, "seed"));
  // Builds the Unicode tables, once per process.
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(kBpe),
                         sizeof(kBpe) - 1);
  FuzzCorpus corpus;
  corpus.name = "tokenizer";
  corpus.seeds = {kBpe, kWordLevel, std::string(300, '['),
                  R"({"model":{"type":"BPE","vocab":{"a":0,"a":1},"merges":[]},
"pre_tokenizer":{"type":"ByteLevel"}})"};
  corpus.dictionary = {"\"id\":2147483647", "\"id\":-1",   "[[[[[[[[",
                       "{\"type\":",        "1e999",       "null",
                       "\"\\ud800\"",       "\"merges\":", "\"vocab\":{",
                       "99999999999999999", "\"a\":1024"};
  // A JSON value costs up to 30 times its text, and an id up to twice the
  // number of tokens plus 1024 costs 40 bytes; a trie node of an added token
  // about 60.
  corpus.max_bytes_per_input_byte = 64;
  corpus.base_bytes = 64 << 10;
  RunCorpus(corpus);
}

}  // namespace
}  // namespace overture::testing
