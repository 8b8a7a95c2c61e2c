#include "clients/evaluate/record.h"

#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace overture::clients {
namespace {

using ::overture::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

const RecordHeader kHeader = {.weights_digest = "aa",
                              .tokenizer_digest = "bb",
                              .spelling = "words",
                              .backend = "cpu bf16",
                              .numerics = "weights=bf16",
                              .head_sizes_digest = "cc",
                              .noise_server = "cuda bf16"};

Record MakeRecord(int64_t seed) {
  return {.sample = {"kv", 1024, 0.25, seed},
          .mode = Mode::kMultiTurn,
          .turn = 2,
          .configuration = {"a_shape:1,2", "snapkv:32,256", kHidden, 1},
          .score = {.right = true, .tail = false, .share = 0.75},
          .answer = {1, 2, 3},
          .text = "half a character: \xc3",
          .density = 0.5,
          .kept_mass = KeptMass{.mean = 0.875, .lowest = 0.125},
          .selector_seconds = 0.0625,
          .kv_bytes = 1 << 20,
          .ttft_seconds = 0.125,
          .reused_tokens = 256};
}

class RecordFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<RecordFile>> TryOpen(
      const RecordHeader& header = kHeader) {
    OVERTURE_ASSIGN_OR_RETURN(LockedFile file, LockFile(path_));
    return RecordFile::Open(std::move(file), header);
  }
  std::unique_ptr<RecordFile> Open() {
    auto file = TryOpen();
    OVERTURE_EXPECT_OK(file);
    return file.ok() ? *std::move(file) : nullptr;
  }
  void Write(const std::string& text) { std::ofstream(path_) << text; }
  // Is no file of ours, and stays as it is.
  void ExpectRefused(const std::string& text) {
    Write(text);
    EXPECT_THAT(TryOpen(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                    HasSubstr("another --out")))
        << text;
    EXPECT_EQ(Contents(), text);
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
  const Record record = file->records()[0];
  Record expected = MakeRecord(1);
  expected.text = "half a character: \xef\xbf\xbd";
  EXPECT_EQ(ToJson(record), ToJson(expected));
  EXPECT_TRUE(file->Has(MakeRecord(1)));
  EXPECT_FALSE(file->Has(MakeRecord(2)));
}

TEST_F(RecordFileTest, RealTextHasALikelihoodAndNoAnswer) {
  Record record = MakeRecord(1);
  record.kept_mass.reset();
  record.likelihood = {
      .positions = 127, .loss = 2.5, .kl = 0.25, .agreement = 0.75};
  OVERTURE_ASSERT_OK(Open()->Append(record));
  const std::vector<Record> records = Open()->records();
  ASSERT_THAT(records, SizeIs(1));
  EXPECT_EQ(records[0].likelihood, record.likelihood);
  EXPECT_EQ(records[0].kept_mass, std::nullopt);
  EXPECT_THAT(Contents(), Not(HasSubstr("answer")));
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

TEST_F(RecordFileTest, ATornHeaderIsWrittenAnew) {
  Open();
  const std::string whole = Contents();
  for (size_t size = 0; size < whole.size(); size += 7) {
    Write(whole.substr(0, size));
    OVERTURE_EXPECT_OK(TryOpen());
    EXPECT_EQ(Contents(), whole);
  }
}

TEST_F(RecordFileTest, ResultsOfAnythingElseAreRefused) {
  OVERTURE_ASSERT_OK(Open()->Append(MakeRecord(1)));
  // A last line that is torn is not cut off, either.
  Write(Contents() + "{\"task");
  const std::string before = Contents();
  const auto refused = [&](auto change) {
    RecordHeader other = kHeader;
    change(other);
    EXPECT_THAT(TryOpen(other), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         HasSubstr("another --out")));
    EXPECT_EQ(Contents(), before);
  };
  refused([](RecordHeader& h) { h.weights_digest = "x"; });
  refused([](RecordHeader& h) { h.tokenizer_digest = "x"; });
  refused([](RecordHeader& h) { h.spelling = "text"; });
  refused([](RecordHeader& h) { h.backend = "cpu f32"; });
  refused([](RecordHeader& h) { h.numerics = "weights=e4m3"; });
  refused([](RecordHeader& h) { h.head_sizes_digest = ""; });
  refused([](RecordHeader& h) { h.noise_server = ""; });
}

TEST_F(RecordFileTest, AForeignFileIsLeftAlone) {
  ExpectRefused("\n");
  ExpectRefused("\n\n\n");
  ExpectRefused("notes without an end of line");
  ExpectRefused("notes\nand more");
  ExpectRefused("{\"overture_evaluation\": 1}\n");
  ExpectRefused(std::string("\0\xff", 2));
}

TEST_F(RecordFileTest, ALineThatIsNoRecordIsNamed) {
  OVERTURE_ASSERT_OK(Open()->Append(MakeRecord(1)));
  const std::string whole = Contents();
  for (const char* line : {"{\"task\": 7}", "", "[]"}) {
    Write(whole + line + "\ntorn");
    EXPECT_THAT(TryOpen(),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("line 3")));
    EXPECT_EQ(Contents(), whole + line + "\ntorn");
  }
}

