// A model that truly retrieves (bench/retrieval_model/README.md), asked for
// what stands somewhere in its prompt.
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "clients/tool/request_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/selector_text.h"
#include "tests/e2e/harness.h"
#include "tests/support/status_matchers.h"

namespace overture::testing {
namespace {

using clients::DecodeReport;
using clients::PrefillResult;
using ::testing::HasSubstr;

constexpr char kModel[] = "tests/data/retrieval_model/diffuse";
constexpr int kPassKey[] = {4, 0, 7, 9, 2};

class RetrievalTest : public EndToEndTest {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kModel)) {
      GTEST_SKIP() << "no folder " << kModel << " below the current one";
    }
    EndToEndTest::SetUp();
    model_path_ = kModel;
  }

  // Some 4,000 tokens, the pass key a third of the way in, in the words of
  // bench/retrieval_model/tasks.py.
  static std::string Prompt() {
    const std::string noise =
        "the grass is green . the sky is blue . the sun is yellow . here we go "
        ". there and back again . <nl> ";
    std::string key;
    for (const int digit : kPassKey) absl::StrAppend(&key, "<d", digit, "> ");
    std::string prompt = "<bos> ";
    for (int i = 0; i < 160; ++i) {
      if (i == 50) {
        absl::StrAppend(&prompt, "the pass key is ", key, ". remember it . ",
                        key, "is the pass key . <nl> ");
      }
      prompt += noise;
    }
    return prompt + "what is the pass key ? the pass key is";
  }

  // Decodes from the handle; true if the answer is the pass key.
  void ExpectPassKey(const std::string& handle, const std::string& source) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(const DecodeReport answer,
                                  Decode(handle, std::size(kPassKey), source));
    std::vector<int32_t> expected;
    for (const int digit : kPassKey) expected.push_back(256 + digit);
    EXPECT_EQ(answer.token_ids, expected);
  }

  // MInference's format, for the model's six layers of six heads: a different
  // size for most, A-shape heads among them, the last layer left out.
  std::string WriteSizes(int num_layers) {
    std::string text = "[";
    for (int layer = 0; layer < num_layers; ++layer) {
      absl::StrAppend(&text, layer > 0 ? ", {" : "{");
      for (int head = 0; layer < 5 && head < 6; ++head) {
        absl::StrAppend(&text, head > 0 ? ", " : "", "\"", head, "\": [");
        if (layer == 0 && head < 2) {
          absl::StrAppend(&text, "\"stream_llm\", 64, 256, 0]");
        } else {
          absl::StrAppend(&text, "\"vertical_and_slash\", ", 60 + 20 * head,
                          ", ", 120 + 20 * layer, ", 0]");
        }
      }
      absl::StrAppend(&text, "}");
    }
    const std::string path =
        dir_.Join(absl::StrCat("sizes", num_layers, ".json"));
    std::ofstream(path) << text << "]";
    return path;
  }
};

TEST_F(RetrievalTest, EverySelectorAndTheViewFindThePassKey) {
  StartServer({absl::StrCat("--minference_config=", WriteSizes(6))});
  v1::PrefillRequest request;
  request.set_text(Prompt());
  request.mutable_view()->mutable_snap_kv()->set_capacity(512);
  std::vector<double> densities;
  for (const char* selector :
       {"dense", "vertical_slash:100,150", "vertical_slash:per_head"}) {
    SCOPED_TRACE(selector);
    OVERTURE_ASSERT_OK_AND_ASSIGN(*request.mutable_selector(),
                                  v1::ParseSelector(selector));
    OVERTURE_ASSERT_OK_AND_ASSIGN(const PrefillResult result,
                                  client().Prefill(request));
    EXPECT_EQ(result.done.stats().reused_tokens(), 0);
    densities.push_back(result.done.stats().density());
    ExpectPassKey(result.done.handle(), "full");
    ExpectPassKey(result.done.handle(), "view");
  }
  EXPECT_LT(densities[1], 0.8);
  EXPECT_LT(densities[2], 0.8);
  EXPECT_NE(densities[1], densities[2]);
}

TEST_F(RetrievalTest, Fp8LinearsFindThePassKeyAndKeepTheirKvApart) {
  v1::PrefillRequest request;
  request.set_text(Prompt());
  // On one data folder: what FP8 stored serves FP8 alone.
  for (const bool again : {false, true}) {
    for (const char* linears : {"fp8", "bf16"}) {
      SCOPED_TRACE(absl::StrCat(linears, again ? " again" : ""));
      StartServer({absl::StrCat("--linears=", linears)});
      OVERTURE_ASSERT_OK_AND_ASSIGN(const PrefillResult result,
                                    client().Prefill(request));
      EXPECT_EQ(result.done.stats().reused_tokens() > 0, again);
      ExpectPassKey(result.done.handle(), "full");
    }
  }
}

TEST_F(RetrievalTest, SizesOfAnotherModelEndTheStart) {
  const ProgramResult run = RunProgram(
      "overtured", {absl::StrCat("--model=", model_path_), "--store=memory",
                    "--listen=127.0.0.1:0", "--device=cpu",
                    absl::StrCat("--minference_config=", WriteSizes(5))});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("has 5 layers, the model has num_layers = 6"));
}

}  // namespace
}  // namespace overture::testing
