#include "clients/cpp/client.h"

#include <atomic>
#include <memory>
#include <mutex>
#include <stop_token>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/clients/fake_kv.h"
#include "tests/clients/fake_server.h"
#include "tests/support/status_matchers.h"

namespace overture::clients {
namespace {

using ::overture::testing::ExpectedRows;
using ::overture::testing::FakeDescription;
using ::overture::testing::FakeServer;
using ::overture::testing::FakeStream;
using ::overture::testing::PayloadBytes;
using ::overture::testing::RecordingSink;
using ::overture::testing::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::UnorderedElementsAreArray;

// Fast, so that giving up takes milliseconds.
ClientOptions TestOptions() {
  return {.max_fetch_resumes = 3, .resume_backoff = absl::Milliseconds(1)};
}

FakeServer::Handlers WithDescription() {
  FakeServer::Handlers handlers;
  handlers.describe = [](v1::DescribeResponse* response) {
    *response = FakeDescription();
    return grpc::Status::OK;
  };
  return handlers;
}

// Serves a stream from any chunk border and may break it.
class StreamScript {
 public:
  explicit StreamScript(std::vector<v1::KvChunk> chunks)
      : chunks_(std::move(chunks)) {}

  // From offset `break_at` on the next stream ends with `status`, once per
  // call.
  void BreakAt(int64_t offset, grpc::Status status) {
    breaks_.emplace_back(offset, std::move(status));
  }
  std::vector<int64_t> offsets_asked() {
    std::lock_guard lock(mutex_);
    return offsets_asked_;
  }

  grpc::Status operator()(const v1::FetchRequest& request,
                          grpc::ServerWriter<v1::KvChunk>* writer) {
    std::lock_guard lock(mutex_);
    offsets_asked_.push_back(request.resume_offset());
    const size_t turn = offsets_asked_.size() - 1;
    for (const v1::KvChunk& chunk : chunks_) {
      if (chunk.has_data()) {
        if (chunk.data().stream_offset() < request.resume_offset()) continue;
        if (turn < breaks_.size() &&
            chunk.data().stream_offset() >= breaks_[turn].first) {
          return breaks_[turn].second;
        }
      }
      writer->Write(chunk);
    }
    return grpc::Status::OK;
  }

 private:
  const std::vector<v1::KvChunk> chunks_;
  std::vector<std::pair<int64_t, grpc::Status>> breaks_;
  std::mutex mutex_;
  std::vector<int64_t> offsets_asked_;
};

class FetchTest : public ::testing::Test {
 protected:
  absl::StatusOr<FetchResult> Fetch(bool view, const CallOptions& call = {}) {
    if (script_ == nullptr) {
      script_ = std::make_unique<StreamScript>(FakeStream(view));
    }
    FakeServer::Handlers handlers = WithDescription();
    handlers.fetch = [this](const v1::FetchRequest& request,
                            grpc::ServerWriter<v1::KvChunk>* writer) {
      return (*script_)(request, writer);
    };
    FakeServer server(std::move(handlers));
    OVERTURE_ASSIGN_OR_RETURN(
        auto client, OvertureClient::Connect(server.address(), TestOptions()));
    return client->Fetch("h1",
                         {.source = view ? v1::FetchRequest::SOURCE_VIEW
                                         : v1::FetchRequest::SOURCE_FULL},
                         sink_, call);
  }

