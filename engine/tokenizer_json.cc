#include "engine/tokenizer_json.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/json.h"
#include "engine/or_default.h"
#include "engine/tokenizer_spec.h"
#include "nlohmann/json.hpp"

namespace overture::engine {
namespace {

using nlohmann::json;
using Step = PreTokenizer::Step;

absl::Status Unsupported(absl::string_view what, absl::string_view value,
                         absl::string_view supported) {
  return absl::UnimplementedError(
      absl::StrCat(what, " \"", value.substr(0, 256),
                   "\" is not supported; supported: ", supported));
}

// The member, or null if it is absent or null.
absl::StatusOr<const json*> Optional(const json& object,
                                     absl::string_view key) {
  return OrDefault<const json*>(GetJsonMember(object, key), nullptr);
}

absl::StatusOr<const json*> Array(const json& object, absl::string_view key) {
  OVERTURE_ASSIGN_OR_RETURN(const json* value,
                            Required(GetJsonMember(object, key)));
  if (!value->is_array()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", key, "' is ", value->type_name(), ", expected an array"));
  }
  return value;
}

// `what` names the object in errors.
absl::StatusOr<absl::string_view> Type(const json& object,
                                       absl::string_view what) {
  const auto type = Required(GetJsonMember(object, "type"));
  if (!type.ok()) return WithContext(type.status(), what);
  const auto* text = (*type)->get_ptr<const json::string_t*>();
  if (text == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ": 'type' is ", (*type)->type_name(), ", expected a string"));
  }
  return absl::string_view(*text);
}

absl::StatusOr<int32_t> CheckId(int64_t id, absl::string_view what) {
  if (id < 0 || id > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(
        absl::StrCat(what, ": ", id, " is no token id"));
  }
  return static_cast<int32_t>(id);
}

// Calls `read` with the members of a Sequence's list under `list_key`, at any
// depth, or with `object` itself if it is no Sequence. ParseJson limits the
// depth. `what` names the object in errors.
template <typename Read>
absl::Status ForEachPart(const json& object, absl::string_view what,
                         absl::string_view list_key, const Read& read) {
  OVERTURE_ASSIGN_OR_RETURN(const absl::string_view type, Type(object, what));
  if (type != "Sequence") return read(object, type);
  OVERTURE_ASSIGN_OR_RETURN(const json* list, Array(object, list_key));
  for (const json& part : *list) {
    OVERTURE_RETURN_IF_ERROR(ForEachPart(part, what, list_key, read));
  }
  return absl::OkStatus();
}

absl::StatusOr<AddedToken> ReadAddedToken(const json& item) {
  AddedToken token;
  OVERTURE_ASSIGN_OR_RETURN(const int64_t id, Required(GetJsonInt(item, "id")));
  OVERTURE_ASSIGN_OR_RETURN(token.id, CheckId(id, "id"));
  OVERTURE_ASSIGN_OR_RETURN(token.content,
                            Required(GetJsonString(item, "content")));
  const std::pair<const char*, bool*> flags[] = {
      {"special", &token.special},
      {"normalized", &token.normalized},
      {"lstrip", &token.lstrip},
      {"rstrip", &token.rstrip},
      {"single_word", &token.single_word}};
  for (const auto& [key, flag] : flags) {
    OVERTURE_ASSIGN_OR_RETURN(*flag, OrDefault(GetJsonBool(item, key), false));
  }
  return token;
}

absl::Status ReadAddedTokens(const json& root, TokenizerSpec* spec) {
  if (!HasJsonMember(root, "added_tokens")) return absl::OkStatus();
  OVERTURE_ASSIGN_OR_RETURN(const json* list, Array(root, "added_tokens"));
  for (size_t i = 0; i < list->size(); ++i) {
    auto token = ReadAddedToken((*list)[i]);
    if (!token.ok()) {
      return WithContext(token.status(), absl::StrCat("added_tokens[", i, "]"));
    }
    spec->added.push_back(*std::move(token));
  }
  return absl::OkStatus();
}

absl::Status ReadNormalizer(const json& root, TokenizerSpec* spec) {
  OVERTURE_ASSIGN_OR_RETURN(const json* object, Optional(root, "normalizer"));
  if (object == nullptr) return absl::OkStatus();
  return ForEachPart(*object, "normalizer", "normalizers",
                     [spec](const json&, absl::string_view type) {
                       if (type != "NFC") {
                         return Unsupported("normalizer", type,
                                            "NFC, Sequence");
                       }
                       spec->nfc = true;
                       return absl::OkStatus();
                     });
}

