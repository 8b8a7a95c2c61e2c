#include "clients/evaluate/record.h"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "clients/tool/request_text.h"
#include "nlohmann/json.hpp"

namespace overture::clients {
namespace {

using nlohmann::json;

constexpr int kVersion = 3;

json ToJson(const RecordHeader& header) {
  return {{"overture_evaluation", kVersion},
          {"weights", header.weights_digest},
          {"tokenizer", header.tokenizer_digest},
          {"spelling", header.spelling},
          {"backend", header.backend},
          {"numerics", header.numerics},
          {"head_sizes", header.head_sizes_digest},
          {"noise_server", header.noise_server}};
}

absl::StatusOr<Mode> ModeFromText(absl::string_view text) {
  for (const Mode mode : {Mode::kSingle, Mode::kMultiTurn, Mode::kMultiRequest,
                          Mode::kStoredView}) {
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
  json line = {{"sample", ToString(record.sample)},
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
               {"density", record.density},
               {"selector_seconds", record.selector_seconds},
               {"kv_bytes", record.kv_bytes},
               {"ttft_seconds", record.ttft_seconds},
               {"reused_tokens", record.reused_tokens}};
  if (record.kept_mass.has_value()) {
    line["kept_mass"] = record.kept_mass->mean;
    line["lowest_kept_mass"] = record.kept_mass->lowest;
  }
  if (record.likelihood.has_value()) {
    line.update({{"positions", record.likelihood->positions},
                 {"loss", record.likelihood->loss},
                 {"kl", record.likelihood->kl},
                 {"agreement", record.likelihood->agreement}});
  } else {
    line.update({{"right", record.score.right},
                 {"tail", record.score.tail},
                 {"score", record.score.share},
                 {"answer", record.answer},
                 {"text", record.text}});
  }
  return line;
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
    line.at("density").get_to(record.density);
    line.at("selector_seconds").get_to(record.selector_seconds);
    line.at("kv_bytes").get_to(record.kv_bytes);
    line.at("ttft_seconds").get_to(record.ttft_seconds);
    line.at("reused_tokens").get_to(record.reused_tokens);
    if (line.contains("kept_mass")) {
      KeptMass& kept = record.kept_mass.emplace();
      line.at("kept_mass").get_to(kept.mean);
      line.at("lowest_kept_mass").get_to(kept.lowest);
    }
    if (line.contains("positions")) {
      Likelihood& likelihood = record.likelihood.emplace();
      line.at("positions").get_to(likelihood.positions);
      line.at("loss").get_to(likelihood.loss);
      line.at("kl").get_to(likelihood.kl);
      line.at("agreement").get_to(likelihood.agreement);
    } else {
      line.at("right").get_to(record.score.right);
      line.at("tail").get_to(record.score.tail);
      line.at("score").get_to(record.score.share);
      line.at("answer").get_to(record.answer);
      line.at("text").get_to(record.text);
    }
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return record;
}

RecordHeader HeaderOf(const v1::ServerInfo& server, Spelling spelling) {
  const v1::ModelInfo& model = server.model();
  return {
      .weights_digest = absl::BytesToHexString(model.weights_digest()),
      .tokenizer_digest = absl::BytesToHexString(model.tokenizer_digest()),
      .spelling = spelling == Spelling::kWords ? "words" : "text",
      .backend = absl::StrCat(model.backend(), " ", model.compute_dtype()),
      .numerics = server.numerics(),
      .head_sizes_digest = absl::BytesToHexString(server.head_sizes_digest())};
}

absl::StatusOr<LockedFile> LockFile(const std::string& path) {
  LockedFile locked{.path = path};
  locked.file.reset(std::fopen(path.c_str(), "ae"));  // not for child processes
  if (locked.file == nullptr) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  }
  if (flock(fileno(locked.file.get()), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      return absl::FailedPreconditionError(absl::StrCat(
          path,
          " is being written by another evaluation: let it end, or "
          "choose another --out"));
    }
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot lock ", path));
  }
  return locked;
}

absl::StatusOr<std::unique_ptr<RecordFile>> RecordFile::Open(
    LockedFile file, const RecordHeader& header) {
  auto records = std::unique_ptr<RecordFile>(new RecordFile(std::move(file)));
  const absl::MutexLock lock(&records->mutex_);
  const std::string& path = records->file_.path;
  OVERTURE_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  OVERTURE_RETURN_IF_ERROR(records->Read(text, header));
  // A line without its end is what was being written when a run ended.
  const size_t whole = text.rfind('\n') + 1;
  if (whole < text.size() && ftruncate(fileno(records->file_.file.get()),
                                       static_cast<off_t>(whole)) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot cut ", path));
  }
  if (whole == 0) {
    OVERTURE_RETURN_IF_ERROR(records->WriteLine(ToJson(header)));
  }
  return records;
}

absl::Status RecordFile::Read(const std::string& text,
                              const RecordHeader& header) {
  std::vector<absl::string_view> lines = absl::StrSplit(text, '\n');
  const absl::string_view torn = lines.back();
  lines.pop_back();
  // A header may be torn, too, and is ours if it begins as ours does.
  const bool ours = lines.empty()
                        ? absl::StartsWith(ToJson(header).dump(), torn)
                        : ParseLine(lines[0]) == ToJson(header);
  if (!ours) {
    return absl::FailedPreconditionError(absl::StrCat(
        file_.path, " holds something else, ",
        absl::CHexEscape((lines.empty() ? torn : lines[0]).substr(0, 1000)),
        " and not ", ToJson(header).dump(), ": choose another --out"));
  }
  for (size_t i = 1; i < lines.size(); ++i) {
    absl::StatusOr<Record> record = RecordFromJson(ParseLine(lines[i]));
    if (!record.ok()) {
      return absl::DataLossError(absl::StrCat(file_.path, ", line ", i + 1,
                                              ": ", record.status().message()));
    }
    if (!keys_.insert(Key(*record)).second) {
      return absl::DataLossError(absl::StrCat(file_.path, ", line ", i + 1,
                                              " repeats ", Key(*record)));
    }
    records_.push_back(*std::move(record));
  }
  return absl::OkStatus();
}

absl::Status RecordFile::WriteLine(const json& line) {
  // Bytes of half a character, which an answer may end with, become U+FFFD.
  const std::string text =
      line.dump(-1, ' ', true, json::error_handler_t::replace) + "\n";
  std::FILE* file = file_.file.get();
  if (std::fwrite(text.data(), 1, text.size(), file) != text.size() ||
      std::fflush(file) != 0) {
    return absl::ErrnoToStatus(errno,
                               absl::StrCat("cannot write ", file_.path));
  }
  return absl::OkStatus();
}

bool RecordFile::Has(const Record& record) const {
  const absl::MutexLock lock(&mutex_);
  return keys_.count(Key(record)) > 0;
}

std::vector<Record> RecordFile::records() const {
  const absl::MutexLock lock(&mutex_);
  return records_;
}

absl::Status RecordFile::Append(const Record& record) {
  const absl::MutexLock lock(&mutex_);
  if (!keys_.insert(Key(record)).second) {
    return absl::AlreadyExistsError(
        absl::StrCat(file_.path, " holds ", Key(record), " already"));
  }
  records_.push_back(record);
  return WriteLine(ToJson(record));
}

}  // namespace overture::clients
