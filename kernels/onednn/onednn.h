// What the CPU families that call oneDNN share: one engine for the process, a
// stream and a scratch block per thread, and its exceptions as Status.
// Everything here is thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/dtype.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace overture::kernels::onednn {

// Lives until the process ends.
const dnnl::engine& Engine();

// The calling thread's stream.
dnnl::stream& ThreadStream();

// The calling thread's block of at least `bytes`, valid until the thread's next
// call.
void* ThreadScratch(size_t bytes);

// The number of threads that oneDNN would use if called here. A primitive holds
// the split, and so the order of sums, that it was created for: we create all
// of ours where this is 1 and spread work over threads ourselves, so that no
// result depends on the number of threads. In a parallel region of a single
// thread it is the caller's setting still: SingleThreaded makes it 1.
int MaxThreads();

// While it lives, OpenMP and so oneDNN use one thread if called from here.
class SingleThreaded {
 public:
  SingleThreaded();
  ~SingleThreaded();
  SingleThreaded(const SingleThreaded&) = delete;
  SingleThreaded& operator=(const SingleThreaded&) = delete;

 private:
  const int before_;
};

dnnl::memory::data_type ToDnnl(DType dtype);

// INTERNAL, or RESOURCE_EXHAUSTED if memory ran out.
absl::Status ToStatus(const dnnl::error& error, absl::string_view what);

// Runs `body`, which returns Status or StatusOr, and turns dnnl::error into
// Status. No other exception is expected.
template <typename F>
auto Guard(absl::string_view what, F&& body) -> decltype(body()) {
  try {
    return std::forward<F>(body)();
  } catch (const dnnl::error& error) {
    return ToStatus(error, what);
  }
}

}  // namespace overture::kernels::onednn
