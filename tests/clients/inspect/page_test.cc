#include "clients/inspect/page.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/prefill_harness.h"
#include "tests/support/status_matchers.h"

namespace overture::clients {
namespace {

using ::overture::testing::LoadedTinyModel;
using ::overture::testing::RandomTokens;
using ::overture::testing::RecordedPrefill;
using ::overture::testing::RunPrefill;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(InspectPage, HoldsEveryHeadAndNoTextThatActs) {
  const LoadedTinyModel model({});
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const auto backend,
      engine::CreateCpuBackend(model.files(), engine::ComputeDType::kF32));
  const engine::ModelConfig& config = backend->config();
  const std::vector<int32_t> tokens = RandomTokens(300, 320, 5);
  engine::AttentionProfiler profiler(config, backend->kv_layout(), 300);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const RecordedPrefill run,
      RunPrefill(*backend, tokens,
                 {.selector = {.kind = engine::SelectorSpec::Kind::kAShape,
                               .num_initial = 64,
                               .num_local = 64},
                  .audit_rows = 64,
                  .observer = &profiler}));
  const std::string evil = "</script><script>alert(1)</script>@DATA@\xff";
  const std::string page = InspectPage({.model = evil,
                                        .prompt = evil,
                                        .policy = "a_shape/1 <b>",
                                        .backend = "cpu",
                                        .num_tokens = 300},
                                       config, run.output, profiler);
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  EXPECT_THAT(page, Not(HasSubstr("<b>\"")));
  // Loads nothing.
  EXPECT_THAT(page, Not(HasSubstr("://")));
  EXPECT_THAT(page, Not(HasSubstr("src=")));

  const std::string open = "id=\"data\">";
  const size_t begin = page.find(open) + open.size();
  const auto data = nlohmann::json::parse(
      page.substr(begin, page.find("</script>", begin) - begin));
  EXPECT_EQ(data["model"], "</script><script>alert(1)</script>@DATA@\ufffd");
  ASSERT_EQ(data["list"].size(), config.num_layers * config.num_q_heads);
  EXPECT_EQ(data["rows"].size(), 64);
  EXPECT_EQ(data["keys"].size(), 64);
  const auto& head = data["list"][config.num_q_heads + 1];
  EXPECT_EQ(head["layer"], 1);
  EXPECT_EQ(head["head"], 1);
  // The last layer computes the last row: 64 initial keys, and from key 192 on.
  EXPECT_NEAR(head["density"], (64 + 300 - 192) / 300.0, 1e-4);
  EXPECT_NEAR(head["kept"], run.output.audit[1].kept[1], 1e-4);
  EXPECT_EQ(head["kept"], head["worst"]);
  EXPECT_EQ(head["map"].get<std::string>().size(), (64 * 64 + 2) / 3 * 4);
}

}  // namespace
}  // namespace overture::clients
