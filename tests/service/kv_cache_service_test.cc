#include "service/kv_cache_service.h"

#include <cstring>

#include "base/hash.h"
#include "service/fetch_plan.h"
#include "tests/service/harness.h"

namespace overture::service {
namespace {

using ::testing::HasSubstr;

constexpr int32_t kLayers = 3;
constexpr int32_t kHeads = 2;
constexpr int32_t kDim = 64;

// Row r of K (or V) of a chunk's head, as the contract lays it out.
float Element(const v1::KvData& chunk, bool is_v, int32_t head, int64_t row,
              int32_t dim) {
  const int64_t index =
      ((int64_t{is_v} * chunk.num_kv_heads() + head) * chunk.num_rows() + row) *
          kDim +
      dim;
  float value = 0;
  std::memcpy(&value, chunk.payload().data() + index * sizeof(float),
              sizeof(float));
  return value;
}

// Every byte of every chunk is what the back end computed for its place.
void ExpectRows(const FetchAnswer& answer, const std::vector<int32_t>& ids) {
  for (const v1::KvData& chunk : answer.chunks) {
    ASSERT_EQ(chunk.payload().size(),
              static_cast<size_t>(2 * chunk.num_kv_heads() * chunk.num_rows() *
                                  kDim * 4));
    ASSERT_EQ(chunk.checksum(), Xxh3(chunk.payload()));
    ASSERT_LE(chunk.ByteSizeLong(), size_t{4} << 20);
    for (int32_t head = 0; head < chunk.num_kv_heads(); ++head) {
      for (int64_t row = 0; row < chunk.num_rows(); ++row) {
        const int64_t position = chunk.positions().empty()
                                     ? chunk.row_begin() + row
                                     : chunk.positions(row);
        for (bool is_v : {false, true}) {
          for (int32_t dim : {0, 1, kDim - 1}) {
            ASSERT_EQ(Element(chunk, is_v, head, row, dim),
                      testing::FakeKv(ids[position], position, chunk.layer(),
                                      chunk.kv_head_begin() + head, is_v, dim));
          }
        }
      }
    }
  }
}

std::string PrefillHandle(Harness& harness, const std::vector<int32_t>& ids,
                          bool with_view = false) {
  v1::PrefillRequest request = TokensRequest(ids);
  if (with_view) {
    request.mutable_view()->mutable_snap_kv()->set_capacity(200);
  }
  const PrefillAnswer answer = RunPrefill(harness, request);
  EXPECT_TRUE(answer.status.ok()) << answer.status.error_message();
  return answer.done().handle();
}

TEST(KvCacheServiceTest, FetchDeliversTheWholeKvByteForByte) {
  Harness harness;
  const std::vector<int32_t> ids = Ids(700);
  v1::FetchRequest request;
  request.set_handle(PrefillHandle(harness, ids));
  // The smallest limit cuts every record by heads and rows.
  for (int32_t limit : {0, kMinChunkBytes, kMaxChunkBytes}) {
    request.set_max_chunk_bytes(limit);
    const FetchAnswer answer = RunFetch(harness, request);
    ASSERT_THAT(answer.status, HasCode(grpc::StatusCode::OK));
    EXPECT_EQ(answer.begin.logical_length(), 700);
    EXPECT_EQ(answer.begin.layout().num_layers(), kLayers);
    EXPECT_EQ(answer.begin.layout().dtype(), v1::DTYPE_F32);
    EXPECT_EQ(answer.begin.layout().tokens_per_block(), 256);
    EXPECT_EQ(answer.begin.weights_digest(), std::string(32, 0x5a));
    ExpectRows(answer, ids);
    int64_t offset = 0;
    for (const v1::KvData& chunk : answer.chunks) {
      EXPECT_EQ(chunk.stream_offset(), offset);
      offset += static_cast<int64_t>(chunk.payload().size());
    }
    EXPECT_EQ(offset, int64_t{700} * kLayers * kHeads * 2 * kDim * 4);
    EXPECT_EQ(answer.begin.total_bytes(), offset);
    EXPECT_EQ(answer.end.total_bytes(), offset);
    EXPECT_EQ(answer.end.num_chunks(),
              static_cast<int64_t>(answer.chunks.size()));
  }
}

TEST(KvCacheServiceTest, AReusedPrefixAndNewTokensAreOneSequence) {
  Harness harness;
  PrefillHandle(harness, Ids(600));
  const std::vector<int32_t> ids = Ids(1000);
  v1::FetchRequest request;
  request.set_handle(PrefillHandle(harness, ids));
  const FetchAnswer answer = RunFetch(harness, request);
  ASSERT_THAT(answer.status, HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(answer.end.total_bytes(),
            int64_t{1000} * kLayers * kHeads * 2 * kDim * 4);
  ExpectRows(answer, ids);
}

TEST(KvCacheServiceTest, SpansThatTookOverATailAreOneSequence) {
  // In a sparse root what follows a tail begins where it ended: records no
  // longer lie on the chunks' grid.
  Harness harness;
  const std::vector<int32_t> ids = Ids(1300);
  v1::FetchRequest request;
  for (int64_t n : {300, 777, 1300}) {
    v1::PrefillRequest prefill =
        TokensRequest(std::vector<int32_t>(ids.begin(), ids.begin() + n));
    prefill.mutable_selector()->mutable_vertical_slash();
    const PrefillAnswer answer = RunPrefill(harness, prefill);
    ASSERT_THAT(answer.status, HasCode(grpc::StatusCode::OK));
    EXPECT_EQ(answer.done().stats().reused_tokens() > 0, n > 300);
    request.set_handle(answer.done().handle());
  }
  for (int32_t limit : {0, kMinChunkBytes, kMaxChunkBytes}) {
    request.set_max_chunk_bytes(limit);
    const FetchAnswer answer = RunFetch(harness, request);
    ASSERT_THAT(answer.status, HasCode(grpc::StatusCode::OK));
    EXPECT_EQ(answer.end.total_bytes(),
              int64_t{1300} * kLayers * kHeads * 2 * kDim * 4);
    ExpectRows(answer, ids);
  }
}

TEST(KvCacheServiceTest, AViewDeliversRaggedHeadsWithTheirPositions) {
  Harness harness;
  const std::vector<int32_t> ids = Ids(700);
  v1::FetchRequest request;
  request.set_handle(PrefillHandle(harness, ids, /*with_view=*/true));
  request.set_source(v1::FetchRequest::SOURCE_VIEW);
  request.set_max_chunk_bytes(kMinChunkBytes);
  const FetchAnswer answer = RunFetch(harness, request);
  ASSERT_THAT(answer.status, HasCode(grpc::StatusCode::OK));
  ExpectRows(answer, ids);
  std::vector<std::vector<uint32_t>> positions(kLayers * kHeads);
  for (const v1::KvData& chunk : answer.chunks) {
    ASSERT_EQ(chunk.num_kv_heads(), 1);
    ASSERT_EQ(chunk.positions_size(), chunk.num_rows());
    auto& of_head = positions[chunk.layer() * kHeads + chunk.kv_head_begin()];
    ASSERT_EQ(chunk.row_begin(), static_cast<int64_t>(of_head.size()));
    of_head.insert(of_head.end(), chunk.positions().begin(),
                   chunk.positions().end());
  }
  for (int32_t i = 0; i < kLayers * kHeads; ++i) {
    const auto expected = testing::FakeViewPositions(700, 200, i % kHeads);
    EXPECT_THAT(positions[i], ::testing::ElementsAreArray(expected));
  }
  EXPECT_EQ(answer.begin.logical_length(), 700)
      << "positions go on where the prompt ended, not after the rows held";
}

TEST(KvCacheServiceTest, AFetchResumesAtEveryBorder) {
  Harness harness;
  v1::FetchRequest request;
  request.set_handle(PrefillHandle(harness, Ids(300), /*with_view=*/true));
  request.set_max_chunk_bytes(kMinChunkBytes);
  for (const auto source :
       {v1::FetchRequest::SOURCE_FULL, v1::FetchRequest::SOURCE_VIEW}) {
    request.set_source(source);
    request.set_resume_offset(0);
    const FetchAnswer whole = RunFetch(harness, request);
    ASSERT_GE(whole.chunks.size(), 6u);
    for (size_t i = 0; i <= whole.chunks.size(); ++i) {
      request.set_resume_offset(i == whole.chunks.size()
                                    ? whole.end.total_bytes()
                                    : whole.chunks[i].stream_offset());
      const FetchAnswer rest = RunFetch(harness, request);
      ASSERT_THAT(rest.status, HasCode(grpc::StatusCode::OK));
      ASSERT_EQ(rest.chunks.size(), whole.chunks.size() - i);
      for (size_t j = 0; j < rest.chunks.size(); ++j) {
        ASSERT_EQ(rest.chunks[j].SerializeAsString(),
                  whole.chunks[i + j].SerializeAsString());
      }
      EXPECT_EQ(rest.end.num_chunks(), whole.end.num_chunks());
    }
  }
}

TEST(KvCacheServiceTest, BadFetchesAreNamed) {
  Harness harness;
  const std::string handle = PrefillHandle(harness, Ids(300));
  using Edit = void (*)(v1::FetchRequest*);
  const struct {
    Edit edit;
    grpc::StatusCode code;
    const char* message;
  } cases[] = {
      {[](v1::FetchRequest* r) { r->set_handle("beef"); },
       grpc::StatusCode::NOT_FOUND, "handle"},
      {[](v1::FetchRequest* r) { r->clear_handle(); },
       grpc::StatusCode::NOT_FOUND, "handle"},
      {[](v1::FetchRequest* r) {
         r->set_source(v1::FetchRequest::SOURCE_VIEW);
       },
       grpc::StatusCode::FAILED_PRECONDITION, "SOURCE_VIEW"},
      {[](v1::FetchRequest* r) {
         r->set_source(static_cast<v1::FetchRequest::Source>(7));
       },
       grpc::StatusCode::INVALID_ARGUMENT, "source: 7"},
      {[](v1::FetchRequest* r) { r->set_layer_begin(3); },
       grpc::StatusCode::OUT_OF_RANGE, "layer_begin: 3"},
      {[](v1::FetchRequest* r) { r->set_layer_end(4); },
       grpc::StatusCode::OUT_OF_RANGE, "layer_end: 4"},
      {[](v1::FetchRequest* r) { r->set_resume_offset(1); },
       grpc::StatusCode::INVALID_ARGUMENT, "inside the chunk"},
      {[](v1::FetchRequest* r) { r->set_resume_offset(int64_t{1} << 40); },
       grpc::StatusCode::OUT_OF_RANGE, "resume_offset"},
      {[](v1::FetchRequest* r) { r->set_max_chunk_bytes(4 << 20); },
       grpc::StatusCode::INVALID_ARGUMENT, "max_chunk_bytes"}};
  for (const auto& c : cases) {
    v1::FetchRequest request;
    request.set_handle(handle);
    c.edit(&request);
    const FetchAnswer answer = RunFetch(harness, request);
    EXPECT_THAT(answer.status, HasCode(c.code, c.message));
    EXPECT_TRUE(answer.chunks.empty());
  }
}

TEST(KvCacheServiceTest, NoStoreKvLivesAsLongAsItsHandle) {
  Harness harness;
  v1::PrefillRequest prefill = TokensRequest(Ids(300));
  prefill.set_no_store(true);
  prefill.mutable_view()->mutable_snap_kv()->set_capacity(100);
  const PrefillAnswer answer = RunPrefill(harness, prefill);
  ASSERT_THAT(answer.status, HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(answer.done().store_error(), "") << "as asked for";
  EXPECT_FALSE(answer.done().persisted());
  v1::FetchRequest request;
  request.set_handle(answer.done().handle());
  const FetchAnswer full = RunFetch(harness, request);
  ASSERT_THAT(full.status, HasCode(grpc::StatusCode::OK));
  ExpectRows(full, Ids(300));
  EXPECT_EQ(full.end.total_bytes(),
            int64_t{300} * kLayers * kHeads * 2 * kDim * 4);
  request.set_source(v1::FetchRequest::SOURCE_VIEW);
  EXPECT_THAT(RunFetch(harness, request).status, HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(harness.cache().stats().stored_bytes, 0);
  EXPECT_GT(harness.cache().stats().memory_bytes, 0);
}

TEST(KvCacheServiceTest, ASlowFetchHoldsUpNobodyAndSurvivesRelease) {
  Harness harness;
  const std::vector<int32_t> ids = Ids(1500);
  const std::string handle = PrefillHandle(harness, ids);
  v1::FetchRequest request;
  request.set_handle(handle);
  request.set_max_chunk_bytes(kMinChunkBytes);

  // More silent readers than the pool has threads.
  constexpr int kSilent = 12;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::KvChunk>>> readers;
  for (int i = 0; i < kSilent; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    readers.push_back(harness.kv().Fetch(contexts.back().get(), request));
    v1::KvChunk chunk;
    ASSERT_TRUE(readers.back()->Read(&chunk));
    ASSERT_TRUE(chunk.has_begin());
  }
  EXPECT_THAT(RunFetch(harness, request).status, HasCode(grpc::StatusCode::OK));

  v1::ReleaseRequest release;
  release.add_handles(handle);
  release.add_handles("never existed");
  v1::ReleaseResponse released;
  grpc::ClientContext release_context;
  ASSERT_TRUE(harness.kv().Release(&release_context, release, &released).ok());
  EXPECT_EQ(released.released(), 1);
  EXPECT_THAT(RunFetch(harness, request).status,
              HasCode(grpc::StatusCode::NOT_FOUND));

  FetchAnswer answer;
  v1::KvChunk chunk;
  while (readers[0]->Read(&chunk)) {
    if (chunk.has_data()) answer.chunks.push_back(chunk.data());
    if (chunk.has_end()) answer.end = chunk.end();
  }
  EXPECT_THAT(readers[0]->Finish(), HasCode(grpc::StatusCode::OK));
  ExpectRows(answer, ids);
  EXPECT_EQ(answer.end.num_chunks(),
            static_cast<int64_t>(answer.chunks.size()));
  for (int i = 1; i < kSilent; ++i) contexts[i]->TryCancel();
  for (int i = 1; i < kSilent; ++i) {
    while (readers[i]->Read(&chunk)) {
    }
    EXPECT_THAT(readers[i]->Finish(), HasCode(grpc::StatusCode::CANCELLED));
  }
  // Cancelled streams end: a drain without limit would hang otherwise.
  EXPECT_TRUE(harness.server().Shutdown(absl::InfiniteDuration()));
  EXPECT_EQ(harness.cache().stats().live_leases, 0);
}

TEST(KvCacheServiceTest, HandlesExpireByTheClock) {
  Harness harness;
  v1::PrefillRequest prefill = TokensRequest(Ids(300));
  prefill.set_handle_ttl_ms(5000);
  v1::DescribeRequest request;
  request.set_handle(RunPrefill(harness, prefill).done().handle());
  const auto describe = [&](v1::DescribeResponse* response) {
    grpc::ClientContext context;
    return harness.kv().Describe(&context, request, response);
  };
  v1::DescribeResponse response;
  ASSERT_THAT(describe(&response), HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(response.expires_in_ms(), 5000);
  harness.Advance(absl::Milliseconds(4999));
  ASSERT_THAT(describe(&response), HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(response.expires_in_ms(), 1);
  harness.Advance(absl::Milliseconds(1));
  EXPECT_THAT(describe(&response), HasCode(grpc::StatusCode::NOT_FOUND));
  harness.server().ExpireHandles();
  EXPECT_EQ(harness.server().handles().size(), 0);
  EXPECT_EQ(harness.cache().stats().live_leases, 0);
}

TEST(KvCacheServiceTest, DescribeSaysWhatAHandleHolds) {
  Harness harness;
  v1::DescribeRequest request;
  request.set_handle(PrefillHandle(harness, Ids(300), /*with_view=*/true));
  v1::DescribeResponse response;
  grpc::ClientContext context;
  ASSERT_THAT(harness.kv().Describe(&context, request, &response),
              HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(response.logical_length(), 300);
  EXPECT_EQ(response.full_bytes(),
            int64_t{300} * kLayers * kHeads * 2 * kDim * 4);
  EXPECT_TRUE(response.has_view());
  EXPECT_THAT(response.view_rows(),
              ::testing::ElementsAre(200, 199, 200, 199, 200, 199));
  EXPECT_EQ(response.view_bytes(), int64_t{3} * 399 * 2 * kDim * 4);
  EXPECT_EQ(response.first_token(), testing::FakeFirstToken(Ids(300), 1000));
  EXPECT_TRUE(response.persisted());
  EXPECT_EQ(response.attention_policy(), "dense");
  EXPECT_EQ(response.expires_in_ms(), 600000) << "the server's default";
}

TEST(KvCacheServiceTest, LookupTellsStoredAndReusableApart) {
  Harness harness;
  PrefillHandle(harness, Ids(512));
  const auto lookup = [&](const v1::LookupRequest& request,
                          v1::LookupResponse* response) {
    grpc::ClientContext context;
    return harness.kv().Lookup(&context, request, response);
  };
  v1::LookupRequest request;
  const std::vector<int32_t> ids = Ids(512);
  request.mutable_token_ids()->Assign(ids.begin(), ids.end());
  v1::LookupResponse response;
  ASSERT_THAT(lookup(request, &response), HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(response.num_tokens(), 512);
  EXPECT_EQ(response.matched_tokens(), 512);
  EXPECT_LE(response.reusable_tokens(), 448);
  EXPECT_GE(response.reusable_tokens(), 256);
  EXPECT_EQ(response.attention_policy(), "dense");

  request.mutable_selector()->mutable_vertical_slash();
  ASSERT_THAT(lookup(request, &response), HasCode(grpc::StatusCode::OK));
  EXPECT_EQ(response.matched_tokens(), 0) << "another provenance";

  request.clear_selector();
  request.set_text("both");
  EXPECT_THAT(lookup(request, &response),
              HasCode(grpc::StatusCode::INVALID_ARGUMENT, "text"));
  request.clear_text();
  request.set_token_ids(5, 5000);
  EXPECT_THAT(lookup(request, &response),
              HasCode(grpc::StatusCode::INVALID_ARGUMENT, "token_ids[5]"));
  request.clear_token_ids();
  EXPECT_THAT(lookup(request, &response),
              HasCode(grpc::StatusCode::INVALID_ARGUMENT, "0 tokens"));
}

}  // namespace
}  // namespace overture::service
