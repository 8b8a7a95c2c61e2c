#include "clients/evaluate/record.h"

#include <fstream>
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace overture::clients {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::SizeIs;

const RecordHeader kHeader = {.weights_digest = "aa",
                              .tokenizer_digest = "bb",
                              .spelling = "words",
                              .backend = "cpu bf16"};

Record MakeRecord(int64_t seed) {
  return {.sample = {"kv", 1024, 0.25, seed},
          .mode = Mode::kMultiTurn,
          .turn = 2,
          .configuration = {"a_shape:1,2", "snapkv:32,256", kHidden, 1},
          .score = {.right = true, .tail = false, .share = 0.75},
          .answer = {1, 2, 3},
          .text = "half a character: \xc3",
          .density = 0.5,
          .kv_bytes = 1 << 20,
          .ttft_seconds = 0.125,
          .reused_tokens = 256};
}

class RecordFileTest : public ::testing::Test {
 protected:
  std::unique_ptr<RecordFile> Open() {
    auto file = RecordFile::Open(path_, kHeader);
    OVERTURE_EXPECT_OK(file);
    return file.ok() ? *std::move(file) : nullptr;
  }
  std::string Contents() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  overture::testing::TempDir dir_;
  const std::string path_ = dir_.Join("records.jsonl");
};

TEST_F(RecordFileTest, RecordsComeBackAsTheyWere) {
  OVERTURE_ASSERT_OK(Open()->Append(MakeRecord(1)));
  const auto file = Open();
  ASSERT_THAT(file->records(), SizeIs(1));
  const Record& record = file->records()[0];
  Record expected = MakeRecord(1);
  expected.text = "half a character: \xef\xbf\xbd";
  EXPECT_EQ(ToJson(record), ToJson(expected));
  EXPECT_TRUE(file->Has(MakeRecord(1)));
  EXPECT_FALSE(file->Has(MakeRecord(2)));
}

TEST_F(RecordFileTest, ATornLastLineIsCutOffAndWrittenAnew) {
  {
    const auto file = Open();
    OVERTURE_ASSERT_OK(file->Append(MakeRecord(1)));
    OVERTURE_ASSERT_OK(file->Append(MakeRecord(2)));
  }
  const std::string whole = Contents();
  // Every place where a kill may have stopped the second record.
  const size_t begin = whole.rfind('\n', whole.size() - 2) + 1;
  for (size_t size = begin; size < whole.size(); size += 13) {
    std::ofstream(path_) << whole.substr(0, size);
    const auto file = Open();
    ASSERT_NE(file, nullptr);
    EXPECT_THAT(file->records(), SizeIs(1));
    OVERTURE_ASSERT_OK(file->Append(MakeRecord(2)));
    EXPECT_EQ(Contents(), whole);
  }
}

TEST_F(RecordFileTest, NothingStandsThereTwice) {
  const auto file = Open();
  OVERTURE_ASSERT_OK(file->Append(MakeRecord(1)));
  EXPECT_THAT(file->Append(MakeRecord(1)),
              StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(file->records(), SizeIs(1));
}

TEST_F(RecordFileTest, AFileOfAnotherModelIsRefused) {
  Open();
  RecordHeader other = kHeader;
  other.weights_digest = "cc";
  EXPECT_THAT(RecordFile::Open(path_, other),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("another --out")));
}

TEST_F(RecordFileTest, ALineThatIsNoRecordIsNamed) {
  Open();
  std::ofstream(path_, std::ios::app) << "{\"task\": 7}\n";
  EXPECT_THAT(RecordFile::Open(path_, kHeader),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("line 2")));
}

TEST_F(RecordFileTest, KeysTellApartWhateverDiffers) {
  const Record record = MakeRecord(1);
  const auto differs = [&record](auto change) {
    Record other = record;
    change(other);
    EXPECT_NE(Key(other), Key(record));
  };
  differs([](Record& r) { r.sample.depth = 0.5; });
  differs([](Record& r) { r.mode = Mode::kSingle; });
  differs([](Record& r) { r.turn = 0; });
  differs([](Record& r) { r.configuration.selector = kDense; });
  differs([](Record& r) { r.configuration.view = kFull; });
  differs([](Record& r) { r.configuration.question = kLast; });
  differs([](Record& r) { r.configuration.repeat = 0; });
}

}  // namespace
}  // namespace overture::clients
