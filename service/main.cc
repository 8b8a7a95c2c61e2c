// overtured: opens the store, the model and the engine, serves until SIGTERM
// or SIGINT. Start-up is recovery: there is no state that a clean exit writes.
#include <omp.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/allocator.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "cache/kv_cache.h"
#include "engine/backend.h"
#include "engine/calibration_file.h"
#include "engine/create_backend.h"
#include "engine/engine.h"
#include "engine/head_sizes.h"
#include "engine/model_files.h"
#include "engine/passive_waits.h"
#include "engine/tokenizer.h"
#include "service/config.h"
#include "service/convert.h"
#include "service/server.h"

namespace overture::service {
namespace {

// Logs what was done and how long it took since the last step.
class Steps {
 public:
  void Done(absl::string_view what) {
    const absl::Time now = absl::Now();
    Log(Severity::kInfo, absl::StrFormat("overtured: %s (%.2f s)", what,
                                         absl::ToDoubleSeconds(now - last_)));
    last_ = now;
  }

 private:
  absl::Time last_ = absl::Now();
};

absl::StatusOr<std::string> ReadTextFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return absl::NotFoundError(absl::StrCat(path, ": ", std::strerror(errno)));
  }
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// Whole or not at all, since others poll for it.
absl::Status WritePortFile(const std::string& path, int port) {
  const std::string temporary = absl::StrCat(path, ".tmp");
  {
    std::ofstream out(temporary, std::ios::binary);
    out << port << "\n";
    if (!out.flush()) {
      return absl::UnavailableError(
          absl::StrCat("port_file: ", temporary, ": ", std::strerror(errno)));
    }
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("port_file: ", path, ": ", error.message()));
  }
  return absl::OkStatus();
}

int64_t HalfOfMemory() {
  const int64_t pages = sysconf(_SC_PHYS_PAGES);
  const int64_t page_bytes = sysconf(_SC_PAGESIZE);
  return pages > 0 && page_bytes > 0 ? pages * page_bytes / 2
                                     : int64_t{4} << 30;
}

struct OpenedStore {
  std::unique_ptr<cache::KvCache> cache;
  int64_t max_bytes = 0;
};

absl::StatusOr<OpenedStore> OpenStore(const Config& config) {
  OpenedStore out;
  cache::Stores stores;
  if (config.rocksdb) {
    std::error_code error;
    std::filesystem::create_directories(config.data_dir, error);
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("data_dir: ", config.data_dir, ": ", error.message()));
    }
    OVERTURE_ASSIGN_OR_RETURN(
        out.max_bytes, ChooseMaxStoreBytes(config.max_store_bytes,
                                           RoomForStore(config.data_dir)));
    OVERTURE_ASSIGN_OR_RETURN(
        stores, cache::OpenRocksDbStores(
                    (std::filesystem::path(config.data_dir) / "kv").string()));
  } else {
    OVERTURE_ASSIGN_OR_RETURN(
        out.max_bytes,
        ChooseMaxStoreBytes(config.max_store_bytes, HalfOfMemory()));
    stores = cache::OpenMemoryStores();
  }
  OVERTURE_ASSIGN_OR_RETURN(
      out.cache,
      cache::KvCache::Open({.max_bytes = out.max_bytes,
                            .max_memory_bytes = config.max_memory_bytes},
                           std::move(stores.meta), std::move(stores.payload)));
  return out;
}

// Null, with a warning, for a model whose tokenizer this build cannot run: it
// is served by ids.
absl::StatusOr<std::unique_ptr<engine::Tokenizer>> LoadTokenizer(
    const std::string& model) {
  absl::StatusOr<std::unique_ptr<engine::Tokenizer>> tokenizer =
      engine::Tokenizer::Load(model);
  if (absl::IsUnimplemented(tokenizer.status()) ||
      absl::IsNotFound(tokenizer.status())) {
    Log(Severity::kWarning,
        absl::StrCat("overtured: no tokenizer, only token ids are served: ",
                     tokenizer.status().message()));
    return std::unique_ptr<engine::Tokenizer>();
  }
  return tokenizer;
}

// True if the supervisor wants us gone already.
bool StopRequested() {
  sigset_t pending;
  return sigpending(&pending) == 0 && (sigismember(&pending, SIGTERM) == 1 ||
                                       sigismember(&pending, SIGINT) == 1);
}

