#include "clients/evaluate/tasks.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "base/hash.h"
#include "engine/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::clients {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::SizeIs;

// A word a token, and a byte a token: the two ends of what tokenizers do.
class TasksTest : public ::testing::TestWithParam<Spelling> {
 protected:
  void SetUp() override {
    if (GetParam() == Spelling::kWords) {
      OVERTURE_ASSERT_OK_AND_ASSIGN(
          words_,
          engine::Tokenizer::Load("tests/data/retrieval_model/diffuse"));
    }
  }
  TokenizeText tokenize() const {
    return
        [this](absl::string_view text) -> absl::StatusOr<std::vector<int32_t>> {
          if (words_ != nullptr) return words_->Encode(text, {});
          return std::vector<int32_t>(text.begin(), text.end());
        };
  }
  std::string Text(const std::vector<int32_t>& ids) const {
    if (words_ != nullptr) {
      return words_->Decode(ids, /*keep_special=*/true).value_or("");
    }
    return std::string(ids.begin(), ids.end());
  }
  absl::StatusOr<Sample> Make(const std::string& task, int64_t length,
                              double depth, int64_t seed,
                              int num_turns = 1) const {
    return MakeSample({task, length, depth, seed}, num_turns, GetParam(),
                      tokenize());
  }
  // Long enough for every task.
  int64_t length() const {
    return GetParam() == Spelling::kWords ? 1000 : 4000;
  }

  std::unique_ptr<engine::Tokenizer> words_;
};

// Places where `part` stands, not counting those inside longer words.
std::vector<size_t> Places(const std::string& text, const std::string& part) {
  std::vector<size_t> places;
  const auto is_word = [&text](size_t i) {
    return i < text.size() && (absl::ascii_isalnum(text[i]) || text[i] == '-');
  };
  for (size_t at = text.find(part); at != std::string::npos;
       at = text.find(part, at + 1)) {
    if ((at == 0 || !is_word(at - 1)) && !is_word(at + part.size())) {
      places.push_back(at);
    }
  }
  return places;
}

TEST_P(TasksTest, SamplesHaveExactlyTheLengthAskedFor) {
  for (const std::string& task : TaskNames()) {
    for (const int64_t extra : {0, 1, 7, 500}) {
      OVERTURE_ASSERT_OK_AND_ASSIGN(const Sample sample,
                                    Make(task, length() + extra, 0.5, 1));
      EXPECT_EQ(static_cast<int64_t>(sample.context.size() +
                                     sample.turns[0].question.size()),
                length() + extra)
          << task;
      EXPECT_THAT(sample.turns, SizeIs(1));
      EXPECT_GE(sample.turns[0].max_tokens,
                static_cast<int64_t>(sample.turns[0].gold.size()));
    }
  }
}

TEST_P(TasksTest, EachPartOfTheAnswerIsStatedByTheContext) {
  // How often: twice in a fact of InfiniteBench's, and a name of a chain once
  // as what the next one gets.
  const std::map<std::string, size_t> times = {{"passkey", 2}, {"number", 2}};
  for (const std::string& task : TaskNames()) {
    if (task == "cwe" || task == "fwe" || task == "vt") continue;
    for (int64_t seed = 0; seed < 5; ++seed) {
      OVERTURE_ASSERT_OK_AND_ASSIGN(const Sample sample,
                                    Make(task, length(), 0.3, seed));
      const std::string context = Text(sample.context);
      for (const std::string& part : sample.turns[0].parts) {
        const auto expected = times.find(task);
        EXPECT_THAT(Places(context, part),
                    SizeIs(expected == times.end() ? 1 : expected->second))
            << task << " " << seed << ": " << part;
      }
    }
  }
}

TEST_P(TasksTest, GoldHoldsThePartsInOrder) {
  for (const std::string& task : TaskNames()) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(const Sample sample,
                                  Make(task, length(), 0.3, 4));
    const std::string gold = Text(sample.turns[0].gold);
    size_t at = 0;
    for (const std::string& part : sample.turns[0].parts) {
      at = gold.find(part, at);
      ASSERT_NE(at, std::string::npos) << task << ": " << gold;
      at += part.size();
    }
  }
}

