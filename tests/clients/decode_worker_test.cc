#include "clients/decode_worker/decode_worker.h"

#include <memory>
#include <string>

#include "clients/cpp/fetch_check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/clients/fake_kv.h"
#include "tests/clients/fake_server.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_model.h"

namespace overture::clients {
namespace {

using ::overture::testing::FakeDescription;
using ::overture::testing::FakeServer;
using ::overture::testing::FakeStream;
using ::overture::testing::kFakeTokens;
using ::overture::testing::StatusIs;
using ::overture::testing::TempDir;
using ::overture::testing::TinyModel;
using ::testing::HasSubstr;

// A model of the fake KV's shape, unless told otherwise.
class DecodeWorkerTest : public ::testing::Test {
 protected:
  std::string WriteModel(int32_t head_dim = 4) {
    std::string path = dir_.Join("model.gguf");
    const TinyModel model({.num_layers = 2,
                           .num_q_heads = 4,
                           .num_kv_heads = 2,
                           .head_dim = head_dim});
    OVERTURE_EXPECT_OK(model.WriteGguf(path));
    return path;
  }
  std::shared_ptr<const engine::DecoderModel> LoadModel(int32_t head_dim = 4) {
    auto files = engine::LoadModelFiles(WriteModel(head_dim));
    OVERTURE_EXPECT_OK(files);
    auto model =
        engine::DecoderModel::Create(**files, engine::ComputeDType::kF32);
    OVERTURE_EXPECT_OK(model);
    return *model;
  }

  TempDir dir_;
};

TEST_F(DecodeWorkerTest, HeadsOfAViewKeepTheirOwnNumberOfRows) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      FetchCheck check,
      FetchCheck::Create(FakeDescription(), v1::FetchRequest::SOURCE_VIEW, 0,
                         0));
  DecoderSink sink(LoadModel());
  OVERTURE_ASSERT_OK(sink.Begin(check.info()));
  for (const v1::KvChunk& chunk : FakeStream(/*view=*/true)) {
    if (!chunk.has_data()) continue;
    OVERTURE_ASSERT_OK(DeliverRows(check.info().layout, chunk.data(), sink));
  }
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (int32_t head = 0; head < 2; ++head) {
      EXPECT_EQ(sink.decoder()->rows(layer, head), 3 + layer + head);
    }
  }
  EXPECT_EQ(sink.decoder()->logical_length(), kFakeTokens);
}

TEST_F(DecodeWorkerTest, KvOfAnotherShapeIsRefused) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      FetchCheck check,
      FetchCheck::Create(FakeDescription(), v1::FetchRequest::SOURCE_FULL, 0,
                         0));
  DecoderSink sink(LoadModel(/*head_dim=*/16));
  EXPECT_THAT(sink.Begin(check.info()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("2 layers x 2 KV heads x 4")));
}

TEST_F(DecodeWorkerTest, KvOfOtherWeightsIsRefusedBeforeItIsFetched) {
  bool fetched = false;
  FakeServer::Handlers handlers;
  handlers.describe = [](v1::DescribeResponse* response) {
    *response = FakeDescription();
    return grpc::Status::OK;
  };
  handlers.fetch = [&fetched](const v1::FetchRequest&,
                              grpc::ServerWriter<v1::KvChunk>*) {
    fetched = true;
    return grpc::Status::OK;
  };
  FakeServer server(std::move(handlers));
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto client,
                                OvertureClient::Connect(server.address()));
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto worker,
      DecodeWorker::Load(WriteModel(), engine::ComputeDType::kF32));
  EXPECT_THAT(worker->Run(*client, {.handle = "h"}, nullptr).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("computed with weights 7777")));
  EXPECT_FALSE(fetched);
  EXPECT_THAT(
      worker->Run(*client, {.handle = "h", .max_tokens = 0}, nullptr).status(),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("max_tokens")));
}

TEST_F(DecodeWorkerTest, AModelThatIsNotThereIsNotFound) {
  EXPECT_THAT(
      DecodeWorker::Load(dir_.Join("none.gguf"), engine::ComputeDType::kF32)
          .status(),
      StatusIs(absl::StatusCode::kNotFound));
}

}  // namespace
}  // namespace overture::clients
