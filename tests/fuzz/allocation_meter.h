// Counts live heap memory of the whole process, by replacing the global
// operator new and delete of the binary it is linked into. For tests that bound
// what a hostile input can make a reader allocate. Memory from malloc() alone
// is not seen. Thread-safe counters; Reset() and PeakBytes() are meant for one
// thread.
#pragma once

#include <cstddef>

namespace overture::testing {

// Starts a new measurement: the peak is counted from what is live now.
void ResetPeakAllocation();

// Most bytes live at once since the reset, above what was live then.
size_t PeakAllocatedBytes();

}  // namespace overture::testing
