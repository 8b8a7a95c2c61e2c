// How the process keeps freed memory. For main(): it changes all of the
// process, so no library calls it.
#pragma once

namespace overture {

// Makes malloc keep what is freed instead of giving pages back at once. KV
// records and layer buffers are megabytes that come and go: by default every
// read of a 1 MiB record faults in 512 fresh pages, which halves the read rate
// (cache_bench, 4 threads: 0.98 to 1.87 GB/s). Costs up to 1 GiB of resident
// memory that is free inside. No effect without glibc.
void KeepFreedMemory();

}  // namespace overture
