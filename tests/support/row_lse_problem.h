// Inputs of one row-LSE call, with gaps after rows of q and k, its output, and
// the definition: what tests of both implementations share.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "gtest/gtest.h"
#include "kernels/row_lse/row_lse_params.h"

namespace overture::testing {

struct RowLseSize {
  DType dtype = DType::kF32;
  int64_t kv_len = 1;
  int32_t q_heads = 1;
  int32_t kv_heads = 1;
  int32_t head_dim = 64;
  int32_t num_rows = 1;
};

class RowLseProblem {
 public:
  explicit RowLseProblem(const RowLseSize& size) : size_(size) {
    std::mt19937 rng(7);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>* values,
                          std::vector<BFloat16>* rounded, int64_t count) {
      for (int64_t i = 0; i < count; ++i) {
        rounded->push_back(BFloat16(2 * normal(rng)));
        values->push_back(static_cast<float>(rounded->back()));
      }
    };
    fill(&q_, &q16_, stride_q_row() * size.num_rows);
    fill(&k_, &k16_, stride_k_head() * size.kv_heads);
    for (int32_t i = 0; i < size.num_rows; ++i) {
      positions_.push_back(
          static_cast<int64_t>(rng() % static_cast<uint64_t>(size.kv_len)));
    }
    positions_[size.num_rows / 2] = 0;
    positions_.back() = size.kv_len - 1;
    lse.assign(size.num_rows * size.q_heads, -1);
  }

  int64_t stride_q_row() const { return size_.q_heads * size_.head_dim + 8; }
  int64_t stride_k_row() const { return size_.head_dim + 8; }
  int64_t stride_k_head() const { return size_.kv_len * stride_k_row(); }
  const std::vector<BFloat16>& q16() const { return q16_; }
  const std::vector<BFloat16>& k16() const { return k16_; }

  kernels::RowLseParams Params() {
    const bool f32 = size_.dtype == DType::kF32;
    return {.dtype = size_.dtype,
            .q = f32 ? static_cast<const void*>(q_.data()) : q16_.data(),
            .k = f32 ? static_cast<const void*>(k_.data()) : k16_.data(),
            .stride_q_row = stride_q_row(),
            .stride_q_head = size_.head_dim,
            .stride_k_row = stride_k_row(),
            .stride_k_head = stride_k_head(),
            .num_q_heads = size_.q_heads,
            .num_kv_heads = size_.kv_heads,
            .head_dim = size_.head_dim,
            .kv_len = size_.kv_len,
            .scale = 1.0f / std::sqrt(static_cast<float>(size_.head_dim)),
            .positions = positions_,
            .lse = lse.data()};
  }

  // The definition in double.
  void ExpectEqualsDefinition() const {
    const int64_t d = size_.head_dim;
    for (int32_t i = 0; i < size_.num_rows; ++i) {
      for (int32_t h = 0; h < size_.q_heads; ++h) {
        const float* q = &q_[i * stride_q_row() + h * d];
        const float* k =
            &k_[h / (size_.q_heads / size_.kv_heads) * stride_k_head()];
        double sum = 0;
        double terms = 0;  // the largest sum of |q k| * scale
        for (int64_t c = 0; c <= positions_[i]; ++c) {
          double logit = 0;
          double size = 0;
          for (int64_t j = 0; j < d; ++j) {
            const double term =
                double{q[j]} * k[c * stride_k_row() + j] / std::sqrt(d);
            logit += term;
            size += std::abs(term);
          }
          terms = std::max(terms, size);
          sum += std::exp(logit);
        }
        // A logit, a sum of d products in fp32 times a rounded scale, is off by
        // (d + 2) eps of its terms, and an exponential by as much, relatively,
        // beside 4 eps of its own and one of its argument, at most 2 terms
        // large. The sum of up to n of them adds n / 16 + 32 roundings; the
        // logarithm's own is one of it.
        const double eps = std::numeric_limits<float>::epsilon() / 2;
        const double tolerance = eps * ((d + 6) * terms + positions_[i] / 16.0 +
                                        36 + std::abs(std::log(sum)));
        EXPECT_NEAR(lse[i * size_.q_heads + h], std::log(sum), tolerance)
            << "row at " << positions_[i] << ", head " << h;
      }
    }
  }

  std::vector<float> lse;  // [num_rows, q_heads]

 private:
  const RowLseSize size_;
  std::vector<float> q_, k_;
  std::vector<BFloat16> q16_, k16_;
  std::vector<int64_t> positions_;
};

}  // namespace overture::testing