absl::Status ReadSplit(const json& object, TokenizerSpec* spec) {
  OVERTURE_ASSIGN_OR_RETURN(const json* pattern,
                            Required(GetJsonMember(object, "pattern")));
  auto regex = GetJsonString(*pattern, "Regex");
  if (absl::IsNotFound(regex.status())) {
    return Unsupported("Split pattern", pattern->dump(), "a known Regex");
  }
  OVERTURE_RETURN_IF_ERROR(regex.status());
  const std::pair<absl::string_view, Step> known[] = {
      {kGpt2Pattern, Step::kGpt2},
      {kLlama3Pattern, Step::kLlama3},
      {kQwen2Pattern, Step::kQwen2}};
  const auto* rule = std::find_if(
      std::begin(known), std::end(known),
      [&regex](const auto& entry) { return entry.first == *regex; });
  if (rule == std::end(known)) {
    return Unsupported("Split pattern", *regex,
                       "the patterns of GPT-2, Llama-3 and Qwen2");
  }
  OVERTURE_ASSIGN_OR_RETURN(const std::string behavior,
                            Required(GetJsonString(object, "behavior")));
  OVERTURE_ASSIGN_OR_RETURN(const bool invert,
                            OrDefault(GetJsonBool(object, "invert"), false));
  // The patterns match every character, so there is nothing between matches
  // to keep or remove.
  if (behavior != "Isolated" && !(behavior == "Removed" && invert)) {
    return Unsupported("Split behavior", behavior,
                       "Isolated, inverted Removed");
  }
  spec->steps.push_back(rule->second);
  return absl::OkStatus();
}

absl::Status ReadPreTokenizer(const json& root, TokenizerSpec* spec) {
  OVERTURE_ASSIGN_OR_RETURN(const json* object,
                            Optional(root, "pre_tokenizer"));
  bool byte_level = false;
  const auto read = [&](const json& part,
                        absl::string_view type) -> absl::Status {
    if (byte_level) {
      return Unsupported("pre_tokenizer after ByteLevel", type, "none");
    }
    if (type == "Split") return ReadSplit(part, spec);
    if (type == "Digits") {
      OVERTURE_ASSIGN_OR_RETURN(
          const bool individual,
          OrDefault(GetJsonBool(part, "individual_digits"), false));
      spec->steps.push_back(individual ? Step::kDigits : Step::kDigitRuns);
      return absl::OkStatus();
    }
    if (type == "WhitespaceSplit") {
      spec->steps.push_back(Step::kWhitespace);
      return absl::OkStatus();
    }
    if (type == "ByteLevel") {
      byte_level = true;
      OVERTURE_ASSIGN_OR_RETURN(
          const bool prefix_space,
          OrDefault(GetJsonBool(part, "add_prefix_space"), true));
      OVERTURE_ASSIGN_OR_RETURN(
          const bool use_regex,
          OrDefault(GetJsonBool(part, "use_regex"), true));
      if (prefix_space) spec->steps.push_back(Step::kPrefixSpace);
      if (use_regex) spec->steps.push_back(Step::kGpt2);
      return absl::OkStatus();
    }
    return Unsupported("pre_tokenizer", type,
                       "Split, ByteLevel, Digits, WhitespaceSplit, Sequence");
  };
  if (object != nullptr) {
    OVERTURE_RETURN_IF_ERROR(
        ForEachPart(*object, "pre_tokenizer", "pretokenizers", read));
  }
  const bool is_bpe = spec->model == TokenizerSpec::Model::kByteLevelBpe;
  if (is_bpe && !byte_level) {
    return absl::UnimplementedError(
        "a BPE model without the ByteLevel pre_tokenizer is not supported");
  }
  if (!is_bpe && byte_level) {
    return absl::UnimplementedError(
        "the ByteLevel pre_tokenizer is supported for BPE models only");
  }
  return absl::OkStatus();
}

