// One line that shows how far something is, redrawn in place. On anything but
// a terminal it writes nothing. One thread.
#pragma once

#include <cstdio>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace overture::clients {

class ProgressBar {
 public:
  // Draws on `out`, which outlives it.
  ProgressBar(std::string label, std::FILE* out);
  ~ProgressBar() { Clear(); }
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // `fraction` within [0, 1]; `note` stands behind the bar.
  void Update(double fraction, absl::string_view note);
  // Takes the line away.
  void Clear();

  // The line that Update draws, without control characters.
  static std::string Line(absl::string_view label, double fraction,
                          absl::string_view note);

 private:
  const std::string label_;
  std::FILE* const out_;
  const bool is_terminal_;
  bool drawn_ = false;
};

}  // namespace overture::clients
