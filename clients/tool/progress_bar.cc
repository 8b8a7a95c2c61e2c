#include "clients/tool/progress_bar.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"

namespace overture::clients {
namespace {

constexpr int kWidth = 30;

}  // namespace

ProgressBar::ProgressBar(std::string label, std::FILE* out)
    : label_(std::move(label)),
      out_(out),
      is_terminal_(isatty(fileno(out)) == 1) {}

std::string ProgressBar::Line(absl::string_view label, double fraction,
                              absl::string_view note) {
  fraction = std::clamp(fraction, 0.0, 1.0);
  const int filled = static_cast<int>(fraction * kWidth);
  return absl::StrFormat("%s [%s%s] %3d%% %s", label, std::string(filled, '#'),
                         std::string(kWidth - filled, '.'),
                         static_cast<int>(fraction * 100), note);
}

void ProgressBar::Update(double fraction, absl::string_view note) {
  if (!is_terminal_) return;
  // Carriage return, line, erase to its end.
  absl::FPrintF(out_, "\r%s\x1b[K", Line(label_, fraction, note));
  std::fflush(out_);
  drawn_ = true;
}

void ProgressBar::Clear() {
  if (!drawn_) return;
  absl::FPrintF(out_, "\r\x1b[K");
  std::fflush(out_);
  drawn_ = false;
}

}  // namespace overture::clients
