// Makes OpenMP's idle threads sleep instead of spin; for a main() to call
// first.
//
// By default they spin for 3 ms at every barrier. On cores that are shared with
// other processes the thread waited for is then kept off its core: 4,096 tokens
// of a 135M model took 93 s instead of 10 s on 2 cores under load. Alone, a
// wake-up costs some 10 us, about 1% of a prefill.
#pragma once

namespace overture::engine {

// The runtime reads OMP_WAIT_POLICY before main(): sets it to "passive" and
// executes the program again, once. Does nothing if it, or GOMP_SPINCOUNT, is
// set already, or if the program cannot be executed again.
// REQUIRES: no other thread yet; argv as main() got it.
void WaitPassively(char** argv);

}  // namespace overture::engine
