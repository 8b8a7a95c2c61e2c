// A check that stays on in release builds, for our own bugs only: no user
// input, file or network byte may be able to trip one. Prints the condition
// and the place, then aborts.
#pragma once

#include <cstdio>
#include <cstdlib>

#define OVERTURE_CHECK(cond)                                                \
  do {                                                                      \
    if (!(cond)) [[unlikely]] {                                             \
      std::fprintf(stderr, "%s:%d: check failed: %s\n", __FILE__, __LINE__, \
                   #cond);                                                  \
      std::abort();                                                         \
    }                                                                       \
  } while (false)
