#include "clients/tool/flags.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace overture::clients {
namespace {

std::string Canonical(absl::string_view name) {
  return absl::StrReplaceAll(name, {{"_", "-"}});
}

std::string DefaultText(const FlagParser::Target& target) {
  struct Visitor {
    std::string operator()(const std::string* value) const { return *value; }
    std::string operator()(const int32_t* value) const {
      return absl::StrCat(*value);
    }
    std::string operator()(const int64_t* value) const {
      return absl::StrCat(*value);
    }
    std::string operator()(const double* value) const {
      return absl::StrCat(*value);
    }
    std::string operator()(const bool* value) const {
      return *value ? "true" : "false";
    }
  };
  return std::visit(Visitor{}, target);
}

absl::Status Assign(absl::string_view name, const FlagParser::Target& target,
                    absl::string_view text) {
  struct Visitor {
    absl::string_view text;
    const char* operator()(std::string* value) const {
      *value = std::string(text);
      return nullptr;
    }
    const char* operator()(int32_t* value) const {
      return absl::SimpleAtoi(text, value) ? nullptr : "an integer of 32 bits";
    }
    const char* operator()(int64_t* value) const {
      return absl::SimpleAtoi(text, value) ? nullptr : "an integer";
    }
    const char* operator()(double* value) const {
      return absl::SimpleAtod(text, value) ? nullptr : "a number";
    }
    const char* operator()(bool* value) const {
      return absl::SimpleAtob(text, value) ? nullptr : "true or false";
    }
  };
  const char* expected = std::visit(Visitor{text}, target);
  if (expected == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--", name, " is '", text, "', must be ", expected));
}

}  // namespace

void FlagParser::Add(std::string name, Target target, std::string help) {
  Flag flag{.name = Canonical(name), .target = target, .help = std::move(help)};
  flag.default_text = DefaultText(target);
  flags_.push_back(std::move(flag));
}

FlagParser::Flag* FlagParser::Find(absl::string_view name) {
  const std::string canonical = Canonical(name);
  const auto it = std::find_if(
      flags_.begin(), flags_.end(),
      [&canonical](const Flag& flag) { return flag.name == canonical; });
  return it == flags_.end() ? nullptr : &*it;
}

bool FlagParser::Given(absl::string_view name) const {
  const Flag* flag = const_cast<FlagParser*>(this)->Find(name);
  return flag != nullptr && flag->given;
}

absl::Status FlagParser::Parse(absl::Span<const std::string> args) {
  for (const std::string& arg : args) {
    if (arg == "--help" || arg == "-h") help_requested_ = true;
  }
  if (help_requested_) return absl::OkStatus();
  for (Flag& flag : flags_) flag.given = false;
  for (size_t i = 0; i < args.size(); ++i) {
    absl::string_view text = args[i];
    if (!absl::ConsumePrefix(&text, "--") || text.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("unexpected argument '", args[i], "'"));
    }
    std::optional<std::string> value;
    if (const size_t equals = text.find('='); equals != text.npos) {
      value = std::string(text.substr(equals + 1));
      text = text.substr(0, equals);
    }
    Flag* flag = Find(text);
    if (flag == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("unknown flag --", text, "; ", command_, " --help"));
    }
    if (!value.has_value()) {
      if (std::holds_alternative<bool*>(flag->target)) {
        value = "true";
      } else if (i + 1 < args.size()) {
        value = args[++i];
      } else {
        return absl::InvalidArgumentError(
            absl::StrCat("--", flag->name, " needs a value"));
      }
    }
    if (flag->given) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", flag->name, " is given twice"));
    }
    OVERTURE_RETURN_IF_ERROR(Assign(flag->name, flag->target, *value));
    flag->given = true;
  }
  return absl::OkStatus();
}

std::string FlagParser::Help() const {
  std::string help =
      absl::StrCat(command_, " [flags]\n", summary_, "\n\nFlags:\n");
  for (const Flag& flag : flags_) {
    absl::StrAppend(&help, "  --", flag.name);
    if (!flag.default_text.empty()) {
      absl::StrAppend(&help, " (", flag.default_text, ")");
    }
    absl::StrAppend(&help, "\n      ", flag.help, "\n");
  }
  return help;
}

}  // namespace overture::clients
