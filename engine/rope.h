// The angular frequencies of RoPE for a model's config, scaling included.
// Source: RoFormer, arXiv 2104.09864, section 3.2; scaling as Hugging Face
// Transformers `modeling_rope_utils.py`. We differ in computing in double: a
// float frequency is off by up to 6e-8, which turns a key at position 1e6 by
// 0.06 radians.
#pragma once

#include <vector>

#include "engine/model_config.h"

namespace overture::engine {

// inv_freq[i], i < head_dim / 2: radians that one position turns dimension i.
// REQUIRES Validate(config).ok().
std::vector<double> RopeInverseFrequencies(const ModelConfig& config);

}  // namespace overture::engine