// {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
//  "special_tokens": {"<s>": {"ids": [1]}}}
absl::Status ReadTemplate(const json& object, TokenizerSpec* spec) {
  std::vector<int32_t> prefix, suffix;
  int num_sequences = 0;
  OVERTURE_ASSIGN_OR_RETURN(const json* single, Array(object, "single"));
  for (const json& piece : *single) {
    if (HasJsonMember(piece, "Sequence")) {
      ++num_sequences;
      continue;
    }
    OVERTURE_ASSIGN_OR_RETURN(const json* token,
                              Required(GetJsonMember(piece, "SpecialToken")));
    OVERTURE_ASSIGN_OR_RETURN(const std::string name,
                              Required(GetJsonString(*token, "id")));
    OVERTURE_ASSIGN_OR_RETURN(
        const json* table, Required(GetJsonMember(object, "special_tokens")));
    OVERTURE_ASSIGN_OR_RETURN(const json* entry,
                              Required(GetJsonMember(*table, name)));
    OVERTURE_ASSIGN_OR_RETURN(const json* ids, Array(*entry, "ids"));
    for (const json& id : *ids) {
      if (!id.is_number_integer()) {
        return absl::InvalidArgumentError(
            absl::StrCat("post_processor: ids of \"", name, "\" hold ",
                         id.type_name(), ", expected integers"));
      }
      OVERTURE_ASSIGN_OR_RETURN(
          const int32_t checked,
          CheckId(id.get<int64_t>(), "post_processor.special_tokens"));
      (num_sequences == 0 ? prefix : suffix).push_back(checked);
    }
  }
  if (num_sequences != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "post_processor.single has ", num_sequences, " sequences, expected 1"));
  }
  // A later template wraps what an earlier one made.
  spec->prefix_ids.insert(spec->prefix_ids.begin(), prefix.begin(),
                          prefix.end());
  spec->suffix_ids.insert(spec->suffix_ids.end(), suffix.begin(), suffix.end());
  return absl::OkStatus();
}

absl::Status ReadPostProcessor(const json& root, TokenizerSpec* spec) {
  OVERTURE_ASSIGN_OR_RETURN(const json* object,
                            Optional(root, "post_processor"));
  if (object == nullptr) return absl::OkStatus();
  return ForEachPart(
      *object, "post_processor", "processors",
      [spec](const json& part, absl::string_view type) -> absl::Status {
        if (type == "TemplateProcessing") return ReadTemplate(part, spec);
        if (type == "ByteLevel") return absl::OkStatus();  // offsets only
        return Unsupported("post_processor", type,
                           "TemplateProcessing, ByteLevel, Sequence");
      });
}

absl::Status CheckDecoder(const json& root, const TokenizerSpec& spec) {
  OVERTURE_ASSIGN_OR_RETURN(const json* object, Optional(root, "decoder"));
  if (object == nullptr) return absl::OkStatus();
  const bool is_bpe = spec.model == TokenizerSpec::Model::kByteLevelBpe;
  return ForEachPart(*object, "decoder", "decoders",
                     [is_bpe](const json&, absl::string_view type) {
                       if (is_bpe && type == "ByteLevel") {
                         return absl::OkStatus();
                       }
                       return Unsupported(
                           "decoder", type,
                           is_bpe ? "ByteLevel, Sequence" : "none");
                     });
}

