// The retrieval model through our CPU back end and decoder: strict answers, so
// that a table of quality.md starts from a model that can do the task.
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "clients/evaluate/tasks.h"
#include "engine/backend.h"
#include "engine/decoder.h"
#include "engine/model_files.h"
#include "engine/tokenizer.h"
#include "gtest/gtest.h"
#include "tests/support/prefill_harness.h"
#include "tests/support/status_matchers.h"

namespace overture::clients {
namespace {

constexpr char kModel[] = "tests/data/retrieval_model/diffuse";

struct Case {
  const char* task;
  int64_t length;
  double depth;
};

// `num_tokens` greedy ids after the prompt.
absl::StatusOr<std::vector<int32_t>> Answer(
    engine::Backend& backend,
    const std::shared_ptr<const engine::DecoderModel>& model,
    const std::vector<int32_t>& prompt, int64_t num_tokens) {
  OVERTURE_ASSIGN_OR_RETURN(const testing::RecordedPrefill run,
                            testing::RunPrefill(backend, prompt));
  const KvLayout& layout = run.kv.layout;
  OVERTURE_ASSIGN_OR_RETURN(
      const auto decoder,
      engine::Decoder::Create(model, static_cast<int64_t>(prompt.size())));
  for (int32_t layer = 0; layer < layout.num_layers; ++layer) {
    const absl::Span<const std::byte> bytes = run.kv.layers[layer];
    const size_t head_bytes = bytes.size() / (2 * layout.num_kv_heads);
    for (int32_t head = 0; head < layout.num_kv_heads; ++head) {
      OVERTURE_RETURN_IF_ERROR(decoder->AppendRows(
          layer, head, layout.dtype,
          bytes.subspan(head * head_bytes, head_bytes),
          bytes.subspan((layout.num_kv_heads + head) * head_bytes,
                        head_bytes)));
    }
  }
  std::vector<int32_t> answer = {engine::Argmax(run.output.logits)};
  while (static_cast<int64_t>(answer.size()) < num_tokens) {
    OVERTURE_ASSIGN_OR_RETURN(const absl::Span<const float> logits,
                              decoder->Step(answer.back()));
    answer.push_back(engine::Argmax(logits));
  }
  return answer;
}

class RetrievalModelTest : public ::testing::TestWithParam<Case> {
 protected:
  static void SetUpTestSuite() {
    OVERTURE_ASSERT_OK_AND_ASSIGN(tokenizer_, engine::Tokenizer::Load(kModel));
    OVERTURE_ASSERT_OK_AND_ASSIGN(const auto files,
                                  engine::LoadModelFiles(kModel));
    constexpr auto kAuto = engine::ComputeDType::kAuto;
    OVERTURE_ASSERT_OK_AND_ASSIGN(backend_,
                                  engine::CreateCpuBackend(*files, kAuto));
    OVERTURE_ASSERT_OK_AND_ASSIGN(model_,
                                  engine::DecoderModel::Create(*files, kAuto));
  }
  static void TearDownTestSuite() {
    backend_.reset();
    model_.reset();
    tokenizer_.reset();
  }

  static inline std::unique_ptr<engine::Tokenizer> tokenizer_;
  static inline std::unique_ptr<engine::Backend> backend_;
  // Shared with the decoder of each answer.
  static inline std::shared_ptr<const engine::DecoderModel> model_;
};

TEST_P(RetrievalModelTest, AnswersExactly) {
  const auto& [task, length, depth] = GetParam();
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const Sample sample,
      MakeSample(
          {task, length, depth, /*seed=*/1}, 1, Spelling::kWords,
          [](absl::string_view text) -> absl::StatusOr<std::vector<int32_t>> {
            return tokenizer_->Encode(text, {});
          }));
  std::vector<int32_t> prompt = sample.context;
  const Turn& turn = sample.turns[0];
  prompt.insert(prompt.end(), turn.question.begin(), turn.question.end());
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const std::vector<int32_t> answer,
      Answer(*backend_, model_, prompt, turn.max_tokens));
  EXPECT_EQ(answer, turn.gold);
}

INSTANTIATE_TEST_SUITE_P(
    Tasks, RetrievalModelTest,
    ::testing::Values(Case{"passkey", 1024, 0.5}, Case{"passkey", 4096, 0},
                      Case{"number", 2048, 0}, Case{"kv", 1024, 1},
                      Case{"kv", 4096, 0.3}, Case{"niah_single_2", 1024, 0.5},
                      Case{"niah_multikey_1", 2048, 0.5},
                      Case{"niah_multikey_3", 1024, 0}),
    [](const auto& info) {
      return info.param.task + std::to_string(info.param.length);
    });

}  // namespace
}  // namespace overture::clients