  std::unique_ptr<StreamScript> script_;
  RecordingSink sink_;
};

TEST_F(FetchTest, FullKvArrivesWhole) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(FetchResult result, Fetch(false));
  EXPECT_EQ(result.bytes, PayloadBytes(FakeStream(false)));
  EXPECT_EQ(result.resumes, 0);
  EXPECT_EQ(sink_.begins, 1);
  EXPECT_EQ(sink_.wrong_rows, 0);
  EXPECT_THAT(sink_.rows_seen, UnorderedElementsAreArray(ExpectedRows(false)));
}

TEST_F(FetchTest, AViewWithHeadsOfDifferentLengthArrivesWhole) {
  OVERTURE_ASSERT_OK(Fetch(true));
  EXPECT_EQ(sink_.wrong_rows, 0);
  EXPECT_THAT(sink_.rows_seen, UnorderedElementsAreArray(ExpectedRows(true)));
}

TEST_F(FetchTest, ABrokenStreamResumesAtTheNextByte) {
  const std::vector<v1::KvChunk> stream = FakeStream(false);
  script_ = std::make_unique<StreamScript>(stream);
  const int64_t second = stream[2].data().stream_offset();
  const int64_t fourth = stream[4].data().stream_offset();
  const grpc::Status gone(grpc::StatusCode::UNAVAILABLE, "gone");
  script_->BreakAt(second, gone);
  script_->BreakAt(fourth, gone);
  OVERTURE_ASSERT_OK_AND_ASSIGN(FetchResult result, Fetch(false));
  EXPECT_EQ(result.resumes, 2);
  EXPECT_THAT(script_->offsets_asked(), ElementsAre(0, second, fourth));
  EXPECT_EQ(sink_.begins, 1);
  EXPECT_EQ(sink_.wrong_rows, 0);
  EXPECT_THAT(sink_.rows_seen, UnorderedElementsAreArray(ExpectedRows(false)));
}

TEST_F(FetchTest, AStreamThatEndsEarlyWithoutErrorResumes) {
  const std::vector<v1::KvChunk> stream = FakeStream(true);
  script_ = std::make_unique<StreamScript>(stream);
  const int64_t third = stream[3].data().stream_offset();
  script_->BreakAt(third, grpc::Status::OK);
  OVERTURE_ASSERT_OK(Fetch(true));
  EXPECT_THAT(script_->offsets_asked(), ElementsAre(0, third));
  EXPECT_THAT(sink_.rows_seen, UnorderedElementsAreArray(ExpectedRows(true)));
}

TEST_F(FetchTest, AStreamThatNeverProgressesIsGivenUp) {
  script_ = std::make_unique<StreamScript>(FakeStream(false));
  for (int i = 0; i < 10; ++i) {
    script_->BreakAt(0, grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone"));
  }
  EXPECT_THAT(Fetch(false).status(),
              StatusIs(absl::StatusCode::kUnavailable,
                       HasSubstr("given up after 3 attempts")));
  EXPECT_EQ(script_->offsets_asked().size(), 4u);
}

TEST_F(FetchTest, OtherErrorsAreNotRetried) {
  script_ = std::make_unique<StreamScript>(FakeStream(false));
  script_->BreakAt(0, grpc::Status(grpc::StatusCode::DATA_LOSS, "bad block"));
  EXPECT_THAT(Fetch(false).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("bad block")));
  EXPECT_EQ(script_->offsets_asked().size(), 1u);
}

TEST_F(FetchTest, ADamagedChunkIsDataLossAndNeverReachesTheSink) {
  std::vector<v1::KvChunk> stream = FakeStream(false);
  (*stream[1].mutable_data()->mutable_payload())[0] ^= 1;
  script_ = std::make_unique<StreamScript>(stream);
  EXPECT_THAT(Fetch(false).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("checksum")));
  EXPECT_TRUE(sink_.rows_seen.empty());
}

TEST_F(FetchTest, AMissingChunkIsDataLoss) {
  std::vector<v1::KvChunk> stream = FakeStream(false);
  stream.erase(stream.begin() + 2);
  script_ = std::make_unique<StreamScript>(stream);
  EXPECT_THAT(Fetch(false).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("are missing")));
}

TEST_F(FetchTest, ARepeatedChunkIsDataLoss) {
  std::vector<v1::KvChunk> stream = FakeStream(false);
  stream.insert(stream.begin() + 1, stream[1]);
  script_ = std::make_unique<StreamScript>(stream);
  EXPECT_THAT(Fetch(false).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("came twice")));
}

