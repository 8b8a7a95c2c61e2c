// The default model's file, for tests that run on real weights. It is some
// 98 MB and not part of the repository.
//
//   const std::string path = DefaultModelPath();
//   if (path.empty()) GTEST_SKIP() << kNoDefaultModel;
#pragma once

#include <string>

namespace overture::testing {

inline constexpr char kNoDefaultModel[] =
    "needs models/SmolLM2-135M-Instruct.Q4_1.gguf under $OVERTURE_HOME "
    "(default $XDG_CACHE_HOME/overture or ~/.cache/overture)";

// Empty if there is no such file.
std::string DefaultModelPath();

}  // namespace overture::testing
