#include "clients/evaluate/real_text.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "clients/evaluate/sample_random.h"
#include "clients/tool/request_text.h"

namespace overture::clients {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<std::vector<std::string>> FilesOf(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return std::vector<std::string>{path};
  std::vector<std::string> files;
  for (const fs::directory_entry& entry : fs::directory_iterator(path, error)) {
    if (entry.is_regular_file() && !entry.is_symlink()) {
      files.push_back(entry.path());
    }
  }
  if (error) {
    return absl::ErrnoToStatus(error.value(),
                               absl::StrCat("cannot list ", path));
  }
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

absl::StatusOr<RealText> RealText::Load(absl::string_view paths,
                                        const TokenizeText& tokenize) {
  RealText text;
  std::string digests;
  for (const absl::string_view path :
       absl::StrSplit(paths, ';', absl::SkipWhitespace())) {
    OVERTURE_ASSIGN_OR_RETURN(const std::vector<std::string> files,
                              FilesOf(std::string(path)));
    for (const std::string& file : files) {
      OVERTURE_ASSIGN_OR_RETURN(const std::string contents, ReadTextFile(file));
      absl::StrAppendFormat(&digests, "%016x", Xxh3(contents));
      OVERTURE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenize(contents));
      text.files_.push_back(std::move(ids));
    }
  }
  if (text.files_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--text=", paths, " has no file"));
  }
  text.task_ = absl::StrFormat("%s:%08x", kRealText, Xxh3(digests) >> 32);
  return text;
}

absl::StatusOr<Sample> RealText::MakeSample(const SampleId& id) const {
  const int64_t needed = id.length + kContinuationTokens;
  int64_t num_places = 0;
  int64_t longest = 0;
  for (const std::vector<int32_t>& file : files_) {
    const auto size = static_cast<int64_t>(file.size());
    num_places += std::max<int64_t>(0, size - needed + 1);
    longest = std::max(longest, size);
  }
  if (num_places == 0) {
    return absl::OutOfRangeError(
        absl::StrCat("a sample of ", id.length, " tokens needs a file of ",
                     needed, ", the longest in --text has ", longest));
  }
  int64_t place = SampleRandom(Xxh3(ToString(id))).Below(num_places);
  for (const std::vector<int32_t>& file : files_) {
    const int64_t places =
        std::max<int64_t>(0, static_cast<int64_t>(file.size()) - needed + 1);
    if (place >= places) {
      place -= places;
      continue;
    }
    const auto begin = file.begin() + place;
    const auto middle = begin + id.length;
    return Sample{.id = id,
                  .context = {begin, middle},
                  .turns = {{.gold = {middle, begin + needed}}},
                  .by_likelihood = true};
  }
  return absl::InternalError("a place beyond all files");
}

}  // namespace overture::clients
