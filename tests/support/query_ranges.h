// Where the new rows of a prefill lie, as attention tests try them: one row,
// ragged tiles, prefixes that end within a tile.
#pragma once

#include <cstdint>

namespace overture::testing {

struct QueryRange {
  int64_t begin = 0;
  int64_t len = 0;
};

inline constexpr QueryRange kOddQueryRanges[] = {
    {0, 1},   {0, 63},   {0, 65},  {0, 129}, {1, 1},     {63, 2},
    {64, 64}, {100, 28}, {127, 1}, {130, 1}, {200, 333}, {255, 258}};

}  // namespace overture::testing
