#include "clients/evaluate/record.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "clients/tool/request_text.h"
#include "nlohmann/json.hpp"

namespace overture::clients {
namespace {

using nlohmann::json;

constexpr int kVersion = 1;

json ToJson(const RecordHeader& header) {
  return {{"overture_evaluation", kVersion},
          {"weights", header.weights_digest},
          {"tokenizer", header.tokenizer_digest},
          {"spelling", header.spelling},
          {"backend", header.backend}};
}

absl::StatusOr<Mode> ModeFromText(absl::string_view text) {
  for (const Mode mode :
       {Mode::kSingle, Mode::kMultiTurn, Mode::kMultiRequest}) {
    if (ToString(mode) == text) return mode;
  }
  return absl::InvalidArgumentError(absl::StrCat("no mode '", text, "'"));
}

json ParseLine(absl::string_view line) {
  return json::parse(line.begin(), line.end(), nullptr,
                     /*allow_exceptions=*/false);
}

}  // namespace

std::string Key(const Record& record) {
  return absl::StrCat(ToString(record.sample), "|", ToString(record.mode), "|",
                      record.turn, "|", Label(record.configuration));
}

json ToJson(const Record& record) {
  return {{"sample", ToString(record.sample)},
          {"task", record.sample.task},
          {"length", record.sample.length},
          {"depth", record.sample.depth},
          {"seed", record.sample.seed},
          {"mode", std::string(ToString(record.mode))},
          {"turn", record.turn},
          {"selector", record.configuration.selector},
          {"view", record.configuration.view},
          {"question", record.configuration.question},
          {"repeat", record.configuration.repeat},
          {"right", record.score.right},
          {"tail", record.score.tail},
          {"score", record.score.share},
          {"answer", record.answer},
          {"text", record.text},
          {"density", record.density},
          {"kv_bytes", record.kv_bytes},
          {"ttft_seconds", record.ttft_seconds},
          {"reused_tokens", record.reused_tokens}};
}

absl::StatusOr<Record> RecordFromJson(const json& line) {
  Record record;
  try {
    line.at("task").get_to(record.sample.task);
    line.at("length").get_to(record.sample.length);
    line.at("depth").get_to(record.sample.depth);
    line.at("seed").get_to(record.sample.seed);
    OVERTURE_ASSIGN_OR_RETURN(record.mode,
                              ModeFromText(line.at("mode").get<std::string>()));
    line.at("turn").get_to(record.turn);
    line.at("selector").get_to(record.configuration.selector);
    line.at("view").get_to(record.configuration.view);
    line.at("question").get_to(record.configuration.question);
    line.at("repeat").get_to(record.configuration.repeat);
    line.at("right").get_to(record.score.right);
    line.at("tail").get_to(record.score.tail);
    line.at("score").get_to(record.score.share);
    line.at("answer").get_to(record.answer);
    line.at("text").get_to(record.text);
    line.at("density").get_to(record.density);
    line.at("kv_bytes").get_to(record.kv_bytes);
    line.at("ttft_seconds").get_to(record.ttft_seconds);
    line.at("reused_tokens").get_to(record.reused_tokens);
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return record;
}

absl::StatusOr<std::unique_ptr<RecordFile>> RecordFile::Open(
    const std::string& path, const RecordHeader& header) {
  auto file = std::unique_ptr<RecordFile>(new RecordFile());
  file->path_ = path;
  std::string text;
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    OVERTURE_ASSIGN_OR_RETURN(text, ReadTextFile(path));
    // A line without its end is what was being written when a run ended.
    text.resize(text.rfind('\n') + 1);
    std::filesystem::resize_file(path, text.size(), error);
    if (error) {
      return absl::PermissionDeniedError(
          absl::StrCat("cannot write ", path, ": ", error.message()));
    }
  }
  file->file_ = std::fopen(path.c_str(), "a");
  if (file->file_ == nullptr) {
    return absl::PermissionDeniedError(
        absl::StrCat("cannot write ", path, ": ", std::strerror(errno)));
  }
  if (text.empty()) {
    OVERTURE_RETURN_IF_ERROR(file->WriteLine(ToJson(header)));
    return file;
  }
  const std::vector<absl::string_view> lines =
      absl::StrSplit(text, '\n', absl::SkipEmpty());
  if (ParseLine(lines[0]) != ToJson(header)) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " holds results of something else, ", lines[0], " and not ",
        ToJson(header).dump(), ": choose another --out"));
  }
  for (size_t i = 1; i < lines.size(); ++i) {
    absl::StatusOr<Record> record = RecordFromJson(ParseLine(lines[i]));
    if (!record.ok()) {
      return absl::DataLossError(absl::StrCat(path, ", line ", i + 1, ": ",
                                              record.status().message()));
    }
    file->keys_.insert(Key(*record));
    file->records_.push_back(*std::move(record));
  }
  return file;
}

RecordFile::~RecordFile() {
  if (file_ != nullptr) std::fclose(file_);
}

absl::Status RecordFile::WriteLine(const json& line) {
  // Bytes of half a character, which an answer may end with, become U+FFFD.
  const std::string text =
      line.dump(-1, ' ', true, json::error_handler_t::replace) + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_) != text.size() ||
      std::fflush(file_) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot write ", path_, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

absl::Status RecordFile::Append(const Record& record) {
  if (!keys_.insert(Key(record)).second) {
    return absl::AlreadyExistsError(
        absl::StrCat(path_, " holds ", Key(record), " already"));
  }
  records_.push_back(record);
  return WriteLine(ToJson(record));
}

}  // namespace overture::clients
