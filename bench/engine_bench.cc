// Cold and warm prefill through the engine and a RocksDB cache on disk:
//
//   engine_bench --model PATH --cache FOLDER [--tokens 7000] [--question 64]
//
// Cold computes --tokens tokens and stores them; warm asks --question more
// tokens after them, three times over, each a miss beyond the first's prefix.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "base/status_macros.h"
#include "cache/kv_cache.h"
#include "engine/backend.h"
#include "engine/engine.h"
#include "engine/model_files.h"
#include "engine/passive_waits.h"

ABSL_FLAG(std::string, model, "", "GGUF file or Hugging Face folder");
ABSL_FLAG(std::string, cache, "", "folder for the cache; made if absent");
ABSL_FLAG(int64_t, tokens, 7000, "length of the cold prompt");
ABSL_FLAG(int64_t, question, 64, "new tokens of a warm prompt");

namespace overture::engine {
namespace {

absl::Status Run() {
  OVERTURE_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFiles> files,
                            LoadModelFiles(absl::GetFlag(FLAGS_model)));
  OVERTURE_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                            CreateCpuBackend(*files, ComputeDType::kAuto));
  OVERTURE_ASSIGN_OR_RETURN(
      cache::Stores stores,
      cache::OpenRocksDbStores(absl::GetFlag(FLAGS_cache)));
  OVERTURE_ASSIGN_OR_RETURN(
      const std::unique_ptr<cache::KvCache> cache,
      cache::KvCache::Open({.max_bytes = int64_t{8} << 30},
                           std::move(stores.meta), std::move(stores.payload)));
  OVERTURE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Engine> engine,
      Engine::Create({.model_id = "bench"}, *files, Sha256Digest{},
                     std::move(backend), cache.get()));

  std::mt19937 random(std::random_device{}());
  const auto draw = [&](int64_t count, std::vector<int32_t>* tokens) {
    for (int64_t i = 0; i < count; ++i) {
      tokens->push_back(
          static_cast<int32_t>(random() % files->config().vocab_size));
    }
  };
  std::vector<int32_t> document;
  draw(absl::GetFlag(FLAGS_tokens), &document);
  std::printf("%6s %7s %8s %8s %8s %8s %8s %8s\n", "", "reused", "computed",
              "ttft", "match", "compute", "store", "persist");
  double cold = 0;
  double warm = 1e9;
  for (int turn = 0; turn < 4; ++turn) {
    std::vector<int32_t> tokens = document;
    if (turn > 0) draw(absl::GetFlag(FLAGS_question), &tokens);
    OVERTURE_ASSIGN_OR_RETURN(
        const PrefillResult result,
        engine->Prefill({.tokens = std::move(tokens)}, nullptr));
    const PrefillStats& stats = result.stats;
    std::printf("%6s %7ld %8ld %8.3f %8.3f %8.3f %8.3f %8d\n",
                turn == 0 ? "cold" : "warm",
                static_cast<long>(stats.reused_tokens),
                static_cast<long>(stats.computed_tokens), stats.ttft_seconds,
                stats.match_seconds, stats.compute_seconds, stats.store_seconds,
                result.persisted);
    if (turn == 0) cold = stats.ttft_seconds;
    if (turn > 0) warm = std::min(warm, stats.ttft_seconds);
  }
  std::printf("cold / best warm time to first token: %.1f\n", cold / warm);
  return absl::OkStatus();
}

}  // namespace
}  // namespace overture::engine

int main(int argc, char** argv) {
  overture::engine::WaitPassively(argv);
  absl::SetProgramUsageMessage("times cold and warm prefills");
  absl::ParseCommandLine(argc, argv);
  const absl::Status status = overture::engine::Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
