#include "engine/tokenizer_gguf.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/or_default.h"

namespace overture::engine {
namespace {

using Step = PreTokenizer::Step;

struct PreRule {
  absl::string_view name;
  Step steps[2];
  int num_steps;
  bool nfc;
  bool ignore_merges;
  bool add_bos;  // unless tokenizer.ggml.add_bos_token says otherwise
};

constexpr PreRule kPreRules[] = {
    {"gpt-2", {Step::kGpt2}, 1, false, false, false},
    {"llama-bpe", {Step::kLlama3}, 1, false, true, true},
    {"qwen2", {Step::kQwen2}, 1, true, false, false},
    {"smollm", {Step::kDigits, Step::kGpt2}, 2, false, false, false},
};

// Values of tokenizer.ggml.token_type.
enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

absl::StatusOr<const PreRule*> FindPreRule(absl::string_view name) {
  std::string known;
  for (const PreRule& rule : kPreRules) {
    if (rule.name == name) return &rule;
    absl::StrAppend(&known, known.empty() ? "" : ", ", rule.name);
  }
  return absl::UnimplementedError(
      absl::StrCat("tokenizer.ggml.pre \"", name,
                   "\" is not supported; supported: ", known));
}

absl::Status AddTokens(const std::vector<absl::string_view>& texts,
                       const std::vector<int64_t>& types, TokenizerSpec* spec) {
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    switch (types[i]) {
      case kNormal:
      case kUnknown:
      case kByte:
        spec->tokens.push_back({texts[i], id});
        break;
      case kControl:
      case kUserDefined: {
        spec->tokens.push_back({texts[i], id});
        AddedToken token;
        token.id = id;
        token.content = std::string(texts[i]);
        token.special = types[i] == kControl;
        spec->added.push_back(std::move(token));
        break;
      }
      case kUnused:  // padding up to the embedding's rows
        break;
      default:
        return absl::InvalidArgumentError(
            absl::StrCat("tokenizer.ggml.token_type[", i, "] = ", types[i],
                         "; known are 1 to 6"));
    }
  }
  return absl::OkStatus();
}

// Adds the id under `id_key` to `ids` if `add_key` (or `add_default`) says so.
absl::Status AddBoundaryId(const Gguf& gguf, absl::string_view add_key,
                           bool add_default, absl::string_view id_key,
                           std::vector<int32_t>* ids) {
  OVERTURE_ASSIGN_OR_RETURN(const bool add,
                            OrDefault(gguf.GetBool(add_key), add_default));
  if (!add) return absl::OkStatus();
  OVERTURE_ASSIGN_OR_RETURN(const int64_t id, Required(gguf.GetInt(id_key)));
  if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat(id_key, " = ", id, " is no token id"));
  }
  ids->push_back(static_cast<int32_t>(id));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> TokenizerSpecFromGguf(const Gguf& gguf) {
  OVERTURE_ASSIGN_OR_RETURN(const absl::string_view model,
                            Required(gguf.GetString("tokenizer.ggml.model")));
  if (model != "gpt2") {
    return absl::UnimplementedError(
        absl::StrCat("tokenizer.ggml.model \"", model,
                     "\" is not supported; supported: gpt2"));
  }
  OVERTURE_ASSIGN_OR_RETURN(const absl::string_view pre,
                            Required(gguf.GetString("tokenizer.ggml.pre")));
  OVERTURE_ASSIGN_OR_RETURN(const PreRule* rule, FindPreRule(pre));

  TokenizerSpec spec;
  spec.steps.assign(rule->steps, rule->steps + rule->num_steps);
  spec.nfc = rule->nfc;
  spec.ignore_merges = rule->ignore_merges;

  OVERTURE_ASSIGN_OR_RETURN(const std::vector<absl::string_view> texts,
                            Required(gguf.GetStrings("tokenizer.ggml.tokens")));
  std::vector<int64_t> types(texts.size(), kNormal);
  if (gguf.Has("tokenizer.ggml.token_type")) {
    OVERTURE_ASSIGN_OR_RETURN(types, gguf.GetInts("tokenizer.ggml.token_type"));
  }
  if (types.size() != texts.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.ggml.token_type has ", types.size(),
                     " elements, tokenizer.ggml.tokens has ", texts.size()));
  }
  OVERTURE_RETURN_IF_ERROR(AddTokens(texts, types, &spec));
  spec.min_vocab_size = static_cast<int64_t>(texts.size());

  OVERTURE_ASSIGN_OR_RETURN(const std::vector<absl::string_view> merges,
                            Required(gguf.GetStrings("tokenizer.ggml.merges")));
  spec.merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const size_t space = merges[i].find(' ');
    if (space == absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tokenizer.ggml.merges[", i, "] has no space between two tokens"));
    }
    spec.merges.emplace_back(merges[i].substr(0, space),
                             merges[i].substr(space + 1));
  }

  OVERTURE_RETURN_IF_ERROR(
      AddBoundaryId(gguf, "tokenizer.ggml.add_bos_token", rule->add_bos,
                    "tokenizer.ggml.bos_token_id", &spec.prefix_ids));
  OVERTURE_RETURN_IF_ERROR(AddBoundaryId(gguf, "tokenizer.ggml.add_eos_token",
                                         false, "tokenizer.ggml.eos_token_id",
                                         &spec.suffix_ids));
  return spec;
}

}  // namespace overture::engine
