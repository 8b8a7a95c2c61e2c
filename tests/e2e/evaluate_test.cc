// overture evaluate, whole: what it writes, that a killed run continues, and
// the gate: scores of every supported selector and view that may not fall.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "clients/evaluate/record.h"
#include "clients/tool/child_process.h"
#include "clients/tool/request_text.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/harness.h"
#include "tests/support/status_matchers.h"

namespace overture::testing {
namespace {

using clients::Record;
using ::testing::HasSubstr;

constexpr char kModel[] = "tests/data/retrieval_model/small";

class EvaluateTest : public EndToEndTest {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kModel)) {
      GTEST_SKIP() << "no folder " << kModel << " below the current one";
    }
  }

  std::vector<std::string> Args(const std::vector<std::string>& grid) {
    std::vector<std::string> args = {"evaluate",
                                     absl::StrCat("--model=", kModel),
                                     absl::StrCat("--out=", out_)};
    args.insert(args.end(), grid.begin(), grid.end());
    return args;
  }
  std::string Evaluate(const std::vector<std::string>& grid) {
    const ProgramResult run =
        RunProgram("overture", Args(grid), "", absl::Seconds(150));
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return run.out;
  }
  std::string File(const std::string& name) {
    return clients::ReadTextFile(out_ + "/" + name).value_or("");
  }
  // Lines behind the header, each a record with a key of its own.
  std::vector<Record> Records() {
    std::vector<Record> records;
    std::set<std::string> keys;
    const std::string text = File("records.jsonl");
    for (size_t at = text.find('\n') + 1; at < text.size();) {
      const size_t end = text.find('\n', at);
      auto record = clients::RecordFromJson(
          nlohmann::json::parse(text.substr(at, end - at)));
      EXPECT_THAT(record, IsOk());
      EXPECT_TRUE(keys.insert(Key(*record)).second) << Key(*record);
      records.push_back(*std::move(record));
      at = end + 1;
    }
    return records;
  }

  const std::string out_ = dir_.Join("evaluation");
};

TEST_F(EvaluateTest, AKilledRunContinuesAndRepeatsNothing) {
  const std::vector<std::string> grid = {"--tasks=passkey;kv", "--lengths=512",
                                         "--depths=0;1", "--selectors=dense",
                                         "--views=full;snapkv:32,128"};
  std::vector<std::string> argv = {ProgramPath("overture")};
  for (const std::string& arg : Args(grid)) argv.push_back(arg);
  {
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        clients::ChildProcess run,
        clients::ChildProcess::Start({.argv = argv,
                                      .stdout_path = dir_.Join("killed.out"),
                                      .stderr_path = dir_.Join("killed.err")}));
    // Killed behind the second of eight records.
    while (true) {
      const std::string text = File("records.jsonl");
      if (std::count(text.begin(), text.end(), '\n') >= 3) break;
      ASSERT_FALSE(run.Wait(absl::Milliseconds(5)).ok()) << "ended by itself";
    }
    run.Kill();
  }
  const std::string before = File("records.jsonl");
  EXPECT_EQ(File("summary.md"), "");

  Evaluate(grid);
  const std::string after = File("records.jsonl");
  EXPECT_EQ(after.substr(0, before.rfind('\n') + 1),
            before.substr(0, before.rfind('\n') + 1));
  EXPECT_EQ(Records().size(), 8u);

  // Nothing is left to do, so nothing is asked.
  EXPECT_THAT(Evaluate(grid), HasSubstr("## kv"));
  EXPECT_EQ(File("records.jsonl"), after);
  for (const char* name : {"heat.svg", "density.svg", "bytes.svg"}) {
    EXPECT_THAT(File(name), HasSubstr("</svg>")) << name;
  }
}

