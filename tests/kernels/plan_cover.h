// What one list of a tile plan computes, expanded pair by pair: the slow
// obvious reading of a plan, for tests.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/tile_plan.h"

namespace overture::kernels::testing {

class PlanCover {
 public:
  PlanCover(const TilePlan& plan, int64_t list)
      : q_begin_(plan.q_begin),
        kv_len_(plan.kv_len),
        counts_(plan.q_len * plan.kv_len) {
    const int64_t q_end = plan.q_begin + plan.q_len;
    for (int64_t tile = 0; tile < plan.num_q_tiles(); ++tile) {
      const int64_t s = plan.first_tile_begin() + tile * plan.tile_rows;
      const int64_t cell = list * plan.num_q_tiles() + tile;
      for (int64_t row = s; row < s + plan.tile_rows; ++row) {
        if (row < q_begin_ || row >= q_end) continue;
        for (int64_t i = plan.range_offsets[cell];
             i < plan.range_offsets[cell + 1]; ++i) {
          const int64_t begin = plan.ranges[i].begin;
          const int64_t length = plan.ranges[i].num_tiles * plan.tile_keys;
          for (int64_t k = begin; k < begin + length; ++k) Add(row, k);
        }
        for (int64_t i = plan.interval_offsets[cell];
             i < plan.interval_offsets[cell + 1]; ++i) {
          const ColumnInterval& interval = plan.intervals[i];
          for (int64_t c = 0; c < interval.count; ++c) {
            Add(row,
                plan.columns[plan.column_offsets[list] + interval.begin + c]);
          }
        }
      }
    }
  }

  // How often the pair enters the softmax; `row` and `key` are absolute.
  int Count(int64_t row, int64_t key) const {
    return counts_[(row - q_begin_) * kv_len_ + key];
  }

  int64_t NumPairs() const {
    int64_t pairs = 0;
    for (const uint8_t count : counts_) pairs += count;
    return pairs;
  }

 private:
  // The kernel's masks: causal and the tail.
  void Add(int64_t row, int64_t key) {
    if (key <= row && key < kv_len_) {
      ++counts_[(row - q_begin_) * kv_len_ + key];
    }
  }

  int64_t q_begin_;
  int64_t kv_len_;
  std::vector<uint8_t> counts_;  // [q_len, kv_len]
};

}  // namespace overture::kernels::testing
