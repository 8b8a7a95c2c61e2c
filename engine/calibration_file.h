// What `overture calibrate` writes: what each head of one model keeps, what was
// measured of it, and of which samples (docs/calibration.md has the format).
// Read only for the model that it was made for.
//
// Thread-safe: no state. Errors name the file: INVALID_ARGUMENT for what is no
// such file, naming the field; FAILED_PRECONDITION for another model's;
// MappedFile's when it cannot be read.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/hash.h"
#include "engine/head_search.h"
#include "engine/head_sizes.h"
#include "engine/model_files.h"

namespace overture::engine {

struct CalibrationSample {
  std::string name;     // of its file
  Sha256Digest digest;  // of its token ids, 4 bytes each, little endian
  int64_t num_tokens = 0;
};

struct Calibration {
  std::string model;            // its name, for people
  Sha256Digest weights_digest;  // ModelFiles::weights_digest
  std::vector<CalibrationSample> samples;
  uint32_t seed = 0;
  int32_t rows = 0;            // measured of each sample
  double density = 0;          // asked for, mean over heads
  int64_t segment_tokens = 0;  // SelectorSpec's of the search
  HeadSizes sizes;
  std::vector<std::vector<CandidateScore>> scores;  // [layer][query head]
};

std::string CalibrationJson(const Calibration& calibration);

// `what` names the text in errors.
absl::StatusOr<Calibration> ParseCalibration(absl::string_view text,
                                             absl::string_view what,
                                             const Sha256Digest& weights_digest,
                                             int32_t num_layers,
                                             int32_t num_q_heads);

// A model's sizes from either kind of file: an object is a calibration, a list
// one of MInference's (minference_config.h, which says its errors).
absl::StatusOr<HeadSizes> LoadHeadSizes(const std::string& path,
                                        const ModelFiles& model);

}  // namespace overture::engine
