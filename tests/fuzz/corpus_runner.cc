#include "tests/fuzz/corpus_runner.h"

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>

#include "base/check.h"
#include "gtest/gtest.h"
#include "tests/fuzz/allocation_meter.h"

// Present when a sanitizer is linked in.
extern "C" void __sanitizer_set_death_callback(void (*callback)())
    __attribute__((weak));

namespace overture::testing {
namespace {

// What runs now, for the handler that a crash enters: no allocation there.
char current_mutant[160];

void PrintMutant() {
  constexpr char kText[] = "\nfuzz input that crashed: ";
  ssize_t ignored = write(2, kText, sizeof(kText) - 1);
  ignored = write(2, current_mutant, strlen(current_mutant));
  ignored = write(2, "\n", 1);
  (void)ignored;
}

void OnSignal(int number) {
  PrintMutant();
  signal(number, SIG_DFL);
  raise(number);
}

void PrintMutantOnCrash() {
  if (__sanitizer_set_death_callback != nullptr) {
    __sanitizer_set_death_callback(PrintMutant);
    return;
  }
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL}) {
    signal(number, OnSignal);
  }
}

// Memory that ends at a page without access.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t capacity) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    capacity_ = (capacity + page - 1) / page * page;
    void* memory = mmap(nullptr, capacity_ + page, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    OVERTURE_CHECK(memory != MAP_FAILED);
    memory_ = static_cast<uint8_t*>(memory);
    mapped_ = capacity_ + page;
    OVERTURE_CHECK(mprotect(memory_ + capacity_, page, PROT_NONE) == 0);
  }
  ~GuardedBuffer() { munmap(memory_, mapped_); }
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;

  size_t capacity() const { return capacity_; }
  const uint8_t* Place(const std::string& bytes) {
    uint8_t* place = memory_ + capacity_ - bytes.size();
    std::memcpy(place, bytes.data(), bytes.size());
    return place;
  }

 private:
  uint8_t* memory_ = nullptr;
  size_t capacity_ = 0;
  size_t mapped_ = 0;
};

class Runner {
 public:
  explicit Runner(const FuzzCorpus& corpus)
      : corpus_(corpus), buffer_(BufferSize(corpus)) {}

  // Label: "<what> of seed <seed> at <position>".
  void Run(const std::string& input, const char* what, size_t seed,
           size_t position) {
    if (input.size() > buffer_.capacity()) return;
    std::snprintf(current_mutant, sizeof(current_mutant),
                  "%s: %s of seed %zu at %zu", corpus_.name.c_str(), what, seed,
                  position);
    const uint8_t* data = buffer_.Place(input);
    ResetPeakAllocation();
    LLVMFuzzerTestOneInput(data, input.size());
    const size_t peak = PeakAllocatedBytes();
    const size_t limit =
        corpus_.base_bytes + corpus_.max_bytes_per_input_byte * input.size();
    if (peak > limit) {
      ADD_FAILURE() << current_mutant << ": " << peak << " bytes live for "
                    << input.size() << " bytes of input, limit " << limit;
    }
    ++num_runs_;
    worst_peak_ = std::max(worst_peak_, peak);
  }

  void RunSystematic(size_t seed) {
    const std::string& bytes = corpus_.seeds[seed];
    Run(bytes, "the whole", seed, 0);
    const size_t step = std::max<size_t>(
        1, bytes.size() / std::max<size_t>(1, corpus_.max_positions));
    for (size_t at = 0; at < bytes.size(); at += step) {
      Run(bytes.substr(0, at), "truncation", seed, at);
      for (int bit = 0; bit < 8; ++bit) {
        std::string mutant = bytes;
        mutant[at] = static_cast<char>(mutant[at] ^ (1 << bit));
        Run(mutant, "bit flip", seed, 8 * at + bit);
      }
      RunExtremes<uint32_t>(bytes, "extreme u32", seed, at);
      RunExtremes<uint64_t>(bytes, "extreme u64", seed, at);
    }
  }

  void RunRandom() {
    std::mt19937 random(20240607);  // printed by number, replayed by count
    for (int i = 0; i < corpus_.num_random_mutants; ++i) {
      const size_t seed = random() % corpus_.seeds.size();
      std::string mutant = corpus_.seeds[seed];
      const int num_edits = 1 + static_cast<int>(random() % 8);
      for (int edit = 0; edit < num_edits; ++edit) Edit(random, mutant);
      Run(mutant, "random mutant", seed, i);
    }
  }

  size_t num_runs() const { return num_runs_; }
  size_t worst_peak() const { return worst_peak_; }

 private:
  // Room for the longest seed, spliced with another and edited.
  static size_t BufferSize(const FuzzCorpus& corpus) {
    size_t longest = 0;
    for (const std::string& seed : corpus.seeds) {
      longest = std::max(longest, seed.size());
    }
    return 2 * longest + 4096;
  }

  template <typename T>
  void RunExtremes(const std::string& bytes, const char* what, size_t seed,
                   size_t at) {
    if (bytes.size() - at < sizeof(T)) return;
    constexpr T kMax = std::numeric_limits<T>::max();
    for (const T value : {T{0}, T{1}, kMax, T{kMax - 31}, T{kMax / 2},
                          T{kMax / 2 + 1}, T{kMax / 32}, T(bytes.size()),
                          T(bytes.size() - at - sizeof(T)), T{1} << 31}) {
      std::string mutant = bytes;
      std::memcpy(mutant.data() + at, &value, sizeof(value));
      Run(mutant, what, seed, at);
    }
  }

  void Edit(std::mt19937& random, std::string& mutant) {
    const size_t at = mutant.empty() ? 0 : random() % mutant.size();
    const size_t count = 1 + random() % 32;
    switch (random() % 6) {
      case 0:
        if (!mutant.empty()) mutant[at] = static_cast<char>(random());
        break;
      case 1:
        mutant.insert(at, count, static_cast<char>(random()));
        break;
      case 2:
        mutant.erase(at, count);
        break;
      case 3:
        mutant.insert(at, mutant.substr(at, count));
        break;
      case 4: {
        const std::string& other =
            corpus_.seeds[random() % corpus_.seeds.size()];
        const size_t from = other.empty() ? 0 : random() % other.size();
        mutant.insert(at, other.substr(from, random() % 512));
        break;
      }
      default:
        if (!corpus_.dictionary.empty()) {
          mutant.insert(
              at, corpus_.dictionary[random() % corpus_.dictionary.size()]);
        }
        break;
    }
  }

  const FuzzCorpus& corpus_;
  GuardedBuffer buffer_;
  size_t num_runs_ = 0;
  size_t worst_peak_ = 0;
};

}  // namespace

void RunCorpus(const FuzzCorpus& corpus) {
  ASSERT_FALSE(corpus.seeds.empty());
  PrintMutantOnCrash();
  if (const char* folder = std::getenv("OVERTURE_FUZZ_CORPUS")) {
    for (size_t i = 0; i < corpus.seeds.size(); ++i) {
      std::ofstream(
          std::string(folder) + "/" + corpus.name + "-" + std::to_string(i),
          std::ios::binary)
          << corpus.seeds[i];
    }
  }
  Runner runner(corpus);
  for (size_t seed = 0; seed < corpus.seeds.size(); ++seed) {
    runner.RunSystematic(seed);
  }
  runner.RunRandom();
  std::printf("%s: %zu inputs, at most %zu bytes live for one\n",
              corpus.name.c_str(), runner.num_runs(), runner.worst_peak());
}

}  // namespace overture::testing
