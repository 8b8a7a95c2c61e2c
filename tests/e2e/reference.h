// What a prompt's greedy continuation must be: prefill and decoding in this
// process, with no server, no wire and no store between them.
// Thread-compatible.
//
// Against a server on the CPU, which computes in f32 as this does, answers are
// equal token for token. A server on the GPU computes in bf16, and in another
// order of sums when it reuses a prefix. Its logits are off by 0.03 of their
// rms (derived in tests/engine/decoder_test.cc, held in tests/engine/
// backend_suite.cc), the difference of two by 0.042, as good as normal: beyond
// four sigma, 0.17, one comparison in 15,000 strays, and an answer makes a few
// for each of its tokens. So each token of such an answer must be within
// kGpuTolerance of the best one, given those before it. Of a random model's 320
// logits the best lies near 2.8 sigma, and one or two are within 0.2 of it:
// what another prompt would have answered does not pass for long.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "compress/view.h"
#include "engine/backend.h"
#include "engine/create_backend.h"
#include "engine/decoder.h"
#include "engine/model_files.h"
#include "engine/selector_spec.h"

namespace overture::testing {

// Of the logits' rms.
inline constexpr double kGpuTolerance = 0.2;

// What a server was asked for.
struct Question {
  std::vector<int32_t> prompt;
  engine::SelectorSpec selector = {};
  // The answer is over the view's rows if there is one, else over the full KV.
  std::optional<compress::SnapKvOptions> view = {};
  int64_t max_tokens = 24;  // of the answer
};

class Reference {
 public:
  // `device` is the server's: kCpu or kCuda.
  static absl::StatusOr<std::unique_ptr<Reference>> Load(
      const std::string& model, engine::DeviceChoice device);

  // The greedy answer, without the EOS that ends it.
  absl::StatusOr<std::vector<int32_t>> Answer(const Question& question);

  // OK if `answer` may be a server's: see above. FAILED_PRECONDITION names the
  // token that may not.
  absl::Status Check(const Question& question,
                     absl::Span<const int32_t> answer);

  const KvLayout& layout() const { return backend_->kv_layout(); }

  // Ids of a prompt of `num_tokens` without the model's EOS; the same for the
  // same seed.
  std::vector<int32_t> RandomPrompt(int64_t num_tokens, uint32_t seed) const;

 private:
  // A prefilled prompt.
  struct Prefilled {
    std::vector<float> logits;
    std::unique_ptr<engine::Decoder> decoder;
  };

  Reference() = default;
  absl::StatusOr<Prefilled> Prefill(const Question& question);
  bool IsEos(int32_t token) const;
  // -1 if the model has none.
  int32_t BestEos(absl::Span<const float> logits) const;

  std::unique_ptr<engine::ModelFiles> files_;
  std::unique_ptr<engine::Backend> backend_;  // CPU, f32
  // The server's GPU, else null. Of dense KV the CPU is the judge; what a
  // selector or a view keeps depends on the device's tiles and roundings.
  std::unique_ptr<engine::Backend> gpu_;
  // Shared with the decoder of each prompt.
  std::shared_ptr<const engine::DecoderModel> model_;
};

}  // namespace overture::testing