TEST_F(EvaluateTest, TurnsReuseWhatEarlierOnesStored) {
  Evaluate({"--tasks=kv", "--lengths=1024", "--depths=0.5", "--selectors=dense",
            "--views=full", "--questions=last;hidden", "--mode=multi_turn",
            "--turns=2"});
  const std::vector<Record> records = Records();
  ASSERT_EQ(records.size(), 4u);
  for (const Record& record : records) {
    EXPECT_TRUE(record.score.right) << Key(record);
    EXPECT_EQ(record.reused_tokens > 0, record.turn > 0) << Key(record);
  }
}

TEST_F(EvaluateTest, AStoredViewServesLaterTurnsWithoutAPrefillOfTheirOwn) {
  Evaluate({"--tasks=kv", "--lengths=2048", "--depths=0.5", "--selectors=dense",
            "--views=full;snapkv:32,256", "--mode=stored_view", "--turns=2"});
  const std::vector<Record> records = Records();
  ASSERT_EQ(records.size(), 4u);
  for (const Record& record : records) {
    EXPECT_EQ(record.reused_tokens, 0) << Key(record);
    // The view holds what the first question asked for.
    const bool held =
        record.configuration.view == clients::kFull || record.turn == 0;
    EXPECT_EQ(record.score.right, held) << Key(record);
  }
}

TEST_F(EvaluateTest, RealTextIsComparedWithDenseAlsoWhenARunContinues) {
  const std::string text = dir_.Join("text");
  {
    std::ofstream file(text);
    for (int i = 0; i < 60; ++i) {
      file << "the grass is green . here we go . the number of words is <d"
           << i % 10 << "> . ";
    }
  }
  const std::vector<std::string> grid = {
      "--tasks=text", "--text=" + text, "--lengths=512",
      "--depths=0.5", "--seeds=2",      "--selectors=dense;a_shape:1,32",
      "--views=full", "--parallel=2",   "--noise-floor"};
  EXPECT_THAT(Evaluate(grid), HasSubstr("perplexity"));
  std::map<std::string, Record> before;
  for (const Record& record : Records()) before[Key(record)] = record;
  ASSERT_EQ(before.size(), 6u);
  for (const auto& [key, record] : before) {
    ASSERT_TRUE(record.likelihood.has_value()) << key;
    EXPECT_EQ(record.likelihood->positions, 127);
    const bool dense = record.configuration.selector == clients::kDense;
    EXPECT_EQ(record.likelihood->kl == 0, dense) << key;
  }
  // The last record is lost; its pair is there, but not its distributions.
  std::string lines = File("records.jsonl");
  lines.pop_back();
  lines.erase(lines.rfind('\n') + 1);
  std::ofstream(out_ + "/records.jsonl") << lines;
  Evaluate(grid);
  const std::vector<Record> after = Records();
  ASSERT_EQ(after.size(), 6u);
  for (const Record& record : after) {
    EXPECT_EQ(record.likelihood, before[Key(record)].likelihood);
  }
}

TEST_F(EvaluateTest, SecondRunsOfDenseMayBeAnotherServers) {
  numerics_ = {"--device=cpu", "--dtype=f32"};
  StartServerWith(kModel);
  Evaluate({"--tasks=passkey", "--lengths=512", "--depths=0.5",
            "--selectors=dense", "--views=full", "--noise-floor",
            absl::StrCat("--noise-server=", server().address())});
  EXPECT_THAT(File("records.jsonl"),
              HasSubstr("\"noise_server\":\"cpu f32, weights=f32"));
  EXPECT_EQ(Records().size(), 2u);
}

TEST_F(EvaluateTest, AServerOfAnotherModelIsRefused) {
  EndToEndTest::SetUp();
  StartServer();
  const ProgramResult run =
      RunProgram("overture", Args({"--server", server().address()}));
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("FAILED_PRECONDITION"));
}