absl::Status ReadVocab(const json& model, TokenizerSpec* spec) {
  OVERTURE_ASSIGN_OR_RETURN(const json* vocab,
                            Required(GetJsonMember(model, "vocab")));
  if (!vocab->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'model.vocab' is ", vocab->type_name(), ", expected an object"));
  }
  spec->tokens.reserve(vocab->size());
  for (const auto& [text, id] : vocab->items()) {
    if (!id.is_number_integer()) {
      return absl::InvalidArgumentError(
          absl::StrCat("model.vocab[\"", text.substr(0, 64), "\"] is ",
                       id.type_name(), ", expected an integer"));
    }
    OVERTURE_ASSIGN_OR_RETURN(
        const int32_t checked,
        CheckId(id.get<int64_t>(),
                absl::StrCat("model.vocab[\"", text.substr(0, 64), "\"]")));
    spec->tokens.push_back({text, checked});
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const json& model, TokenizerSpec* spec) {
  OVERTURE_ASSIGN_OR_RETURN(const json* merges, Array(model, "merges"));
  spec->merges.reserve(merges->size());
  for (size_t i = 0; i < merges->size(); ++i) {
    const json& merge = (*merges)[i];
    if (const auto* text = merge.get_ptr<const json::string_t*>()) {
      const size_t space = text->find(' ');
      if (space != std::string::npos) {
        const absl::string_view view(*text);
        spec->merges.emplace_back(view.substr(0, space),
                                  view.substr(space + 1));
        continue;
      }
    } else if (merge.is_array() && merge.size() == 2) {
      const auto* left = merge[0].get_ptr<const json::string_t*>();
      const auto* right = merge[1].get_ptr<const json::string_t*>();
      if (left != nullptr && right != nullptr) {
        spec->merges.emplace_back(*left, *right);
        continue;
      }
    }
    return absl::InvalidArgumentError(absl::StrCat(
        "model.merges[", i, "] is neither \"a b\" nor [\"a\", \"b\"]"));
  }
  return absl::OkStatus();
}

absl::Status ReadBpe(const json& model, TokenizerSpec* spec) {
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    OVERTURE_ASSIGN_OR_RETURN(
        const std::string affix,
        OrDefault(GetJsonString(model, key), std::string()));
    if (!affix.empty()) {
      return Unsupported(absl::StrCat("model.", key), affix, "none");
    }
  }
  OVERTURE_ASSIGN_OR_RETURN(const double dropout,
                            OrDefault(GetJsonDouble(model, "dropout"), 0.0));
  OVERTURE_ASSIGN_OR_RETURN(
      const bool byte_fallback,
      OrDefault(GetJsonBool(model, "byte_fallback"), false));
  if (dropout != 0 || byte_fallback) {
    return absl::UnimplementedError(
        "model.dropout and model.byte_fallback are not supported");
  }
  OVERTURE_ASSIGN_OR_RETURN(
      spec->ignore_merges,
      OrDefault(GetJsonBool(model, "ignore_merges"), false));
  OVERTURE_ASSIGN_OR_RETURN(spec->fuse_unknown,
                            OrDefault(GetJsonBool(model, "fuse_unk"), false));
  return ReadMerges(model, spec);
}

absl::Status ReadModel(const json& root, TokenizerSpec* spec) {
  OVERTURE_ASSIGN_OR_RETURN(const json* model,
                            Required(GetJsonMember(root, "model")));
  // Files written before types were (GPT-2's among them) have none.
  const bool is_old = model->is_object() && !model->contains("type") &&
                      model->contains("merges");
  absl::string_view type = "BPE";
  if (!is_old) {
    OVERTURE_ASSIGN_OR_RETURN(type, Type(*model, "model"));
  }
  if (type != "BPE" && type != "WordLevel") {
    return Unsupported("model", type, "BPE, WordLevel");
  }
  OVERTURE_RETURN_IF_ERROR(ReadVocab(*model, spec));
  OVERTURE_ASSIGN_OR_RETURN(const json* unknown, Optional(*model, "unk_token"));
  if (unknown != nullptr) {
    const auto* text = unknown->get_ptr<const json::string_t*>();
    if (text == nullptr) {
      return absl::InvalidArgumentError(absl::StrCat("'model.unk_token' is ",
                                                     unknown->type_name(),
                                                     ", expected a string"));
    }
    spec->unknown = *text;
  }
  if (type == "BPE") return ReadBpe(*model, spec);
  spec->model = TokenizerSpec::Model::kWordLevel;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Build(const json& root) {
  if (!root.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the text is ", root.type_name(), ", expected an object"));
  }
  TokenizerSpec spec;
  OVERTURE_RETURN_IF_ERROR(ReadModel(root, &spec));
  OVERTURE_RETURN_IF_ERROR(ReadAddedTokens(root, &spec));
  OVERTURE_RETURN_IF_ERROR(ReadNormalizer(root, &spec));
  OVERTURE_RETURN_IF_ERROR(ReadPreTokenizer(root, &spec));
  OVERTURE_RETURN_IF_ERROR(ReadPostProcessor(root, &spec));
  OVERTURE_RETURN_IF_ERROR(CheckDecoder(root, spec));
  return BuildTokenizer(spec);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromJson(
    absl::string_view text, absl::string_view what) {
  OVERTURE_ASSIGN_OR_RETURN(const json root, ParseJson(text, what));
  auto tokenizer = Build(root);
  if (!tokenizer.ok()) return WithContext(tokenizer.status(), what);
  return tokenizer;
}

}  // namespace overture::engine
