// Records through the cache against the raw disk, same folder, same run:
//
//   cache_bench [--folder /tmp] [--mib 512] [--reader_threads 2]
//
// Writes and reads records of 192 KiB (SmolLM2-135M: 256 tokens, 3 KV heads of
// 64, bf16) and of 1 MiB (Llama-3-8B) and prints GB/s and the ratio to plain
// files, written with O_DIRECT and fsync and read at random offsets. Reads of
// the cache include its checksum.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "base/allocator.h"
#include "base/check.h"
#include "cache/kv_cache.h"
#include "cache/record_format.h"

ABSL_FLAG(std::string, folder, "/tmp",
          "where the store and the files are made");
ABSL_FLAG(int64_t, mib, 512, "bytes per run, in MiB");
ABSL_FLAG(int, reader_threads, 2, "threads that read");

namespace overture::cache {
namespace {

double Seconds(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

// Bytes that nothing can compress.
std::vector<std::byte> Noise(size_t size) {
  std::vector<std::byte> bytes(size);
  std::mt19937_64 random(1);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random() >> 56);
  return bytes;
}

// Runs `read(i)` for all i in [0, count), in random order, on all threads.
double ReadSeconds(int64_t count, const std::function<void(int64_t)>& read) {
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(2));
  std::atomic<int64_t> next{0};
  return Seconds([&] {
    std::vector<std::thread> threads;
    for (int t = 0; t < absl::GetFlag(FLAGS_reader_threads); ++t) {
      threads.emplace_back([&] {
        for (int64_t i; (i = next++) < count;) read(order[i]);
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
}

struct Rates {
  double write_gbs = 0;
  double read_gbs = 0;
};

// One file, records one after another.
Rates RawFile(const std::string& folder, int64_t record_bytes, int64_t count) {
  const std::string path = folder + "/raw";
  constexpr size_t kAlign = 4096;
  const auto noise = Noise(record_bytes);
  const auto aligned = [&] {
    return std::unique_ptr<void, void (*)(void*)>(
        std::aligned_alloc(kAlign, record_bytes), std::free);
  };
  int fd = open(path.c_str(), O_CREAT | O_RDWR | O_TRUNC | O_DIRECT, 0600);
  if (fd < 0) fd = open(path.c_str(), O_CREAT | O_RDWR | O_TRUNC, 0600);
  OVERTURE_CHECK(fd >= 0);
  const double gb = 1e-9 * static_cast<double>(record_bytes * count);
  Rates rates;
  rates.write_gbs =
      gb / Seconds([&] {
        const auto buffer = aligned();
        std::copy(noise.begin(), noise.end(),
                  static_cast<std::byte*>(buffer.get()));
        for (int64_t i = 0; i < count; ++i) {
          OVERTURE_CHECK(write(fd, buffer.get(), record_bytes) == record_bytes);
        }
        OVERTURE_CHECK(fsync(fd) == 0);
      });
  rates.read_gbs = gb / ReadSeconds(count, [&](int64_t i) {
                     const auto buffer = aligned();
                     OVERTURE_CHECK(pread(fd, buffer.get(), record_bytes,
                                          i * record_bytes) == record_bytes);
                   });
  close(fd);
  unlink(path.c_str());
  return rates;
}

// One prompt, a full block per record and layer.
Rates Cache(Stores stores, const KvLayout& layout, int64_t count) {
  auto cache = KvCache::Open({.max_bytes = int64_t{1} << 40,
                              .max_queued_bytes = int64_t{1} << 40,
                              .max_memory_bytes = 1},
                             std::move(stores.meta), std::move(stores.payload));
  OVERTURE_CHECK(cache.ok());
  ChainPolicy policy;
  policy.layout = layout;
  const int64_t num_blocks = count / layout.num_layers;
  std::vector<int32_t> tokens(num_blocks * kTokensPerBlock);
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto spans = PlanSpans(policy, {}, tokens);

  const double gb = 1e-9 * static_cast<double>(num_blocks * layout.num_layers *
                                               layout.LayerBytes(256));
  // Every layer is the same noise.
  const std::vector<std::byte> rows =
      Noise(layout.LayerBytes(static_cast<int64_t>(tokens.size())));
  const int64_t head_bytes = layout.HeadBytes(tokens.size());
  const LayerKvView view = {.k = rows.data(),
                            .v = rows.data() + layout.num_kv_heads * head_bytes,
                            .num_rows = static_cast<int64_t>(tokens.size()),
                            .head_stride_bytes = head_bytes};
  Rates rates;
  rates.write_gbs = gb / Seconds([&] {
                      auto writer = (*cache)->NewWriter(policy, spans);
                      OVERTURE_CHECK(writer.ok());
                      for (int32_t l = 0; l < layout.num_layers; ++l) {
                        (*writer)->PutLayer(l, view);
                      }
                      const CommitResult result = (*writer)->Commit({});
                      OVERTURE_CHECK(result.persisted);
                    });
  rates.read_gbs =
      gb / ReadSeconds(num_blocks * layout.num_layers, [&](int64_t i) {
        const auto record = (*cache)->ReadRecord(
            layout, spans[i / layout.num_layers],
            static_cast<int32_t>(i % layout.num_layers), 0);
        OVERTURE_CHECK(record.ok());
      });
  return rates;
}

void Run() {
  const std::string folder = absl::StrCat(absl::GetFlag(FLAGS_folder),
                                          "/overture-cache-bench-", getpid());
  std::filesystem::create_directory(folder);
  std::printf("%d reader threads, %ld MiB per run, %s\n",
              absl::GetFlag(FLAGS_reader_threads),
              static_cast<long>(absl::GetFlag(FLAGS_mib)), folder.c_str());
  std::printf("%-10s %-8s %12s %8s %12s %8s\n", "record", "store", "write GB/s",
              "/ raw", "read GB/s", "/ raw");
  const KvLayout kLayouts[] = {{.num_layers = 8,
                                .num_kv_heads = 3,
                                .head_dim = 64,
                                .dtype = DType::kBF16},
                               {.num_layers = 8,
                                .num_kv_heads = 8,
                                .head_dim = 128,
                                .dtype = DType::kBF16}};
  for (const KvLayout& layout : kLayouts) {
    const int64_t record_bytes = layout.LayerBytes(kTokensPerBlock);
    const int64_t count = absl::GetFlag(FLAGS_mib) * (1 << 20) / record_bytes /
                          layout.num_layers * layout.num_layers;
    const std::string name = absl::StrCat(record_bytes >> 10, " KiB");
    const auto print = [&](const char* store, const Rates& rates,
                           const Rates& raw) {
      std::printf("%-10s %-8s %12.2f %8.2f %12.2f %8.2f\n", name.c_str(), store,
                  rates.write_gbs, rates.write_gbs / raw.write_gbs,
                  rates.read_gbs, rates.read_gbs / raw.read_gbs);
      std::fflush(stdout);
    };
    const Rates raw = RawFile(folder, record_bytes, count);
    print("raw", raw, raw);
    auto stores = OpenRocksDbStores(folder + "/db");
    OVERTURE_CHECK(stores.ok());
    print("RocksDB", Cache(*std::move(stores), layout, count), raw);
    std::filesystem::remove_all(folder + "/db");
    print("memory", Cache(OpenMemoryStores(), layout, count), raw);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace overture::cache

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  overture::KeepFreedMemory();  // as the server does
  overture::cache::Run();
}
