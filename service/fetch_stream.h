// One Fetch: begin, chunks, end. The next chunk is built, on a pool, only
// once gRPC has taken the one before, so a reader that does not read holds one
// chunk and its handle's leases, no thread. Exactly one of {task on the pool,
// write in flight} exists at any time until Finish, so no lock is needed.
// Deletes itself in OnDone.
#pragma once

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "overture/v1/kv_cache.pb.h"
#include "service/context.h"
#include "service/fetch_plan.h"

namespace overture::service {

// Fills KvData for a chunk of a handle's data. Keeps the records that the last
// chunk came from, since a small chunk limit cuts one record many times: at
// most one chunk's worth and the two at its ends. Thread-compatible.
class ChunkReader {
 public:
  // The data is shared with the registry: a release does not break the reader.
  ChunkReader(cache::KvCache* cache, std::shared_ptr<const HandleData> data,
              bool from_view)
      : cache_(cache), data_(std::move(data)), from_view_(from_view) {}

  // DATA_LOSS if stored bytes are missing or damaged.
  absl::Status Read(const FetchChunk& chunk, v1::KvData* out);

  const HandleData& data() const { return *data_; }

 private:
  struct Record {
    int32_t layer = 0;
    size_t span_idx = 0;
    int32_t block = 0;
    int64_t row_begin = 0;  // position of its first row
    int64_t num_rows = 0;   // that it holds, used or not
    std::string bytes;
    int64_t row_end() const { return row_begin + num_rows; }
  };
  absl::Status ReadFull(const FetchChunk& chunk, std::string* payload);
  void ReadView(const FetchChunk& chunk, v1::KvData* out);
  // Makes records_ those that hold the chunk's rows, ascending.
  absl::Status LoadRecords(const FetchChunk& chunk);

  cache::KvCache* const cache_;
  const std::shared_ptr<const HandleData> data_;
  const bool from_view_;
  std::vector<Record> records_;
};

class FetchStream final : public grpc::ServerWriteReactor<v1::KvChunk> {
 public:
  // Starts at once. `call` lives until OnDone.
  FetchStream(const ServiceContext* context, grpc::CallbackServerContext* call,
              const v1::FetchRequest& request);

  void OnWriteDone(bool ok) override;
  void OnCancel() override { cancelled_ = true; }
  void OnDone() override;

 private:
  absl::Status Begin(const v1::FetchRequest& request);
  void WriteNext();  // on the pool
  void End(const absl::Status& status);

  const ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  bool entered_ = false;
  std::atomic<bool> cancelled_{false};
  std::unique_ptr<FetchPlan> plan_;
  std::unique_ptr<ChunkReader> reader_;
  int64_t next_ = 0;  // chunk
  bool ended_ = false;
  v1::KvChunk message_;  // owned by gRPC while a write is in flight
};

}  // namespace overture::service