TEST_F(EvaluateTest, WhatIsWrongWithTheGridIsSaidBeforeAnythingRuns) {
  const std::pair<const char*, const char*> cases[] = {
      {"--views=h2o", "'h2o'"},
      {"--selectors=sparse", "'sparse'"},
      {"--tasks=riddle", "'riddle'"},
      {"--seeds=2000000000", "at most 1000000"},
      {"--noise-server=127.0.0.1:1", "needs --noise-floor"},
      {"--parallel=0", "--parallel is 0"},
  };
  for (const auto& [flag, text] : cases) {
    const ProgramResult run = RunProgram("overture", Args({flag}));
    EXPECT_EQ(run.exit_code, 2) << flag;
    EXPECT_THAT(run.err, HasSubstr(text));
    EXPECT_FALSE(std::filesystem::exists(out_));
  }
}

TEST_F(EvaluateTest, AFolderThatCannotBeMadeIsNamed) {
  std::ofstream(out_) << "a file";
  const ProgramResult run = RunProgram("overture", Args({}));
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr(absl::StrCat("--out=", out_)));
}

TEST_F(EvaluateTest, AFolderInUseIsRefused) {
  std::filesystem::create_directory(out_);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const clients::LockedFile file,
                                clients::LockFile(out_ + "/records.jsonl"));
  const ProgramResult run = RunProgram("overture", Args({}));
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr(absl::StrCat("FAILED_PRECONDITION: ", out_,
                                              "/records.jsonl")));
}

TEST_F(EvaluateTest, ResultsOfOtherNumericsAreRefused) {
  std::vector<std::string> grid = {"--tasks=passkey", "--lengths=512",
                                   "--depths=0.5", "--selectors=dense",
                                   "--views=full"};
  numerics_ = {"--device=cpu", "--dtype=bf16"};
  StartServerWith(kModel);
  grid.push_back(absl::StrCat("--server=", server().address()));
  Evaluate(grid);
  const std::string before = File("records.jsonl");
  EXPECT_THAT(before, HasSubstr("weights=bf16 compute=bf16 kv=bf16"));
  EXPECT_THAT(File("summary.md"), HasSubstr("weights=bf16"));

  StartServerWith(kModel, {"--linears=fp8"});
  grid.back() = absl::StrCat("--server=", server().address());
  const ProgramResult run = RunProgram("overture", Args(grid));
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, HasSubstr("another --out"));
  EXPECT_EQ(File("records.jsonl"), before);
}

// The gate. Of 16 samples; what was reached when this was written less one,
// which another machine's rounding may turn. Raise them when something gets
// better; lowering one needs a reason in its commit.
TEST_F(EvaluateTest, ScoresDoNotFall) {
  const std::map<std::string, int> at_least = {
      {"dense", 15},
      {"a_shape:64,512", 8},
      {"tri_shape:64,512", 15},
      {"vertical_slash:64,128", 15},
      {"vertical_slash:256,512,mass=0.8", 14},
      {"vertical_slash:64,128,threshold=0.7", 15},
      {"blocks:threshold=0.1", 12},
      {"dense snapkv:32,256", 15},
  };
  std::vector<std::string> grid = {
      "--tasks=passkey;number;niah_multikey_3;kv",
      "--lengths=1024;2048",
      "--depths=0.25;0.75",
      "--parallel=2",
      "--selectors=dense;a_shape:64,512;tri_shape:64,512;"
      "vertical_slash:64,128;vertical_slash:256,512,mass=0.8;"
      "vertical_slash:64,128,threshold=0.7;blocks:threshold=0.1",
      "--views=full"};
  Evaluate(grid);
  grid[grid.size() - 2] = "--selectors=dense";
  grid.back() = "--views=full;snapkv:32,256";
  Evaluate(grid);
  std::map<std::string, int> right;
  std::map<std::string, int> samples;
  for (const Record& record : Records()) {
    EXPECT_TRUE(record.kept_mass.has_value()) << Key(record);
    right[Label(record.configuration)] += record.score.right ? 1 : 0;
    ++samples[Label(record.configuration)];
  }
  for (const auto& [label, least] : at_least) {
    EXPECT_EQ(samples[label], 16) << label;
    EXPECT_GE(right[label], least) << label;
    std::printf("%s: %d of 16 right, at least %d\n", label.c_str(),
                right[label], least);
  }
}

}  // namespace
}  // namespace overture::testing
