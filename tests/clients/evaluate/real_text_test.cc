#include "clients/evaluate/real_text.h"

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace overture::clients {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::SizeIs;
using ::testing::StartsWith;

absl::StatusOr<std::vector<int32_t>> Letters(absl::string_view text) {
  return std::vector<int32_t>(text.begin(), text.end());
}

class RealTextTest : public ::testing::Test {
 protected:
  void Write(const std::string& name, size_t size, char letter) {
    std::ofstream(dir_.Join(name)) << std::string(size, letter);
  }
  absl::StatusOr<RealText> Load(const std::string& paths) {
    return RealText::Load(paths, Letters);
  }

  overture::testing::TempDir dir_;
};

TEST_F(RealTextTest, ASampleIsAnExcerptAndHowItGoesOn) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += std::to_string(1000 + i);
  std::ofstream(dir_.Join("a")) << text;
  OVERTURE_ASSERT_OK_AND_ASSIGN(const RealText corpus, Load(dir_.Join("a")));
  EXPECT_THAT(corpus.task(), StartsWith("text:"));
  std::set<std::string> starts;
  for (int64_t seed = 0; seed < 20; ++seed) {
    const SampleId id = {corpus.task(), 100, 0.5, seed};
    OVERTURE_ASSERT_OK_AND_ASSIGN(const Sample sample, corpus.MakeSample(id));
    EXPECT_THAT(sample.context, SizeIs(100));
    ASSERT_THAT(sample.turns, SizeIs(1));
    EXPECT_THAT(sample.turns[0].question, SizeIs(0));
    EXPECT_THAT(sample.turns[0].gold, SizeIs(kContinuationTokens));
    EXPECT_TRUE(sample.by_likelihood);
    std::string whole(sample.context.begin(), sample.context.end());
    whole.append(sample.turns[0].gold.begin(), sample.turns[0].gold.end());
    EXPECT_THAT(text, HasSubstr(whole));
    starts.insert(whole.substr(0, 8));
    EXPECT_EQ(corpus.MakeSample(id)->context, sample.context);
  }
  EXPECT_GT(starts.size(), 10u);
}

TEST_F(RealTextTest, AFileThatIsTooShortIsPassedOver) {
  std::filesystem::create_directory(dir_.Join("folder"));
  Write("folder/a", 300, 'a');
  Write("folder/b", 400, 'b');
  std::filesystem::create_directory(dir_.Join("folder/inside"));
  std::filesystem::create_symlink(dir_.Join("folder/a"), dir_.Join("folder/c"));
  OVERTURE_ASSERT_OK_AND_ASSIGN(const RealText corpus,
                                Load(dir_.Join("folder")));
  // One place: the whole of the second file.
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const Sample sample,
      corpus.MakeSample({corpus.task(), 400 - kContinuationTokens, 0, 1}));
  EXPECT_EQ(sample.context[0], 'b');
  EXPECT_THAT(corpus.MakeSample({corpus.task(), 300, 0, 1}),
              StatusIs(absl::StatusCode::kOutOfRange,
                       HasSubstr("needs a file of 428, the longest in --text "
                                 "has 400")));
}

TEST_F(RealTextTest, TheTaskNamesTheContents) {
  Write("a", 300, 'a');
  Write("b", 300, 'b');
  const auto task = [this](const std::string& paths) {
    return Load(paths)->task();
  };
  EXPECT_EQ(task(dir_.Join("a")), task(dir_.Join("a")));
  EXPECT_NE(task(dir_.Join("a")), task(dir_.Join("b")));
  EXPECT_NE(task(dir_.Join("a")), task(dir_.Join("a") + ";" + dir_.Join("b")));
}

TEST_F(RealTextTest, APathWithoutTextIsNamed) {
  EXPECT_THAT(Load(dir_.Join("absent")),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("absent")));
  std::filesystem::create_directory(dir_.Join("empty"));
  EXPECT_THAT(Load(dir_.Join("empty")),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("empty")));
}

}  // namespace
}  // namespace overture::clients
