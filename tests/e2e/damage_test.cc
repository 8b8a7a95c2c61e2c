// Stored KV that is damaged or foreign is a miss, never an answer.
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/harness.h"
#include "tests/support/status_matchers.h"

namespace overture::testing {
namespace {

using clients::PrefillResult;

constexpr int64_t kAnswerTokens = 12;

class DamageTest : public EndToEndTest {
 protected:
  // Flips one bit every 256 bytes of every file with this extension; returns
  // how many files it touched.
  int DamageFiles(const std::string& extension) {
    int files = 0;
    for (const auto& entry :
         std::filesystem::recursive_directory_iterator(data_dir())) {
      if (!entry.is_regular_file() || entry.path().extension() != extension) {
        continue;
      }
      std::fstream file(entry.path(),
                        std::ios::in | std::ios::out | std::ios::binary);
      const auto size = static_cast<int64_t>(entry.file_size());
      // Past the file's header and before its footer: those would keep the
      // store from opening, which is another failure.
      for (int64_t at = 512; at + 512 < size; at += 256) {
        file.seekg(at);
        const char byte = static_cast<char>(file.get() ^ 0x10);
        file.seekp(at);
        file.put(byte);
      }
      ++files;
    }
    return files;
  }
};

TEST_F(DamageTest, DamagedRecordsAreRecomputedToTheSameTokens) {
  StartServer();
  const std::vector<int32_t> prompt = reference_->RandomPrompt(2000, 1);
  OVERTURE_ASSERT_OK_AND_ASSIGN(PrefillResult before,
                                client().Prefill(Request(prompt)));
  ASSERT_TRUE(before.done.persisted());
  server().process().Kill();
  ASSERT_GT(DamageFiles(".blob"), 0);

  StartServer();
  OVERTURE_ASSERT_OK_AND_ASSIGN(PrefillResult after,
                                client().Prefill(Request(prompt)));
  EXPECT_EQ(after.done.stats().reused_tokens(), 0);
  ExpectAnswer(after.done.handle(),
               {.prompt = prompt, .max_tokens = kAnswerTokens});
  OVERTURE_ASSERT_OK_AND_ASSIGN(v1::ServerInfo info, client().GetServerInfo());
  EXPECT_GT(info.cache().damaged_records(), 0);

  // What was recomputed is stored again, whole.
  OVERTURE_ASSERT_OK_AND_ASSIGN(PrefillResult third,
                                client().Prefill(Request(prompt)));
  EXPECT_GE(third.done.stats().reused_tokens(), 1800);
}

TEST_F(DamageTest, KvOfOtherWeightsIsNeverReused) {
  StartServer();
  const std::string other = WriteModel(2);
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto other_reference,
                                Reference::Load(other, device_));
  // Ids that both models have: the tiny one's vocabulary is small.
  const std::vector<int32_t> prompt = other_reference->RandomPrompt(2000, 2);
  OVERTURE_ASSERT_OK(client().Prefill(Request(prompt)));

  StartServerWith(other);
  v1::LookupRequest lookup;
  lookup.mutable_token_ids()->Add(prompt.begin(), prompt.end());
  OVERTURE_ASSERT_OK_AND_ASSIGN(v1::LookupResponse found,
                                client().Lookup(lookup));
  EXPECT_EQ(found.matched_tokens(), 0);
  OVERTURE_ASSERT_OK_AND_ASSIGN(PrefillResult result,
                                client().Prefill(Request(prompt)));
  EXPECT_EQ(result.done.stats().reused_tokens(), 0);
  model_path_ = other;
  reference_ = std::move(other_reference);
  ExpectAnswer(result.done.handle(),
               {.prompt = prompt, .max_tokens = kAnswerTokens});
}

TEST_F(DamageTest, KvOfOtherNumericsIsNeverReused) {
  StartServer();
  const std::vector<int32_t> prompt = reference_->RandomPrompt(2000, 3);
  OVERTURE_ASSERT_OK(client().Prefill(Request(prompt)));
  // Another dtype, or the same one on another device.
  numerics_ = {"--device=cpu", "--dtype=bf16"};
  StartServer();
  OVERTURE_ASSERT_OK_AND_ASSIGN(PrefillResult result,
                                client().Prefill(Request(prompt)));
  EXPECT_EQ(result.done.stats().reused_tokens(), 0);
}

}  // namespace
}  // namespace overture::testing