TEST_F(RecordFileTest, ALineThatRepeatsARecordIsNamed) {
  OVERTURE_ASSERT_OK(Open()->Append(MakeRecord(1)));
  const std::string whole = Contents();
  Write(whole + whole.substr(whole.find('\n') + 1));
  EXPECT_THAT(TryOpen(), StatusIs(absl::StatusCode::kDataLoss,
                                  HasSubstr("line 3 repeats kv/1024")));
}

TEST_F(RecordFileTest, OneAtATimeMayWrite) {
  auto first = Open();
  EXPECT_THAT(LockFile(path_), StatusIs(absl::StatusCode::kFailedPrecondition,
                                        HasSubstr(path_)));
  first.reset();
  OVERTURE_EXPECT_OK(LockFile(path_));
}

TEST_F(RecordFileTest, AFileThatCannotBeMadeIsNamed) {
  EXPECT_THAT(LockFile(dir_.Join("absent/records.jsonl")),
              StatusIs(absl::StatusCode::kNotFound,
                       HasSubstr("absent/records.jsonl: No such file")));
}

TEST(RecordHeaderTest, HoldsWhatTheServerSays) {
  v1::ServerInfo server;
  server.mutable_model()->set_weights_digest("\x0a");
  server.mutable_model()->set_tokenizer_digest("\x0b");
  server.mutable_model()->set_backend("cpu");
  server.mutable_model()->set_compute_dtype("f32");
  server.set_numerics("weights=e4m3 compute=f32 kv=f32");
  server.set_head_sizes_digest("\x0c");
  EXPECT_EQ(HeaderOf(server, Spelling::kText),
            (RecordHeader{.weights_digest = "0a",
                          .tokenizer_digest = "0b",
                          .spelling = "text",
                          .backend = "cpu f32",
                          .numerics = "weights=e4m3 compute=f32 kv=f32",
                          .head_sizes_digest = "0c"}));
}

TEST_F(RecordFileTest, KeysTellApartWhateverDiffers) {
  const Record record = MakeRecord(1);
  const auto differs = [&record](auto change) {
    Record other = record;
    change(other);
    EXPECT_NE(Key(other), Key(record));
  };
  differs([](Record& r) { r.sample.depth = 0.5; });
  differs([](Record& r) { r.sample.depth = 0.251; });
  differs([](Record& r) { r.mode = Mode::kSingle; });
  differs([](Record& r) { r.turn = 0; });
  differs([](Record& r) { r.configuration.selector = kDense; });
  differs([](Record& r) { r.configuration.view = kFull; });
  differs([](Record& r) { r.configuration.question = kLast; });
  differs([](Record& r) { r.configuration.repeat = 0; });
}

}  // namespace
}  // namespace overture::clients