TEST_F(FetchTest, DataBeforeTheBeginningIsDataLoss) {
  std::vector<v1::KvChunk> stream = FakeStream(false);
  stream.erase(stream.begin());
  script_ = std::make_unique<StreamScript>(stream);
  EXPECT_THAT(Fetch(false).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("out of order")));
}

TEST_F(FetchTest, AnErrorOfTheSinkEndsTheFetch) {
  sink_.answer = absl::ResourceExhaustedError("no room");
  EXPECT_THAT(
      Fetch(false).status(),
      StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no room")));
  // The first chunk's first head.
  EXPECT_EQ(sink_.rows_seen.size(), 4u);
}

TEST(FetchStopTest, StoppingWhileItWaitsToResumeIsCancelled) {
  std::stop_source stop;
  FakeServer::Handlers handlers = WithDescription();
  handlers.fetch = [&stop](const v1::FetchRequest&,
                           grpc::ServerWriter<v1::KvChunk>*) {
    stop.request_stop();
    return grpc::Status(grpc::StatusCode::UNAVAILABLE, "gone");
  };
  FakeServer server(std::move(handlers));
  // Waiting the pause out would exceed the test's time limit.
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      auto client, OvertureClient::Connect(server.address(),
                                           {.resume_backoff = absl::Hours(1)}));
  RecordingSink sink;
  EXPECT_THAT(
      client->Fetch("h1", {}, sink, {.stop = stop.get_token()}).status(),
      StatusIs(absl::StatusCode::kCancelled));
}

TEST(ClientTest, NoServerIsUnavailable) {
  std::string address;
  {
    FakeServer server({});
    address = server.address();
  }
  EXPECT_THAT(OvertureClient::Connect(
                  address, {.connect_timeout = absl::Milliseconds(300)})
                  .status(),
              StatusIs(absl::StatusCode::kUnavailable, HasSubstr(address)));
}

TEST(ClientTest, AServerOfAnotherKindIsUnimplemented) {
  FakeServer server({.info = nullptr});
  EXPECT_THAT(
      OvertureClient::Connect(server.address()).status(),
      StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("older than")));
}

TEST(ClientTest, ACallTheServerLacksIsUnimplemented) {
  FakeServer server({});
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto client,
                                OvertureClient::Connect(server.address()));
  EXPECT_THAT(client->Lookup({}).status(),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("Lookup")));
}

// Only gRPC's own answer means an old server; ours says what is missing.
TEST(ClientTest, WhatTheServerSaysOfAMissingPartStandsAlone) {
  FakeServer server({.info = [](v1::ServerInfo*) {
    return grpc::Status(grpc::StatusCode::UNIMPLEMENTED, "no such selector");
  }});
  EXPECT_THAT(OvertureClient::Connect(server.address()).status(),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("no such selector"),
                             Not(HasSubstr("older than")))));
}

TEST(ClientTest, ConnectReadsTheServersInfo) {
  FakeServer server({.info = [](v1::ServerInfo* info) {
    info->set_version("1.2.3");
    return grpc::Status::OK;
  }});
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto client,
                                OvertureClient::Connect(server.address()));
  EXPECT_EQ(client->server().version(), "1.2.3");
}

TEST(ClientTest, AnErrorKeepsItsCodeMessageAndRetryHint) {
  FakeServer server(
      {.lookup = [](grpc::ServerContext* context, v1::LookupResponse*) {
        context->AddTrailingMetadata("retry-delay-ms", "250");
        return grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED,
                            "queue is full: 64 of 64");
      }});
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto client,
                                OvertureClient::Connect(server.address()));
  const absl::Status status = client->Lookup({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "Lookup: queue is full: 64 of 64; retry in 250 ms");
}

