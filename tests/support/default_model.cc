#include "tests/support/default_model.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

namespace overture::testing {

std::string DefaultModelPath() {
  namespace fs = std::filesystem;
  const auto variable = [](const char* name) -> fs::path {
    const char* value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  fs::path home = variable("OVERTURE_HOME");
  if (home.empty()) {
    fs::path cache = variable("XDG_CACHE_HOME");
    if (cache.empty()) cache = variable("HOME") / ".cache";
    home = cache / "overture";
  }
  const fs::path path = home / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf";
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) ? path.string() : std::string();
}

}  // namespace overture::testing
