#include "tests/service/harness.h"

#include <cstdlib>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace overture::service {

Harness::Harness(Options options) {
  cache::Stores stores;
  if (options.rocksdb_path.empty()) {
    stores = cache::OpenMemoryStores();
  } else {
    absl::StatusOr<cache::Stores> opened =
        cache::OpenRocksDbStores(options.rocksdb_path);
    OVERTURE_CHECK(opened.ok());
    stores = *std::move(opened);
  }
  auto cache = cache::KvCache::Open({.max_bytes = int64_t{1} << 30},
                                    std::make_unique<cache::FaultyMetaStore>(
                                        std::move(stores.meta), &faults_),
                                    std::make_unique<cache::FaultyPayloadStore>(
                                        std::move(stores.payload), &faults_));
  OVERTURE_CHECK(cache.ok());
  cache_ = *std::move(cache);

  options.backend.gate = &gate_;
  options.backend.device_fault = &device_fault_;
  auto backend = std::make_unique<testing::FakeBackend>(options.backend);
  const testing::FakeModelFiles files(backend->config());
  auto engine =
      engine::Engine::Create(options.engine, files, tokenizer_.digest(),
                             std::move(backend), cache_.get());
  OVERTURE_CHECK(engine.ok());
  engine_ = *std::move(engine);

  options.server.now = [this] {
    absl::MutexLock lock(&clock_mutex_);
    return now_;
  };
  auto server = Server::Start(
      options.server,
      {.engine = engine_.get(),
       .cache = cache_.get(),
       .tokenizer = options.with_tokenizer ? &tokenizer_ : nullptr,
       .identity = {.name = "fake", .weights_digest = files.weights_digest()}});
  OVERTURE_CHECK(server.ok());
  server_ = *std::move(server);
  channel_ =
      options.server.listen.empty()
          ? server_->InProcessChannel()
          : grpc::CreateChannel(absl::StrCat("127.0.0.1:", server_->ports()[0]),
                                grpc::InsecureChannelCredentials());
  prefill_ = v1::PrefillService::NewStub(channel_);
  kv_ = v1::KvCacheService::NewStub(channel_);
  session_ = v1::SessionService::NewStub(channel_);
  admin_ = v1::AdminService::NewStub(channel_);
}

Harness::~Harness() { gate_.Open(); }

void Harness::FailWrites(bool fail) {
  faults_.puts_left = fail ? 0 : -1;
  faults_.fail_flush = fail;
  faults_.fail_commit = fail;
}

void Harness::Advance(absl::Duration by) {
  absl::MutexLock lock(&clock_mutex_);
  now_ += by;
}

std::vector<int32_t> Ids(int64_t count, int32_t first) {
  std::vector<int32_t> ids(count);
  for (int64_t i = 0; i < count; ++i) {
    ids[i] = static_cast<int32_t>((first + i) % 900);
  }
  return ids;
}

v1::PrefillRequest TokensRequest(const std::vector<int32_t>& ids) {
  v1::PrefillRequest request;
  request.mutable_tokens()->mutable_ids()->Assign(ids.begin(), ids.end());
  return request;
}

PrefillAnswer RunPrefill(Harness& harness, const v1::PrefillRequest& request) {
  PrefillAnswer answer;
  grpc::ClientContext context;
  auto reader = harness.prefill().Prefill(&context, request);
  v1::PrefillEvent event;
  while (reader->Read(&event)) answer.events.push_back(event);
  answer.status = reader->Finish();
  const auto& trailers = context.GetServerTrailingMetadata();
  if (const auto it = trailers.find("retry-delay-ms"); it != trailers.end()) {
    answer.retry_delay_ms =
        std::atoll(std::string(it->second.data(), it->second.size()).c_str());
  }
  return answer;
}

FetchAnswer RunFetch(Harness& harness, const v1::FetchRequest& request) {
  FetchAnswer answer;
  grpc::ClientContext context;
  auto reader = harness.kv().Fetch(&context, request);
  v1::KvChunk chunk;
  while (reader->Read(&chunk)) {
    switch (chunk.chunk_case()) {
      case v1::KvChunk::kBegin:
        answer.begin = chunk.begin();
        break;
      case v1::KvChunk::kData:
        answer.chunks.push_back(chunk.data());
        break;
      default:
        answer.end = chunk.end();
    }
  }
  answer.status = reader->Finish();
  return answer;
}

v1::Session CreateSession(Harness& harness, const std::string& id) {
  grpc::ClientContext context;
  v1::CreateSessionRequest request;
  request.set_id(id);
  v1::Session session;
  const grpc::Status status =
      harness.session().CreateSession(&context, request, &session);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return session;
}

}  // namespace overture::service
