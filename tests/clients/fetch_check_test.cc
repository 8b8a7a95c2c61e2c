#include "clients/cpp/fetch_check.h"

#include <limits>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/clients/fake_kv.h"
#include "tests/support/status_matchers.h"

namespace overture::clients {
namespace {

using ::overture::testing::ExpectedRows;
using ::overture::testing::FakeDescription;
using ::overture::testing::FakeStream;
using ::overture::testing::FillPayload;
using ::overture::testing::RecordingSink;
using ::overture::testing::StatusIs;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAreArray;

constexpr auto kDataLoss = absl::StatusCode::kDataLoss;

class FetchCheckTest : public ::testing::TestWithParam<bool> {
 protected:
  bool view() const { return GetParam(); }
  static v1::FetchRequest::Source Source(bool view) {
    return view ? v1::FetchRequest::SOURCE_VIEW : v1::FetchRequest::SOURCE_FULL;
  }

  // First error of the whole stream, or OK.
  static absl::Status Run(const std::vector<v1::KvChunk>& stream, bool view,
                          const v1::DescribeResponse& description,
                          RecordingSink* sink) {
    OVERTURE_ASSIGN_OR_RETURN(
        FetchCheck check, FetchCheck::Create(description, Source(view), 0, 0));
    for (const v1::KvChunk& chunk : stream) {
      if (chunk.has_begin()) {
        OVERTURE_RETURN_IF_ERROR(check.Begin(chunk.begin()));
      } else if (chunk.has_data()) {
        OVERTURE_RETURN_IF_ERROR(check.Data(chunk.data()));
        OVERTURE_RETURN_IF_ERROR(
            DeliverRows(check.info().layout, chunk.data(), *sink));
      } else {
        OVERTURE_RETURN_IF_ERROR(check.End(chunk.end()));
      }
    }
    return absl::OkStatus();
  }
  absl::Status Run() const {
    RecordingSink sink;
    return Run(stream_, view(), FakeDescription(), &sink);
  }

  v1::KvData* data(size_t chunk) { return stream_[chunk].mutable_data(); }

