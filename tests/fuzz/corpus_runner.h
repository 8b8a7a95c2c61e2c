// Fuzzing without a fuzzing engine: feeds a reader's LLVMFuzzerTestOneInput
// with seeds and deterministic damage, so that every build of the tests covers
// what libFuzzer (preset `fuzz`) searches further. One reader is two files and
// one line of CMake:
//
//   fuzz_x.cc         extern "C" int LLVMFuzzerTestOneInput(data, size)
//   x_corpus_test.cc  a gtest that builds seeds and calls RunCorpus()
//   overture_fuzz(x DEPS overture::engine)
//
// Every input ends at a page that may not be touched, so reading one byte too
// far crashes without a sanitizer too. A crash prints which mutant it was.
// With OVERTURE_FUZZ_CORPUS=<folder> set the seeds are also written there, to
// start libFuzzer from. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace overture::testing {

struct FuzzCorpus {
  std::string name;  // of the reader, for messages and file names
  // Well-formed inputs and known traps, best below 4 KB: each is run with every
  // truncation, every bit flipped, and every position overwritten by extreme
  // 32- and 64-bit integers. Of longer ones only `max_positions` places, evenly
  // spaced, are damaged so.
  std::vector<std::string> seeds;
  size_t max_positions = 4096;
  // Words to splice in, e.g. keys and brackets of a text format.
  std::vector<std::string> dictionary;
  // Mutants with 1 to 8 random edits (overwrite, insert, erase, repeat, splice
  // from another seed or the dictionary).
  int num_random_mutants = 5000;
  // What one input may cost in live heap memory at once; exceeding it fails the
  // test. Objects and messages of constant size fall under `base_bytes`.
  size_t max_bytes_per_input_byte = 32;
  size_t base_bytes = 64 << 10;
};

// Runs them all; failures are gtest failures or the process's death. Prints the
// number of inputs and the worst memory use.
void RunCorpus(const FuzzCorpus& corpus);

}  // namespace overture::testing
