#include "engine/passive_waits.h"

#include <unistd.h>

#include <cstdlib>

namespace overture::engine {

void WaitPassively(char** argv) {
  if (std::getenv("OMP_WAIT_POLICY") != nullptr ||
      std::getenv("GOMP_SPINCOUNT") != nullptr) {
    return;
  }
  if (setenv("OMP_WAIT_POLICY", "passive", /*overwrite=*/1) != 0) return;
  execv("/proc/self/exe", argv);  // returns only if it failed
}

}  // namespace overture::engine
