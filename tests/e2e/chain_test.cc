// The whole chain: prefill over gRPC, fetch, decode in another process.
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/harness.h"
#include "tests/support/default_model.h"
#include "tests/support/status_matchers.h"

namespace overture::testing {
namespace {

using clients::DecodeReport;
using clients::PrefillResult;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class ChainTest : public EndToEndTest {};

// Else the tests below could not tell one KV from another.
TEST_F(ChainTest, TheModelsAnswersDependOnEarlyTokens) {
  if (!IsTiny()) GTEST_SKIP() << "is about the tiny random model";
  Question question{.prompt = reference_->RandomPrompt(1500, 7)};
  OVERTURE_ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> answer,
                                reference_->Answer(question));
  EXPECT_GT(std::set<int32_t>(answer.begin(), answer.end()).size(), 4u);
  OVERTURE_EXPECT_OK(reference_->Check(question, answer));
  for (int i = 0; i < 300; ++i) {
    question.prompt[i] = (question.prompt[i] + 1) % 256;
  }
  EXPECT_THAT(reference_->Check(question, answer),
              StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST_F(ChainTest, FullKvDecodesAsTheEngineDoesTokenForToken) {
  StartServer();
  // One token, less than a block, a whole block, blocks and a tail.
  for (int64_t length : {1, 100, 256, 1500}) {
    const std::vector<int32_t> prompt = reference_->RandomPrompt(length, 7);
    OVERTURE_ASSERT_OK_AND_ASSIGN(PrefillResult result,
                                  client().Prefill(Request(prompt)));
    EXPECT_TRUE(result.done.persisted());
    SCOPED_TRACE(length);
    const Question question{.prompt = prompt};
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        DecodeReport answer, Decode(result.done.handle(), question.max_tokens));
    OVERTURE_EXPECT_OK(reference_->Check(question, answer.token_ids));
    EXPECT_EQ(answer.kv_bytes, result.done.stats().kv_bytes());
  }
}

TEST_F(ChainTest, EverySelectorDecodesAsTheEngineDoesTokenForToken) {
  StartServer();
  // More rows than one attention call takes.
  const std::vector<int32_t> prompt = reference_->RandomPrompt(5000, 8);
  {
    v1::PrefillRequest request = Request(prompt);
    request.mutable_selector()->mutable_a_shape()->set_num_initial(64);
    request.mutable_selector()->mutable_a_shape()->set_num_local(256);
    OVERTURE_ASSERT_OK_AND_ASSIGN(PrefillResult result,
                                  client().Prefill(request));
    EXPECT_LT(result.done.stats().density(), 0.6);
    const auto& kept = result.done.stats().kept_mass();
    EXPECT_GE(kept.audited_rows(), 9);
    EXPECT_LT(kept.mean(), 1.0);
    EXPECT_LT(kept.lowest(), kept.mean());
    ExpectAnswer(result.done.handle(),
                 {.prompt = prompt,
                  .selector = {.kind = engine::SelectorSpec::Kind::kAShape,
                               .num_initial = 64,
                               .num_local = 256}});
  }
  {
    v1::PrefillRequest request = Request(prompt);
    request.mutable_selector()->mutable_vertical_slash()->set_vertical(200);
    request.mutable_selector()->mutable_vertical_slash()->set_slash(200);
    request.set_audit_rows(0);
    OVERTURE_ASSERT_OK_AND_ASSIGN(PrefillResult result,
                                  client().Prefill(request));
    EXPECT_LT(result.done.stats().density(), 1.0);
    EXPECT_FALSE(result.done.stats().has_kept_mass());
    // Dense KV of the same prompt is in the store and must not stand in.
    EXPECT_EQ(result.done.stats().reused_tokens(), 0);
    ExpectAnswer(
        result.done.handle(),
        {.prompt = prompt,
         .selector = {.kind = engine::SelectorSpec::Kind::kDynamic,
                      .vertical_slash = {.vertical = 200, .slash = 200}}});
  }
}

TEST_F(ChainTest, AViewDecodesAsTheEngineDoesOverTheSameRows) {
  StartServer();
  const std::vector<int32_t> prompt = reference_->RandomPrompt(2000, 9);
  v1::PrefillRequest request = Request(prompt);
  request.mutable_view()->mutable_snap_kv()->set_window(32);
  request.mutable_view()->mutable_snap_kv()->set_capacity(200);
  OVERTURE_ASSERT_OK_AND_ASSIGN(PrefillResult result,
                                client().Prefill(request));
  const Question question{.prompt = prompt,
                          .view = {{.window = 32, .capacity = 200}}};
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      DecodeReport answer,
      Decode(result.done.handle(), question.max_tokens, "view"));
  // 200 of 2,000 rows.
  EXPECT_EQ(answer.kv_bytes, result.done.stats().kv_bytes() / 10);
  OVERTURE_EXPECT_OK(reference_->Check(question, answer.token_ids));
  // The same handle also serves the full KV.
  ExpectAnswer(result.done.handle(), {.prompt = prompt});
}

TEST_F(ChainTest, TheSecondTurnReusesTheFirstAndDecodesTheSame) {
  StartServer();
  v1::CreateSessionRequest session;
  session.set_id("s");
  OVERTURE_ASSERT_OK(client().CreateSession(session));
  const std::vector<int32_t> first = reference_->RandomPrompt(3000, 10);
  OVERTURE_ASSERT_OK(client().Prefill(Request(first, "s")));
  const std::vector<int32_t> second = reference_->RandomPrompt(70, 11);
  OVERTURE_ASSERT_OK_AND_ASSIGN(PrefillResult result,
                                client().Prefill(Request(second, "s")));
  EXPECT_EQ(result.done.num_tokens(), 3070);
  EXPECT_GE(result.done.stats().reused_tokens(), 2700);  // 90%
  ExpectAnswer(result.done.handle(), {.prompt = Concat(first, second)});
}

TEST_F(ChainTest, TwoClientsAtOnceGetTheirOwnAnswers) {
  StartServer();
  std::vector<std::vector<int32_t>> prompts;
  std::vector<std::string> handles(2);
  std::vector<absl::Status> statuses(2);
  for (uint32_t i = 0; i < 2; ++i) {
    prompts.push_back(reference_->RandomPrompt(2000, 20 + i));
  }
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        auto own = clients::OvertureClient::Connect(server().address());
        if (!own.ok()) {
          statuses[i] = own.status();
          return;
        }
        auto result = (*own)->Prefill(Request(prompts[i]));
        statuses[i] = result.status();
        if (result.ok()) handles[i] = result->done.handle();
      });
    }
  }
  for (size_t i = 0; i < 2; ++i) {
    OVERTURE_ASSERT_OK(statuses[i]);
    ExpectAnswer(handles[i], {.prompt = prompts[i]});
  }
}