TEST_P(TasksTest, TheAskedFactStandsAtItsDepth) {
  for (const std::string task :
       {"passkey", "number", "kv", "niah_single_2", "niah_multikey_1",
        "niah_multikey_2", "qa_1"}) {
    for (const double depth : {0.0, 0.25, 0.5, 0.75, 1.0}) {
      OVERTURE_ASSERT_OK_AND_ASSIGN(const Sample sample,
                                    Make(task, 4 * length(), depth, 2));
      const std::string context = Text(sample.context);
      const std::vector<size_t> places =
          Places(context, sample.turns[0].parts[0]);
      ASSERT_FALSE(places.empty()) << task;
      // A piece of filler or an item, the fact itself, and the head.
      const double place =
          static_cast<double>(places[0]) / static_cast<double>(context.size());
      EXPECT_NEAR(place, depth, 0.06) << task;
    }
  }
}

TEST_P(TasksTest, CommonWordsAreThoseThatAppearMostOften) {
  for (const std::string task : {"cwe", "fwe"}) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(const Sample sample,
                                  Make(task, 3 * length(), 0.5, 3));
    std::string context = Text(sample.context);
    std::map<std::string, int> counts;
    for (const absl::string_view word :
         absl::StrSplit(context, absl::ByAnyChar(" ,\n."), absl::SkipEmpty())) {
      ++counts[std::string(word)];
    }
    int least = 1000000;
    for (const std::string& part : sample.turns[0].parts) {
      least = std::min(least, counts[part]);
      counts.erase(part);
    }
    int most = 0;
    for (int64_t i = 0; i < kNumFreeWords; ++i) {
      most = std::max(most, counts[FreeWord(i)]);
    }
    EXPECT_GT(least, most) << task;
    EXPECT_TRUE(sample.turns[0].any_order);
  }
}

TEST_P(TasksTest, AChainLeadsFromTheValueToEveryName) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const Sample sample,
                                Make("vt", length(), 0.2, 3));
  const std::string context = Text(sample.context);
  const std::vector<std::string>& names = sample.turns[0].parts;
  ASSERT_THAT(names, SizeIs(5));
  for (size_t i = 0; i + 1 < names.size(); ++i) {
    // Defined once and used once, in this order.
    ASSERT_THAT(Places(context, names[i]), SizeIs(2));
    EXPECT_LT(Places(context, names[i])[1] - Places(context, names[i + 1])[0],
              60u);
  }
  EXPECT_THAT(Places(context, names[4]), SizeIs(1));
}

TEST_P(TasksTest, FurtherTurnsAskForOtherFactsOfTheSameContext) {
  for (const std::string task :
       {"kv", "niah_multikey_1", "niah_multikey_2", "qa_1", "qa_2"}) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(const Sample sample,
                                  Make(task, 3 * length(), 0.5, 1, 3));
    ASSERT_THAT(sample.turns, SizeIs(3));
    const std::string context = Text(sample.context);
    for (const Turn& turn : sample.turns) {
      EXPECT_THAT(Places(context, turn.parts[0]), SizeIs(1)) << task;
    }
    EXPECT_NE(sample.turns[0].question, sample.turns[1].question);
    EXPECT_NE(sample.turns[1].gold, sample.turns[2].gold);
  }
}

TEST_P(TasksTest, EqualIdsGiveEqualSamplesAndOtherSeedsOthers) {
  for (const std::string& task : TaskNames()) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(const Sample a, Make(task, length(), 0.5, 1));
    OVERTURE_ASSERT_OK_AND_ASSIGN(const Sample b, Make(task, length(), 0.5, 1));
    OVERTURE_ASSERT_OK_AND_ASSIGN(const Sample c, Make(task, length(), 0.5, 2));
    EXPECT_EQ(a.context, b.context);
    EXPECT_EQ(a.turns[0].gold, b.turns[0].gold);
    EXPECT_NE(a.turns[0].gold, c.turns[0].gold) << task;
  }
}

