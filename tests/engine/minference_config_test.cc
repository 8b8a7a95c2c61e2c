#include "engine/minference_config.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace overture::engine {
namespace {

using ::overture::testing::IsOk;
using ::overture::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

using kernels::VerticalSlashSize;

absl::StatusOr<HeadSizes> Parse(const std::string& text) {
  return ParseMInferenceConfig(text, "c.json", /*num_layers=*/2,
                               /*num_q_heads=*/3);
}

// Two layers, of which the second is `layer`.
absl::StatusOr<HeadSizes> ParseLayer(const std::string& layer) {
  return Parse(absl::StrCat("[{}, ", layer, "]"));
}

TEST(MInferenceConfigTest, ReadsBothPatternsAndDefaultsMissingHeads) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const HeadSizes sizes,
      Parse(R"([{"0": ["vertical_and_slash", 30, 800, 336]},
                {"2": ["stream_llm", 100, 800, 0.97],
                 "1": ["vertical_and_slash", 3500, 100, 1e3]}])"));
  ASSERT_EQ(sizes.num_layers(), 2);
  const VerticalSlashSize missing = {1000, 6096};
  EXPECT_THAT(sizes.layer(0),
              ElementsAre(VerticalSlashSize{30, 800}, missing, missing));
  // Sinks and window, and nothing that a probe chooses.
  EXPECT_THAT(sizes.layer(1),
              ElementsAre(missing, VerticalSlashSize{3500, 100},
                          VerticalSlashSize{100, 800, 100, 800}));
}

TEST(MInferenceConfigTest, BlockSparseHeadsKeepAHundredBlocksOf64Keys) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const HeadSizes sizes,
      ParseLayer(R"({"1": ["block_sparse", 1000, 6096, 0]})"));
  VerticalSlashSize head = kernels::StaticSize(64, 1);
  head.blocks.count = 50;
  EXPECT_EQ(sizes.layer(1)[1], head);
  EXPECT_THAT(ParseLayer(R"({"1": ["block_sparse", -1, 6096, 0]})"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("layer 1: head 1")));
}

TEST(MInferenceConfigTest, NonsenseIsRefusedWithFileLayerAndHead) {
  const auto expect = [](const std::string& entry, const char* message) {
    EXPECT_THAT(ParseLayer(absl::StrCat(R"({"2": )", entry, "}")),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("c.json: layer 1: head 2"),
                               HasSubstr(message))))
        << entry;
  };
  expect("null", "not [pattern, int, int, score]");
  expect("{}", "not [pattern, int, int, score]");
  expect("[]", "not [pattern, int, int, score]");
  expect(R"(["vertical_and_slash", 1, 1])", "not [pattern");
  expect(R"(["vertical_and_slash", 1, 1, "0"])", "not [pattern");
  expect(R"(["vertical_and_slash", 1, 1, 0, 0])", "not [pattern");
  expect(R"([7, 1, 1, 0])", "not [pattern");
  expect(R"(["dilated", 1, 1, 0])", "pattern is unknown");
  expect(R"(["vertical_and_slash", -1, 1, 0])", "vertical size is -1");
  expect(R"(["vertical_and_slash", 1.5, 1, 0])", "vertical size is 1.5");
  expect(R"(["vertical_and_slash", 1, "1", 0])", "slash size is string");
  expect(R"(["vertical_and_slash", 1, 2147483648, 0])",
         "slash size is 2147483648");
  expect(R"(["vertical_and_slash", 1, 18446744073709551615, 0])",
         "slash size is 18446744073709551615");
  expect(R"(["vertical_and_slash", 1, -9223372036854775808, 0])", "slash size");
  expect(R"(["stream_llm", -1, 1, 0])", "initial tokens is -1");
  expect(R"(["stream_llm", 0, 0, 0])", "local tokens is 0");
}

TEST(MInferenceConfigTest, AHeadNamedTwiceIsRefused) {
  EXPECT_THAT(
      ParseMInferenceConfig(
          R"([{"0": ["vertical_and_slash", 1, 1, 1],
               "1": ["vertical_and_slash", 1, 1, 1],
               "0": ["vertical_and_slash", 900, 900, 1]}])",
          "twice.json", 1, 2),
      StatusIs(absl::StatusCode::kInvalidArgument,
               AllOf(HasSubstr("twice.json"), HasSubstr("'0' stands twice"))));
}

TEST(MInferenceConfigTest, HeadsOutsideTheModelAreRefused) {
  for (const char* head : {"3", "-1", "01", "+1", " 1", "1.0", "one", "",
                           "99999999999999999999"}) {
    EXPECT_THAT(ParseLayer(absl::StrCat(
                    R"({")", head, R"(": ["vertical_and_slash", 1, 1, 0]})")),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("c.json: layer 1"),
                               HasSubstr("below num_q_heads = 3"))))
        << head;
  }
}

