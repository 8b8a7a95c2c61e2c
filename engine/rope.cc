#include "engine/rope.h"

#include <cmath>
#include <numbers>

namespace overture::engine {
namespace {

// Wave lengths beyond the original context are stretched by `factor`, short
// ones are left alone, those between blend from one to the other.
double ScaleLlama3(double inv_freq, const RopeScaling& scaling) {
  const double wavelength = 2 * std::numbers::pi / inv_freq;
  const double original = static_cast<double>(scaling.original_max_positions);
  if (wavelength > original / scaling.low_freq_factor) {
    return inv_freq / scaling.factor;
  }
  if (wavelength < original / scaling.high_freq_factor) return inv_freq;
  const double smooth = (original / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1 - smooth) * inv_freq / scaling.factor + smooth * inv_freq;
}

}  // namespace

std::vector<double> RopeInverseFrequencies(const ModelConfig& config) {
  std::vector<double> inv_freq(config.head_dim / 2);
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / config.head_dim;
    double value = std::pow(config.rope_theta, -exponent);
    switch (config.rope_scaling.kind) {
      case RopeScaling::Kind::kNone:
        break;
      case RopeScaling::Kind::kLinear:
        value /= config.rope_scaling.factor;
        break;
      case RopeScaling::Kind::kLlama3:
        value = ScaleLlama3(value, config.rope_scaling);
        break;
    }
    inv_freq[i] = value;
  }
  return inv_freq;
}

}  // namespace overture::engine
