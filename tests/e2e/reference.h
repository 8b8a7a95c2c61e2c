// What a prompt's greedy continuation must be: prefill and decoding in this
// process, with no server, no wire and no store between them.
// Thread-compatible.
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
#include "engine/decoder.h"
#include "engine/model_files.h"
#include "engine/selector_spec.h"

namespace overture::testing {

class Reference {
 public:
  static absl::StatusOr<std::unique_ptr<Reference>> Load(
      const std::string& model, engine::ComputeDType dtype);

  // At most `max_tokens` ids, without the EOS that ends them; over the view's
  // rows if there is a view, else over the full KV.
  absl::StatusOr<std::vector<int32_t>> Continue(
      absl::Span<const int32_t> prompt, const engine::SelectorSpec& selector,
      const std::optional<compress::SnapKvOptions>& view, int64_t max_tokens);

  // Ids of a prompt of `num_tokens` without the model's EOS; the same for the
  // same seed.
  std::vector<int32_t> RandomPrompt(int64_t num_tokens, uint32_t seed) const;

 private:
  Reference() = default;

  std::unique_ptr<engine::ModelFiles> files_;
  std::unique_ptr<engine::Backend> backend_;
  // Shared with the decoder of each Continue.
  std::shared_ptr<const engine::DecoderModel> model_;
};

}  // namespace overture::testing
