#include "tests/support/temp_dir.h"

#include <stdlib.h>

#include <system_error>

#include "base/check.h"

namespace overture::testing {

TempDir::TempDir() {
  std::string pattern =
      (std::filesystem::temp_directory_path() / "overture-test-XXXXXX")
          .string();
  OVERTURE_CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace overture::testing
