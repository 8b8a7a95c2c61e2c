// What every engine::Backend must do, as one suite: a test program instantiates
// it for its back ends.
//
//   INSTANTIATE_TEST_SUITE_P(Cpu, BackendSuite, ::testing::Values(...),
//                            NameOfCase);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/backend.h"
#include "engine/model_files.h"
#include "engine/selector_spec.h"
#include "gtest/gtest.h"
#include "tests/support/naive_llama.h"
#include "tests/support/prefill_harness.h"
#include "tests/support/tiny_model.h"

namespace overture::engine {

struct BackendCase {
  std::string name;
  std::function<absl::StatusOr<std::unique_ptr<Backend>>(const ModelFiles&)>
      create;
  int32_t head_dim = 0;   // of the models that it is given
  int64_t tile_rows = 0;  // of its plans; their key tiles are of 64
  // Relative rms that logits, K and V may be off by from the exact pass.
  double tolerance = 0;
  // What a vote may be off by, as a share of it.
  double vote_tolerance = 0;
  // Whether the bits of a row depend on nothing but its tokens: not on how many
  // rows were computed with it.
  bool bitwise = false;
  // Whether its attention runs single columns, and so vertical-slash.
  bool columns = true;
};

// A vertical-slash selector of one size for all heads.
SelectorSpec VerticalSlash(int32_t vertical, int32_t slash, int64_t segment);
// The same with blocks beside it, their means in place of those left out.
SelectorSpec Hybrid(int32_t vertical, int32_t slash, float threshold,
                    int64_t segment);

inline std::string NameOfCase(
    const ::testing::TestParamInfo<BackendCase>& info) {
  return info.param.name;
}

class BackendSuite : public ::testing::TestWithParam<BackendCase> {
 protected:
  // Of the case's head dim.
  static testing::TinyModelOptions Tiny(testing::TinyModelOptions options = {});
  static std::unique_ptr<Backend> NewBackend(const ModelFiles& files);
  // Whether the case's attention does.
  static bool Runs(const SelectorSpec& selector);

  // The case's tolerance from the naive pass under `mask`, for logits and every
  // layer's K and V.
  static void ExpectEqualsNaive(const testing::TinyModelOptions& options,
                                int64_t count,
                                const SelectorSpec& selector = {},
                                const testing::NaiveMask& mask = nullptr);
  // Of two results of one back end: equal bits if the case is bitwise.
  static void ExpectSame(const testing::RecordedPrefill& got,
                         const testing::RecordedPrefill& want);
};

}  // namespace overture::engine
