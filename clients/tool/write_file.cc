#include "clients/tool/write_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace overture::clients {
namespace {

absl::Status Write(const std::string& path, absl::string_view text) {
  const auto failed = [&path](int error) {
    return absl::ErrnoToStatus(error, absl::StrCat("cannot write ", path));
  };
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) return failed(errno);
  const bool written =
      std::fwrite(text.data(), 1, text.size(), file) == text.size() &&
      std::fflush(file) == 0;
  const int error = errno;
  // Some file systems know only now that they are full.
  const bool closed = std::fclose(file) == 0;
  if (!written) return failed(error);
  return closed ? absl::OkStatus() : failed(errno);
}

// Something is there that is no regular file.
bool IsSpecial(const std::string& path) {
  std::error_code ignored;
  const std::filesystem::file_status old =
      std::filesystem::symlink_status(path, ignored);
  return std::filesystem::exists(old) && !std::filesystem::is_regular_file(old);
}

std::string Beside(const std::string& path) {
  return absl::StrCat(path, ".new");
}

}  // namespace

absl::Status WriteFile(const std::string& path, absl::string_view text) {
  if (IsSpecial(path)) return Write(path, text);
  const std::string beside = Beside(path);
  absl::Status status = Write(beside, text);
  if (status.ok() && std::rename(beside.c_str(), path.c_str()) != 0) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("cannot replace ", path));
  }
  if (!status.ok()) unlink(beside.c_str());
  return status;
}

absl::Status CheckWritable(const std::string& path) {
  if (path.empty()) {
    return absl::InvalidArgumentError("the file to write has an empty name");
  }
  if (!IsSpecial(path)) {
    const std::string beside = Beside(path);
    absl::Status status = Write(beside, "");
    if (status.ok()) unlink(beside.c_str());
    return status;
  }
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return absl::OkStatus();
  return absl::ErrnoToStatus(EISDIR, absl::StrCat("cannot write ", path));
}

}  // namespace overture::clients