  std::vector<v1::KvChunk> stream_ = FakeStream(GetParam());
};

INSTANTIATE_TEST_SUITE_P(Sources, FetchCheckTest, ::testing::Bool(),
                         [](const auto& info) {
                           return info.param ? "View" : "Full";
                         });

TEST_P(FetchCheckTest, AWholeStreamDeliversEveryRowOnce) {
  RecordingSink sink;
  OVERTURE_EXPECT_OK(Run(stream_, view(), FakeDescription(), &sink));
  EXPECT_THAT(sink.rows_seen, UnorderedElementsAreArray(ExpectedRows(view())));
  EXPECT_EQ(sink.wrong_rows, 0);
}

TEST_P(FetchCheckTest, AFlippedBitIsDataLoss) {
  (*data(2)->mutable_payload())[5] ^= 1;
  EXPECT_THAT(Run(), StatusIs(kDataLoss, HasSubstr("checksum")));
}

TEST_P(FetchCheckTest, AMissingChunkIsDataLoss) {
  stream_.erase(stream_.begin() + 2);
  EXPECT_THAT(Run(), StatusIs(kDataLoss, HasSubstr("are missing")));
}

TEST_P(FetchCheckTest, AMissingLastChunkIsDataLoss) {
  stream_.erase(stream_.end() - 2);
  EXPECT_THAT(Run(), StatusIs(kDataLoss, HasSubstr("ended after")));
}

TEST_P(FetchCheckTest, ARepeatedChunkIsDataLoss) {
  stream_.insert(stream_.begin() + 2, stream_[2]);
  EXPECT_THAT(Run(), StatusIs(kDataLoss, HasSubstr("came twice")));
}

TEST_P(FetchCheckTest, RowsRepeatedUnderANewOffsetAreDataLoss) {
  v1::KvChunk again = stream_[1];
  again.mutable_data()->set_stream_offset(data(2)->stream_offset());
  stream_.insert(stream_.begin() + 2, again);
  EXPECT_THAT(Run(), StatusIs(kDataLoss, HasSubstr("is next")));
}

TEST_P(FetchCheckTest, AShortPayloadIsDataLoss) {
  data(1)->mutable_payload()->pop_back();
  EXPECT_THAT(Run(), StatusIs(kDataLoss, HasSubstr("payload of")));
}

TEST_P(FetchCheckTest, ALayerOrHeadOutsideTheLayoutIsDataLoss) {
  data(1)->set_layer(2);
  EXPECT_THAT(Run(), StatusIs(kDataLoss, HasSubstr("layer 2")));
  data(1)->set_layer(0);
  data(1)->set_kv_head_begin(2);
  EXPECT_THAT(Run(), StatusIs(kDataLoss, HasSubstr("KV heads [2")));
  data(1)->set_kv_head_begin(-1);
  EXPECT_THAT(Run(), StatusIs(kDataLoss, HasSubstr("KV heads [-1")));
}

TEST_P(FetchCheckTest, SizesThatOverflowAreDataLoss) {
  data(1)->set_num_rows(2147483647);
  EXPECT_THAT(Run(), StatusIs(kDataLoss));
  data(1)->set_num_rows(0);
  EXPECT_THAT(Run(), StatusIs(kDataLoss, HasSubstr("has 0 rows")));
  data(1)->set_num_rows(1);
  data(1)->set_num_kv_heads(2147483647);
  EXPECT_THAT(Run(), StatusIs(kDataLoss));
  data(1)->set_num_kv_heads(1);
  data(1)->set_row_begin(std::numeric_limits<int64_t>::max());
  EXPECT_THAT(Run(), StatusIs(kDataLoss));
}

TEST_P(FetchCheckTest, APositionBeyondTheLengthIsDataLoss) {
  v1::KvData* last = data(stream_.size() - 2);
  last->clear_positions();
  for (int r = 0; r < last->num_rows(); ++r) {
    last->add_positions(static_cast<uint32_t>(testing::kFakeTokens + r));
  }
  FillPayload(last);
  EXPECT_THAT(Run(), StatusIs(kDataLoss, HasSubstr("of 10")));
}

TEST_P(FetchCheckTest, AStreamOfOtherWeightsOrLayoutIsDataLoss) {
  v1::FetchBegin* begin = stream_[0].mutable_begin();
  begin->set_weights_digest(std::string(32, 'x'));
  EXPECT_THAT(Run(), StatusIs(kDataLoss, HasSubstr("other weights")));
  begin->set_weights_digest(std::string(32, 'w'));
  begin->mutable_layout()->set_head_dim(8);
  EXPECT_THAT(Run(), StatusIs(kDataLoss, HasSubstr("layout")));
}

TEST_P(FetchCheckTest, AnEndThatCountsDifferentlyIsDataLoss) {
  v1::FetchEnd* end = stream_.back().mutable_end();
  end->set_num_chunks(end->num_chunks() + 1);
  EXPECT_THAT(Run(), StatusIs(kDataLoss, HasSubstr("chunks")));
}

TEST(FetchCheckViewTest, PositionsThatGoBackAreDataLoss) {
  std::vector<v1::KvChunk> stream = FakeStream(true);
  v1::KvData* second = stream[2].mutable_data();  // head 0's third row
  second->set_positions(0, 0);
  FillPayload(second);
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      FetchCheck check,
      FetchCheck::Create(FakeDescription(), v1::FetchRequest::SOURCE_VIEW, 0,
                         0));
  OVERTURE_ASSERT_OK(check.Begin(stream[0].begin()));
  OVERTURE_ASSERT_OK(check.Data(stream[1].data()));
  EXPECT_THAT(check.Data(*second),
              StatusIs(kDataLoss, HasSubstr("goes back to position 0")));
}

TEST(FetchCheckViewTest, AHandleWithoutViewIsFailedPrecondition) {
  v1::DescribeResponse description = FakeDescription();
  description.set_has_view(false);
  EXPECT_THAT(
      FetchCheck::Create(description, v1::FetchRequest::SOURCE_VIEW, 0, 0)
          .status(),
      StatusIs(absl::StatusCode::kFailedPrecondition,
               HasSubstr("has no view")));
}

TEST(FetchCheckViewTest, AViewOfImpossibleSizeIsDataLoss) {
  v1::DescribeResponse description = FakeDescription();
  description.set_view_rows(1, 11);
  EXPECT_THAT(
      FetchCheck::Create(description, v1::FetchRequest::SOURCE_VIEW, 0, 0)
          .status(),
      StatusIs(kDataLoss, HasSubstr("11 rows")));
  description.mutable_view_rows()->RemoveLast();
  EXPECT_THAT(
      FetchCheck::Create(description, v1::FetchRequest::SOURCE_VIEW, 0, 0)
          .status(),
      StatusIs(kDataLoss, HasSubstr("3 view heads")));
}

TEST(FetchCheckLayersTest, LayersOutsideTheModelAreOutOfRange) {
  for (const auto& [begin, end] :
       {std::pair{0, 3}, std::pair{-1, 1}, std::pair{1, 1}}) {
    EXPECT_THAT(FetchCheck::Create(FakeDescription(),
                                   v1::FetchRequest::SOURCE_FULL, begin, end)
                    .status(),
                StatusIs(absl::StatusCode::kOutOfRange))
        << begin << " " << end;
  }
}

TEST(FetchCheckLayersTest, OnlyTheLayersAskedForCount) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      FetchCheck check,
      FetchCheck::Create(FakeDescription(), v1::FetchRequest::SOURCE_FULL, 1,
                         2));
  // 10 rows, K and V, 2 heads of 4 floats.
  EXPECT_EQ(check.info().total_bytes, 10 * 2 * 2 * 4 * 4);
  EXPECT_EQ(check.info().rows.size(), 2u);
}

TEST(LayoutFromProtoTest, AnUnknownDTypeOrSizeIsInvalid) {
  v1::KvLayout layout = FakeDescription().layout();
  layout.set_dtype(v1::DTYPE_UNSPECIFIED);
  EXPECT_THAT(LayoutFromProto(layout).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("dtype")));
  layout.set_dtype(v1::DTYPE_BF16);
  layout.set_head_dim(0);
  EXPECT_THAT(
      LayoutFromProto(layout).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("head_dim")));
}

}  // namespace
}  // namespace overture::clients