TEST(MInferenceConfigTest, AnotherShapeOrNoSuchFileIsRefused) {
  EXPECT_THAT(
      Parse("[{}]"),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("has 1 layers, the model has num_layers = 2")));
  EXPECT_THAT(Parse("[{}, {}, {}]"),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Parse("{}"), StatusIs(absl::StatusCode::kInvalidArgument,
                                    HasSubstr("expected a list of layers")));
  EXPECT_THAT(Parse("[{}, []]"), StatusIs(absl::StatusCode::kInvalidArgument,
                                          HasSubstr("c.json: layer 1")));
  EXPECT_THAT(Parse("[{}, {"), StatusIs(absl::StatusCode::kInvalidArgument,
                                        HasSubstr("c.json")));
  EXPECT_THAT(Parse(""), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Parse(std::string(100000, '[')),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(MInferenceConfigTest, EveryTruncationOfAFileIsRefused) {
  const std::string text = R"([{"0": ["vertical_and_slash", 30, 800, 336]},
                               {"2": ["stream_llm", 100, 800, 0.97]}])";
  ASSERT_THAT(Parse(text), IsOk());
  for (size_t length = 0; length < text.size(); ++length) {
    EXPECT_THAT(Parse(text.substr(0, length)),
                StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST(MInferenceConfigTest, LoadsAFileAndNamesItInErrors) {
  const testing::TempDir dir;
  const std::string path = dir.Join("pattern.json");
  std::ofstream(path) << R"([{"0": ["stream_llm", 4, 8, 0]}])";
  OVERTURE_ASSERT_OK_AND_ASSIGN(const HeadSizes sizes,
                                LoadMInferenceConfig(path, 1, 1));
  EXPECT_THAT(sizes.layer(0), ElementsAre(kernels::StaticSize(4, 8)));
  EXPECT_THAT(LoadMInferenceConfig(path, 2, 1),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(path)));
  EXPECT_THAT(LoadMInferenceConfig(dir.Join("absent.json"), 1, 1),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("absent.json")));
}

// The published files, outside the repository. Shapes are those of the models.
TEST(MInferenceConfigTest, ReadsEveryPublishedFile) {
  const char* data = std::getenv("OVERTURE_SHARED_DATA");
  const std::string folder = absl::StrCat(
      data != nullptr ? data : "../shared/data", "/minference-configs");
  if (!std::filesystem::is_directory(folder)) {
    GTEST_SKIP() << "no folder " << folder
                 << "; OVERTURE_SHARED_DATA names its parent";
  }
  struct Shape {
    const char* prefix;
    int32_t num_layers, num_q_heads, num_a_shape;
  };
  const Shape shapes[] = {
      {"GLM_4_9B", 40, 32, 0},     {"Llama_3.1_70B", 80, 64, 0},
      {"Llama_3.1_8B", 32, 32, 0}, {"Llama_3_70B", 80, 64, 0},
      {"Llama_3_8B", 32, 32, 0},   {"Phi_3_mini", 32, 32, 43},
      {"Qwen2.5_14B", 48, 40, 0},  {"Qwen2.5_32B", 64, 40, 0},
      {"Qwen2.5_72B", 80, 64, 0},  {"Qwen2.5_7B", 28, 28, 0},
      {"Qwen2_7B", 28, 28, 0},     {"Yi_9B", 48, 32, 0}};
  int num_files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    const std::string name = entry.path().filename();
    SCOPED_TRACE(name);
    const Shape* shape = nullptr;
    for (const Shape& s : shapes) {
      if (name.rfind(s.prefix, 0) == 0) shape = &s;
    }
    ASSERT_NE(shape, nullptr) << "a file this test does not know";
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const HeadSizes sizes,
        LoadMInferenceConfig(entry.path(), shape->num_layers,
                             shape->num_q_heads));
    int num_a_shape = 0;
    for (int32_t layer = 0; layer < sizes.num_layers(); ++layer) {
      for (const VerticalSlashSize& size : sizes.layer(layer)) {
        // Some (30, 100) heads would be static too; the files have none.
        num_a_shape += kernels::IsStatic(size);
        EXPECT_GE(size.vertical, 30);
        EXPECT_GE(size.slash, 100);
      }
    }
    EXPECT_EQ(num_a_shape, shape->num_a_shape);
    if (name.rfind("Llama_3_8B", 0) == 0) {
      std::map<std::pair<int32_t, int32_t>, int> heads;
      for (int32_t layer = 0; layer < sizes.num_layers(); ++layer) {
        for (const VerticalSlashSize& size : sizes.layer(layer)) {
          ++heads[{size.vertical, size.slash}];
        }
      }
      // As its authors' file has them, all 1,024.
      EXPECT_THAT(
          heads,
          ElementsAre(Pair(Pair(30, 800), 278), Pair(Pair(100, 800), 153),
                      Pair(Pair(500, 700), 31), Pair(Pair(1000, 6096), 473),
                      Pair(Pair(3500, 100), 89)));
    }
    ++num_files;
  }
  EXPECT_EQ(num_files, 14);
}

TEST(MInferenceConfigJson, NamesTheHeadThatItsFormatCannotSay) {
  for (const kernels::VerticalSlashSize& size :
       std::vector<kernels::VerticalSlashSize>{
           {.mass = 0.5f}, {.blocks = {.count = 3}}, {.forced_columns = 4}}) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(const HeadSizes sizes,
                                  HeadSizes::Create({{{}, size}}));
    EXPECT_THAT(MInferenceConfigJson(sizes, {{1, 1}}),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("layer 0: head 1")));
  }
}

}  // namespace
}  // namespace overture::engine
