// Random queries and means for tests of block scores, and the scores themselves
// by the definition, in double.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/block_means/block_means_cpu.h"
#include "kernels/selectors/block_scores.h"

namespace overture::kernels::testing {

class BlockProblem {
 public:
  struct Options {
    DType dtype = DType::kBF16;
    int32_t num_q_heads = 4;
    int32_t num_kv_heads = 2;
    int32_t head_dim = 32;
    int64_t q_begin = 0;
    int64_t q_len = 1;
    float q_size = 4;  // of every element, about; those of means are near 1
    uint32_t seed = 1;
    int64_t gap = 8;  // elements after every row
  };

  explicit BlockProblem(const Options& o) {
    std::mt19937 random(o.seed);
    params_ = {.dtype = o.dtype,
               .stride_q_row = o.num_q_heads * o.head_dim + o.gap,
               .stride_q_head = o.head_dim,
               .num_q_heads = o.num_q_heads,
               .num_kv_heads = o.num_kv_heads,
               .head_dim = o.head_dim,
               .scale = 1.0f / std::sqrt(static_cast<float>(o.head_dim)),
               .q_begin = o.q_begin,
               .q_len = o.q_len};
    BlockScoreParams& p = params_;
    // A few more than are asked for, as a cache has.
    const int64_t blocks = p.num_blocks() + 3;
    const int64_t supers = blocks / kBlocksPerSuperBlock + 1;
    p.stride_mean_row = o.head_dim + o.gap;
    p.stride_mean_head = (blocks + 1) * p.stride_mean_row;
    p.stride_super_row = o.head_dim;
    p.stride_super_head = supers * o.head_dim;
    Fill(o.q_len * p.stride_q_row, o.q_size, random, &q_);
    Fill(o.num_kv_heads * p.stride_mean_head, 1.0f, random, &means_);
    BlockMeansParams super = {.dtype = o.dtype,
                              .stride_row = p.stride_mean_row,
                              .stride_head = p.stride_mean_head,
                              .stride_mean_row = p.stride_super_row,
                              .stride_mean_head = p.stride_super_head,
                              .num_heads = o.num_kv_heads,
                              .head_dim = o.head_dim,
                              .block_rows = kBlocksPerSuperBlock,
                              .block_end = blocks / kBlocksPerSuperBlock};
    size_ = MaxNorm(q_, p.stride_q_row, p.num_q_heads) *
            MaxNorm(means_, p.stride_mean_row, 1) * p.scale * M_LOG2E;
    supers_.resize(o.num_kv_heads * p.stride_super_head);
    if (o.dtype == DType::kBF16) {
      for (float f : q_) bf16_q_.push_back(BFloat16(f));
      for (float f : means_) bf16_means_.push_back(BFloat16(f));
      bf16_supers_.resize(supers_.size());
      super.rows = bf16_means_.data();
      super.means = bf16_supers_.data();
      EXPECT_TRUE(BlockMeansCpu(super).ok());
      std::transform(bf16_supers_.begin(), bf16_supers_.end(), supers_.begin(),
                     [](BFloat16 b) { return static_cast<float>(b); });
      p.q = bf16_q_.data();
      p.k_means = bf16_means_.data();
      p.super_means = bf16_supers_.data();
    } else {
      super.rows = means_.data();
      super.means = supers_.data();
      EXPECT_TRUE(BlockMeansCpu(super).ok());
      p.q = q_.data();
      p.k_means = means_.data();
      p.super_means = supers_.data();
    }
  }
  BlockProblem(const BlockProblem&) = delete;
  BlockProblem& operator=(const BlockProblem&) = delete;

  const BlockScoreParams& params() const { return params_; }
  const std::vector<BFloat16>& bf16_q() const { return bf16_q_; }
  const std::vector<BFloat16>& bf16_means() const { return bf16_means_; }
  const std::vector<BFloat16>& bf16_supers() const { return bf16_supers_; }

  double Score(int64_t head, int64_t tile, int64_t block) const {
    return LogOfSum(head, tile,
                    &means_[KvHead(head) * params_.stride_mean_head +
                            block * params_.stride_mean_row]);
  }
  double SuperScore(int64_t head, int64_t tile, int64_t super) const {
    return LogOfSum(head, tile,
                    &supers_[KvHead(head) * params_.stride_super_head +
                             super * params_.stride_super_row]);
  }

  // Of a score. A logit is a sum of head_dim products, off by a cut of 2^-23
  // (tensor cores) or a rounding for each of them and for the scale, of at most
  // the product of the norms. Its power of two is off by as much times log(2),
  // relative, and by 2^-20 for the exponential and the sum of 128; the
  // logarithm undoes the former. Last, the roundings of a score itself.
  double Tolerance() const {
    return (params_.head_dim + 4) * 1.5 * 0x1p-23 * size_ + 0x1p-19 +
           (size_ + 8) * 0x1p-22;
  }

 private:
  // Rounded to bf16, so that both types hold the same.
  static void Fill(int64_t count, float size, std::mt19937& random,
                   std::vector<float>* values) {
    std::normal_distribution<float> normal(0.0f, size);
    values->resize(count);
    for (float& v : *values) v = static_cast<float>(BFloat16(normal(random)));
  }

  double MaxNorm(const std::vector<float>& values, int64_t stride_row,
                 int64_t heads) const {
    double max = 0;
    for (size_t row = 0; row + params_.head_dim <= values.size();
         row += stride_row) {
      for (int64_t head = 0; head < heads; ++head) {
        double sum = 0;
        for (int64_t i = 0; i < params_.head_dim; ++i) {
          const double v = values[row + head * params_.head_dim + i];
          sum += v * v;
        }
        max = std::max(max, sum);
      }
    }
    return std::sqrt(max);
  }

  int64_t KvHead(int64_t head) const {
    return head / (params_.num_q_heads / params_.num_kv_heads);
  }

  double LogOfSum(int64_t head, int64_t tile, const float* mean) const {
    const BlockScoreParams& p = params_;
    const int64_t s = p.first_tile_begin() + tile * kBlockTileRows;
    const int64_t end = std::min(s + kBlockTileRows, p.q_begin + p.q_len);
    std::vector<double> logits;
    double max = -std::numeric_limits<double>::infinity();
    for (int64_t row = std::max(s, p.q_begin); row < end; ++row) {
      const float* q =
          &q_[(row - p.q_begin) * p.stride_q_row + head * p.stride_q_head];
      double dot = 0;
      for (int64_t i = 0; i < p.head_dim; ++i) dot += double{q[i]} * mean[i];
      logits.push_back(dot * p.scale * M_LOG2E);
      max = std::max(max, logits.back());
    }
    double sum = 0;
    for (const double logit : logits) sum += std::exp2(logit - max);
    return max + std::log2(sum);
  }

  BlockScoreParams params_;
  double size_ = 0;  // of a logit, at most
  std::vector<float> q_, means_, supers_;
  std::vector<BFloat16> bf16_q_, bf16_means_, bf16_supers_;
};

}  // namespace overture::kernels::testing
