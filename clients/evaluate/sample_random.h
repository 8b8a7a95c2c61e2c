// The random numbers of samples: SplitMix64 (Steele, Lea and Flood, "Fast
// splittable pseudorandom number generators", 2014), because a sample must be
// the same on every machine and std:: distributions are not. Thread-compatible.
#pragma once

#include <cstdint>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/check.h"

namespace overture::clients {

class SampleRandom {
 public:
  explicit SampleRandom(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    return z ^ (z >> 31);
  }

  // In [0, n), n >= 1: the high half of a product, off from even by n / 2^64.
  int64_t Below(int64_t n) {
    OVERTURE_CHECK(n >= 1);
    return static_cast<int64_t>(
        (static_cast<unsigned __int128>(Next()) * static_cast<uint64_t>(n)) >>
        64);
  }

  // In [0, 1), 53 bits.
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

  // `count` different numbers of [0, n), count <= n, in random order.
  std::vector<int64_t> Distinct(int64_t n, int64_t count) {
    OVERTURE_CHECK(count <= n);
    std::vector<int64_t> out;
    std::unordered_set<int64_t> seen;
    while (static_cast<int64_t>(out.size()) < count) {
      const int64_t i = Below(n);
      if (seen.insert(i).second) out.push_back(i);
    }
    return out;
  }

  template <typename T>
  void Shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1],
                items[static_cast<size_t>(Below(static_cast<int64_t>(i)))]);
    }
  }

 private:
  uint64_t state_;
};

}  // namespace overture::clients