TEST(PrefillTest, EventsReachTheObserverInOrderAndTheResultHoldsTheRest) {
  FakeServer server(
      {.prefill = [](grpc::ServerContext*,
                     grpc::ServerWriter<v1::PrefillEvent>* writer) {
        v1::PrefillEvent event;
        event.mutable_queued()->set_num_tokens(7);
        writer->Write(event);
        event.mutable_matched()->set_reused_tokens(3);
        writer->Write(event);
        event.mutable_progress()->set_layers_done(1);
        writer->Write(event);
        event.mutable_first_token()->set_token(42);
        writer->Write(event);
        event.mutable_done()->set_handle("h");
        writer->Write(event);
        return grpc::Status::OK;
      }});
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto client,
                                OvertureClient::Connect(server.address()));
  std::vector<v1::PrefillEvent::EventCase> seen;
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      PrefillResult result,
      client->Prefill({}, [&](const v1::PrefillEvent& event) {
        seen.push_back(event.event_case());
      }));
  EXPECT_THAT(
      seen,
      ElementsAre(v1::PrefillEvent::kQueued, v1::PrefillEvent::kMatched,
                  v1::PrefillEvent::kProgress, v1::PrefillEvent::kFirstToken,
                  v1::PrefillEvent::kDone));
  EXPECT_EQ(result.matched.reused_tokens(), 3);
  EXPECT_EQ(result.first_token.token(), 42);
  EXPECT_EQ(result.done.handle(), "h");
}

TEST(PrefillTest, TextThatIsNotUtf8IsNotSent) {
  FakeServer server({});
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto client,
                                OvertureClient::Connect(server.address()));
  v1::PrefillRequest request;
  request.set_text("caf\xe9");
  EXPECT_THAT(client->Prefill(request).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("text: byte 3 is 0xe9")));
}

TEST(PrefillTest, AStreamWithoutResultIsInternal) {
  FakeServer server({.prefill = [](grpc::ServerContext*,
                                   grpc::ServerWriter<v1::PrefillEvent>*) {
    return grpc::Status::OK;
  }});
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto client,
                                OvertureClient::Connect(server.address()));
  EXPECT_THAT(client->Prefill({}).status(),
              StatusIs(absl::StatusCode::kInternal));
}

// Writes progress until the client has gone.
grpc::Status EndlessProgress(grpc::ServerContext* context,
                             grpc::ServerWriter<v1::PrefillEvent>* writer) {
  v1::PrefillEvent event;
  event.mutable_progress()->set_num_layers(30);
  while (!context->IsCancelled()) writer->Write(event);
  return grpc::Status::CANCELLED;
}

TEST(PrefillTest, StoppingCancelsTheCallOnTheServer) {
  std::atomic<bool> server_saw_it = false;
  std::stop_source stop;
  {
    FakeServer server(
        {.prefill = [&](grpc::ServerContext* context,
                        grpc::ServerWriter<v1::PrefillEvent>* writer) {
          const grpc::Status status = EndlessProgress(context, writer);
          server_saw_it = true;
          return status;
        }});
    OVERTURE_ASSERT_OK_AND_ASSIGN(auto client,
                                  OvertureClient::Connect(server.address()));
    EXPECT_THAT(
        client
            ->Prefill({}, [&](const v1::PrefillEvent&) { stop.request_stop(); },
                      {.stop = stop.get_token()})
            .status(),
        StatusIs(absl::StatusCode::kCancelled));
  }
  EXPECT_TRUE(server_saw_it);
}

TEST(PrefillTest, TheTimeoutEndsTheCall) {
  FakeServer server({.prefill = EndlessProgress});
  OVERTURE_ASSERT_OK_AND_ASSIGN(auto client,
                                OvertureClient::Connect(server.address()));
  EXPECT_THAT(
      client->Prefill({}, {}, {.timeout = absl::Milliseconds(100)}).status(),
      StatusIs(absl::StatusCode::kDeadlineExceeded));
}

}  // namespace
}  // namespace overture::clients