TEST_P(TasksTest, WhatCannotBeMadeIsAnError) {
  EXPECT_THAT(Make("riddle", 1000, 0.5, 1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("passkey")));
  EXPECT_THAT(Make("passkey", 1000, 1.5, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("depth")));
  EXPECT_THAT(Make("passkey", 1000, 0.5, 1, 2),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("turns")));
  EXPECT_THAT(Make("kv", 1000, 0.5, 1, 0),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("turns")));
  for (const std::string& task : TaskNames()) {
    EXPECT_THAT(Make(task, 10, 0.5, 1), StatusIs(absl::StatusCode::kOutOfRange))
        << task;
  }
}

// Published tables are reproduced by seeds: a generator that draws otherwise
// needs new tables.
TEST_P(TasksTest, SamplesAreThoseOfThePublishedTables) {
  const std::map<std::string, std::string> words = {
      {"passkey", "6629b21c399be95c"},
      {"number", "d1e74efd00643f51"},
      {"kv", "90c9f9c271e8f8fc"},
      {"niah_single_1", "75ae1d398dbb367f"},
      {"niah_single_2", "9bed87851a53557b"},
      {"niah_single_3", "8bef7dd87ce62fd7"},
      {"niah_multikey_1", "0b55827b39c2bfe3"},
      {"niah_multikey_2", "b211aff5987eec06"},
      {"niah_multikey_3", "4b205f72d26239e1"},
      {"niah_multivalue", "ba1a93f46e444f53"},
      {"niah_multiquery", "a6045be94004c3af"},
      {"vt", "1b8b2565f42fc7ad"},
      {"cwe", "ca9415b7ddcc628e"},
      {"fwe", "842dc22f0c948e3b"},
      {"qa_1", "0b43f7c9fa894472"},
      {"qa_2", "2af9101ecf39f5bb"},
  };
  const std::map<std::string, std::string> text = {
      {"passkey", "62202370269f2595"},
      {"number", "323c855d201d8f12"},
      {"kv", "978717ff0f614ba0"},
      {"niah_single_1", "815c1c6752d28ebe"},
      {"niah_single_2", "12799780b922a742"},
      {"niah_single_3", "c62e43bba5e3b075"},
      {"niah_multikey_1", "8e700232aac114eb"},
      {"niah_multikey_2", "9293ced19c5d3e6c"},
      {"niah_multikey_3", "6b34fee1b905eeff"},
      {"niah_multivalue", "378ede3ae1ffbb3d"},
      {"niah_multiquery", "838dae77ac128059"},
      {"vt", "e56f7524fab86ef4"},
      {"cwe", "fe87c60c352fc94e"},
      {"fwe", "eb381d70781cc504"},
      {"qa_1", "72fcd825de5be95d"},
      {"qa_2", "317ef4a1a650d866"},
  };
  for (const std::string& task : TaskNames()) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(const Sample sample,
                                  Make(task, length(), 0.5, 1));
    Sha256 hash;
    hash.UpdateTokens(sample.context);
    hash.UpdateTokens(sample.turns[0].question);
    hash.UpdateTokens(sample.turns[0].gold);
    const std::string digest = hash.Digest().Hex().substr(0, 16);
    const auto& golden = GetParam() == Spelling::kWords ? words : text;
    const auto expected = golden.find(task);
    ASSERT_NE(expected, golden.end()) << task;
    EXPECT_EQ(digest, expected->second) << task;
  }
}

INSTANTIATE_TEST_SUITE_P(Spellings, TasksTest,
                         ::testing::Values(Spelling::kWords, Spelling::kText),
                         [](const auto& info) {
                           return info.param == Spelling::kWords ? "Words"
                                                                 : "Text";
                         });

}  // namespace
}  // namespace overture::clients