TEST_F(ChainTest, AWorkerWithOtherWeightsRefusesTheKv) {
  StartServer();
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      PrefillResult result,
      client().Prefill(Request(reference_->RandomPrompt(100, 1))));
  const ProgramResult run = RunProgram(
      "overture-decode", {"--server", server().address(), "--handle",
                          result.done.handle(), "--model", WriteModel(2)});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("FAILED_PRECONDITION"));
  EXPECT_EQ(run.out, "");
}

TEST_F(ChainTest, TheToolDoesTheSameFromAShell) {
  StartServer();
  const std::vector<int32_t> prompt = reference_->RandomPrompt(600, 12);
  const std::vector<std::string> at = {"--server", server().address(),
                                       "--json"};
  auto tool = [&](std::vector<std::string> args) {
    args.insert(args.end(), at.begin(), at.end());
    ProgramResult run = RunProgram("overture", args);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return nlohmann::json::parse(run.out, nullptr, /*allow_exceptions=*/false);
  };
  const std::string tokens = absl::StrJoin(prompt, ",");
  const nlohmann::json prefill =
      tool({"prefill", "--tokens", tokens, "--view", "snapkv:32,64"});
  ASSERT_TRUE(prefill.contains("handle"));
  EXPECT_EQ(prefill["num_tokens"], 600);
  const std::string handle = prefill["handle"];

  // 512 tokens are whole blocks; the tail counts only for its very prompt.
  const nlohmann::json lookup = tool({"lookup", "--tokens", tokens});
  EXPECT_EQ(lookup["matched_tokens"], 600);
  EXPECT_LE(lookup["reusable_tokens"], 536);
  EXPECT_GE(lookup["reusable_tokens"], 512);

  const nlohmann::json description = tool({"describe", "--handle", handle});
  EXPECT_EQ(description["logical_length"], 600);
  EXPECT_EQ(description["has_view"], true);
  const KvLayout& layout = reference_->layout();
  EXPECT_THAT(description["view_rows"],
              SizeIs(layout.num_layers * layout.num_kv_heads));

  const Question question{.prompt = prompt};
  const ProgramResult decode = RunProgram(
      "overture", {"decode", "--server", server().address(), "--handle", handle,
                   "--model", model_path_, "--compute", "f32", "--max-tokens",
                   absl::StrCat(question.max_tokens), "--json", "-"});
  ASSERT_EQ(decode.exit_code, 0) << decode.err;
  OVERTURE_ASSERT_OK_AND_ASSIGN(DecodeReport answer,
                                clients::ParseDecodeReport(decode.out));
  OVERTURE_EXPECT_OK(reference_->Check(question, answer.token_ids));

  EXPECT_EQ(tool({"release", "--handle", handle})["released"], 1);
  EXPECT_EQ(RunProgram("overture", {"describe", "--server", server().address(),
                                    "--handle", handle})
                .exit_code,
            1);
}

TEST_F(ChainTest, ChatKeepsItsHistoryInASession) {
  StartServer();
  const ProgramResult run = RunProgram(
      "overture",
      {"chat", "--server", server().address(), "--model", model_path_,
       "--session", "talk", "--max-tokens", "8", "--compute", "f32"},
      "hello there\n\nand again\n");
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_NE(run.out, "");
  OVERTURE_ASSERT_OK_AND_ASSIGN(v1::Session session,
                                client().GetSession("talk", true));
  EXPECT_EQ(session.num_turns(), 2);
  if (!IsTiny()) GTEST_SKIP() << "its tokenizer may not spell what follows";
  // The second turn brought the first answer and the template around it.
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      std::string history,
      client().Detokenize(std::vector<int32_t>(session.token_ids().begin(),
                                               session.token_ids().end())));
  EXPECT_THAT(history, HasSubstr("User: hello there\nAssistant:"));
  EXPECT_THAT(history, HasSubstr("\nUser: and again\nAssistant:"));
}

TEST_F(ChainTest, TheDefaultModelAnswersAQuestion) {
  const std::string model = DefaultModelPath();
  if (model.empty()) GTEST_SKIP() << kNoDefaultModel;
  StartServerWith(model);
  v1::PrefillRequest request;
  request.set_text(
      "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n"
      "<|im_start|>assistant\n");
  OVERTURE_ASSERT_OK_AND_ASSIGN(PrefillResult result,
                                client().Prefill(request));
  model_path_ = model;
  OVERTURE_ASSERT_OK_AND_ASSIGN(DecodeReport answer,
                                Decode(result.done.handle(), 16));
  EXPECT_THAT(answer.text, HasSubstr("Paris"));
}

}  // namespace
}  // namespace overture::testing