absl::Status Serve(const Config& config, const sigset_t& stop_signals) {
  const absl::Time begin = absl::Now();
  Steps steps;
  KeepFreedMemory();
  if (config.threads > 0) omp_set_num_threads(config.threads);

  OVERTURE_ASSIGN_OR_RETURN(OpenedStore store, OpenStore(config));
  const cache::KvCache::Stats stats = store.cache->stats();
  steps.Done(absl::StrFormat(
      "opened the %s store: %d spans, %d sessions, %d of %d bytes",
      config.rocksdb ? "rocksdb" : "memory", stats.num_spans,
      stats.num_sessions, stats.stored_bytes, store.max_bytes));

  OVERTURE_ASSIGN_OR_RETURN(const std::unique_ptr<engine::ModelFiles> files,
                            engine::LoadModelFiles(config.model));
  std::string name = files->config().name;
  if (name.empty()) {
    name = std::filesystem::path(config.model).filename().string();
  }
  steps.Done(absl::StrCat("read the model ", name, ", architecture ",
                          files->config().architecture));

  // Before the weights, which take long: a wrong file is told at once.
  engine::HeadSizes head_sizes;
  if (!config.minference_config.empty()) {
    OVERTURE_ASSIGN_OR_RETURN(
        head_sizes, engine::LoadHeadSizes(config.minference_config, *files));
    steps.Done(absl::StrCat("read sizes per head from ",
                            config.minference_config, ", digest ",
                            head_sizes.digest().Hex()));
  }
  OVERTURE_ASSIGN_OR_RETURN(
      const engine::SelectorSpec default_selector,
      SelectorFromProto(config.selector, engine::SelectorSpec(), head_sizes));

  OVERTURE_ASSIGN_OR_RETURN(const std::unique_ptr<engine::Tokenizer> tokenizer,
                            LoadTokenizer(config.model));
  steps.Done("read the tokenizer");
  if (StopRequested()) return absl::OkStatus();

  OVERTURE_ASSIGN_OR_RETURN(
      std::unique_ptr<engine::Backend> backend,
      engine::CreateBackend(*files, config.device, config.dtype, config.linears,
                            config.attention));
  steps.Done(absl::StrCat("packed the weights: ", backend->numerics(), " on ",
                          backend->device_name()));
  OVERTURE_RETURN_IF_ERROR(backend->Supports(default_selector));
  if (StopRequested()) return absl::OkStatus();

  // A GPU knows what its own memory takes.
  const int64_t default_work_bytes =
      backend->device_name() == "cpu" ? HalfOfMemory() : 0;

  const ModelIdentity identity{.name = name,
                               .weights_digest = files->weights_digest(),
                               .tokenizer_digest = tokenizer != nullptr
                                                       ? tokenizer->digest()
                                                       : Sha256Digest()};
  OVERTURE_ASSIGN_OR_RETURN(
      const std::unique_ptr<engine::Engine> engine,
      engine::Engine::Create({.max_prompt_tokens = config.max_prompt_tokens,
                              .max_queued = config.max_queued,
                              .max_workspace_bytes = config.max_work_bytes > 0
                                                         ? config.max_work_bytes
                                                         : default_work_bytes,
                              .model_id = name},
                             *files, identity.tokenizer_digest,
                             std::move(backend), store.cache.get()));

  ServerOptions options{
      .listen = config.listen,
      .limits = {.handle_ttl = config.handle_ttl,
                 .default_selector = default_selector,
                 .head_sizes = head_sizes,
                 .store_name = config.rocksdb ? "rocksdb" : "memory",
                 .max_store_bytes = store.max_bytes},
      .max_queued = config.max_queued,
      .max_handles = config.max_handles,
      .max_view_bytes = config.max_view_bytes};
  if (config.threads > 0) {
    // OpenMP's setting belongs to a thread.
    options.on_prefill_thread_start = [threads = config.threads] {
      omp_set_num_threads(threads);
    };
  }
  OVERTURE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Server> server,
      Server::Start(options, {.engine = engine.get(),
                              .cache = store.cache.get(),
                              .tokenizer = tokenizer.get(),
                              .identity = identity}));
  if (!config.port_file.empty()) {
    OVERTURE_RETURN_IF_ERROR(
        WritePortFile(config.port_file, server->ports()[0]));
  }
  std::vector<std::string> addresses = config.listen;
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (absl::StartsWith(addresses[i], "unix")) continue;
    addresses[i] =
        absl::StrCat(addresses[i].substr(0, addresses[i].rfind(':') + 1),
                     server->ports()[i]);
  }
  // The line that scripts wait for.
  std::printf("overtured ready on %s after %.2f s\n",
              absl::StrJoin(addresses, ",").c_str(),
              absl::ToDoubleSeconds(absl::Now() - begin));
  std::fflush(stdout);
  steps.Done(absl::StrCat("serving on ", absl::StrJoin(addresses, ", ")));

  int signal = 0;
  sigwait(&stop_signals, &signal);
  Log(Severity::kInfo,
      absl::StrCat("overtured: ", strsignal(signal), ", stopping"));
  steps = Steps();
  const bool clean = server->Shutdown(config.grace);
  steps.Done(clean ? "stopped, every call had ended"
                   : "stopped, calls were cancelled at the limit");
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  // Before any thread exists, so that all inherit it and sigwait gets them.
  sigset_t stop_signals;
  sigemptyset(&stop_signals);
  sigaddset(&stop_signals, SIGTERM);
  sigaddset(&stop_signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &stop_signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);

  const std::vector<std::string> args(argv + 1, argv + argc);
  const absl::StatusOr<Config> config = ParseConfig(args, ReadTextFile);
  if (!config.ok()) {
    std::fprintf(stderr, "overtured: %s\n",
                 std::string(config.status().message()).c_str());
    return 2;
  }
  if (config->help) {
    std::fputs(HelpText().c_str(), stdout);
    return 0;
  }
  if (config->version) {
    std::puts("overtured " OVERTURE_VERSION);
    return 0;
  }
  const absl::Status status = Serve(*config, stop_signals);
  if (!status.ok()) {
    Log(Severity::kError, absl::StrCat("overtured: ", status.ToString()));
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace overture::service

int main(int argc, char** argv) {
  overture::engine::WaitPassively(argv);
  return overture::service::Main(argc, argv);
}
