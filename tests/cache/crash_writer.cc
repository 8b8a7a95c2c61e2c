// Writes spans into a store until it is killed; kv_cache_crash_test.cc is the
// killer. Each line of standard output acknowledges one commit:
//
//   <root kind> <prompt seed> <tokens>
//
// Arguments: folder, first seed.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/check.h"
#include "cache/kv_cache.h"
#include "tests/cache/cache_test_util.h"

namespace overture::cache {
namespace {

void Run(const std::string& folder, uint64_t seed) {
  auto stores = OpenRocksDbStores(folder);
  OVERTURE_CHECK(stores.ok());
  auto cache =
      KvCache::Open({.max_bytes = int64_t{1} << 30}, std::move(stores->meta),
                    std::move(stores->payload));
  OVERTURE_CHECK(cache.ok());
  const auto acknowledge = [](const std::string& line) {
    // One write: the reader sees a whole line or none.
    OVERTURE_CHECK(write(STDOUT_FILENO, line.data(), line.size()) ==
                   static_cast<ssize_t>(line.size()));
  };
  acknowledge("open\n");
  for (;; ++seed) {
    const bool sparse = seed % 2 == 1;
    const ChainPolicy policy =
        sparse ? SparsePolicy(kBlobLayout) : DensePolicy(kBlobLayout);
    // Three turns of one conversation.
    const auto tokens = Prompt(seed, 1000);
    for (const int64_t n : {290, 640, 1000}) {
      Turn(**cache, policy, absl::MakeConstSpan(tokens).first(n), 64);
      acknowledge(std::to_string(sparse) + " " + std::to_string(seed) + " " +
                  std::to_string(n) + "\n");
    }
  }
}

}  // namespace
}  // namespace overture::cache

int main(int argc, char** argv) {
  OVERTURE_CHECK(argc == 3);
  overture::cache::Run(argv[1], std::strtoull(argv[2], nullptr, 10));
}
