// What an evaluation runs: samples times configurations, as people write them
// on a command line. Lists are separated by ';', since selectors have commas.
// Thread-safe: no state.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "clients/evaluate/tasks.h"

namespace overture::clients {

// kStoredView: turns as in kMultiTurn, decoded over what the first one
// delivered, with no prefill of their own.
enum class Mode { kSingle, kMultiTurn, kMultiRequest, kStoredView };
absl::string_view ToString(Mode mode);

// One way to answer a sample; the words are those of the command line.
struct Configuration {
  std::string selector;  // "dense", "a_shape:64,512", ...
  std::string view;      // "full", "snapkv:32,256", ...
  std::string question;  // "last" or "hidden"
  int repeat = 0;        // 1: the second run of a noise floor

  friend bool operator==(const Configuration&, const Configuration&) = default;
};
inline constexpr char kDense[] = "dense";
inline constexpr char kFull[] = "full";
inline constexpr char kLast[] = "last";
inline constexpr char kHidden[] = "hidden";

// What it is compared with: dense over full KV, the question in the same place.
Configuration PairOf(const Configuration& configuration);

// "vertical_slash:64,256 snapkv:32,256 hidden"; what is "full" and "last" is
// left out.
std::string Label(const Configuration& configuration);

struct GridFlags {
  std::string tasks = "passkey;number;kv;niah_single_2;niah_multikey_1";
  std::string lengths = "1024;2048";
  std::string depths = "0;0.5;1";
  std::string selectors = "dense;a_shape:64,512;vertical_slash:64,256";
  std::string views = "full;snapkv:32,256";
  std::string questions = "last";
  std::string mode = "single";
  int32_t turns = 1;
  int32_t seeds = 1;
  int64_t first_seed = 1;
  bool noise_floor = false;
};

struct Grid {
  std::vector<SampleId> samples;  // seed by seed: a part of it is an even part
  // Every selector with every view, for each place of the question; dense over
  // full KV, the pair of all, comes first for each place.
  std::vector<Configuration> configurations;
  Mode mode = Mode::kSingle;
  int turns = 1;
};

// What a grid may hold at most: 64 MB of ids, years of work.
inline constexpr int64_t kMaxSamples = 1'000'000;

// INVALID_ARGUMENT names the flag and what it accepts.
absl::StatusOr<Grid> ParseGrid(const GridFlags& flags);

}  // namespace overture::clients
