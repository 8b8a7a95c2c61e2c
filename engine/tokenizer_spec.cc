#include "engine/tokenizer_spec.h"

#include <algorithm>
#include <array>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/bpe.h"
#include "engine/nfc.h"
#include "engine/unicode.h"

namespace overture::engine {
namespace {

using Model = TokenizerSpec::Model;

constexpr uint8_t kAdded = 1;
constexpr uint8_t kSpecial = 2;

uint8_t Flags(const AddedToken& token) {
  return static_cast<uint8_t>(kAdded | (token.special ? kSpecial : 0) |
                              (token.normalized ? 4 : 0) |
                              (token.lstrip ? 8 : 0) | (token.rstrip ? 16 : 0) |
                              (token.single_word ? 32 : 0));
}

// What an id decodes to.
struct Entry {
  std::string bytes;
  uint8_t flags = 0;
  bool exists = false;
};

class TokenizerImpl final : public Tokenizer {
 public:
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Build(
      const TokenizerSpec& spec) {
    std::unique_ptr<TokenizerImpl> impl(new TokenizerImpl);
    OVERTURE_RETURN_IF_ERROR(impl->Init(spec));
    return std::unique_ptr<Tokenizer>(std::move(impl));
  }

  std::vector<int32_t> Encode(absl::string_view text,
                              const EncodeOptions& options) const override;
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids,
                                     bool keep_special) const override;
  int64_t vocab_size() const override {
    return static_cast<int64_t>(entries_.size());
  }
  int32_t TokenId(absl::string_view text) const override;
  const Sha256Digest& digest() const override { return digest_; }

 private:
  TokenizerImpl() = default;

  absl::Status Init(const TokenizerSpec& spec);
  absl::Status InitEntries(const TokenizerSpec& spec);
  absl::Status InitAdded(const TokenizerSpec& spec);
  absl::Status InitModel(const TokenizerSpec& spec);
  absl::Status CheckIds(absl::Span<const int32_t> ids,
                        absl::string_view what) const;
  void InitDigest(const TokenizerSpec& spec);

  // The text between added tokens.
  void EncodeText(absl::string_view text, bool parse_special,
                  Bpe::Scratch* scratch, std::vector<int32_t>* ids) const;
  void EncodePiece(absl::string_view piece, Bpe::Scratch* scratch,
                   std::vector<int32_t>* ids) const;

  Model model_ = Model::kByteLevelBpe;
  std::vector<Entry> entries_;    // by id
  AddedTokens added_;             // looked for in the text as it came
  AddedTokens normalized_added_;  // ... and in what is left, normalised
  bool nfc_ = false;
  PreTokenizer pre_tokenizer_;
  Bpe bpe_;
  absl::flat_hash_map<std::string, int32_t> words_;  // kWordLevel
  int32_t unknown_id_ = -1;
  std::vector<int32_t> prefix_ids_;
  std::vector<int32_t> suffix_ids_;
  Sha256Digest digest_;
};

absl::Status TokenizerImpl::InitEntries(const TokenizerSpec& spec) {
  const int64_t limit = std::max(
      spec.min_vocab_size,
      2 * static_cast<int64_t>(spec.tokens.size() + spec.added.size()) +
          kMaxUnusedIds);
  int64_t size = spec.min_vocab_size;
  const auto count_id = [&](int32_t id, absl::string_view text) {
    if (id < 0 || id >= limit) {
      return absl::InvalidArgumentError(
          absl::StrCat("token \"", text.substr(0, 64), "\": id ", id,
                       " is outside [0, ", limit, ")"));
    }
    size = std::max(size, int64_t{id} + 1);
    return absl::OkStatus();
  };
  for (const TokenizerSpec::Token& token : spec.tokens) {
    OVERTURE_RETURN_IF_ERROR(count_id(token.id, token.text));
  }
  for (const AddedToken& token : spec.added) {
    OVERTURE_RETURN_IF_ERROR(count_id(token.id, token.content));
  }

  entries_.resize(static_cast<size_t>(size));
  for (const TokenizerSpec::Token& token : spec.tokens) {
    Entry& entry = entries_[token.id];
    if (entry.exists) {
      return absl::InvalidArgumentError(
          absl::StrCat("id ", token.id, " has two tokens, \"", entry.bytes,
                       "\" and \"", token.text.substr(0, 64), "\""));
    }
    entry.exists = true;
    if (model_ == Model::kWordLevel) {
      entry.bytes = std::string(token.text);
    } else {
      FromByteLevel(token.text, &entry.bytes);
    }
  }
  absl::flat_hash_map<absl::string_view, int32_t> added_ids;
  for (const AddedToken& token : spec.added) {
    added_ids.emplace(token.content, token.id);
  }
  for (const TokenizerSpec::Token& token : spec.tokens) {
    const auto it = added_ids.find(token.text);
    if (it != added_ids.end() && it->second != token.id) {
      return absl::InvalidArgumentError(
          absl::StrCat("added token \"", token.text, "\" has id ", it->second,
                       ", but ", token.id, " in the vocabulary"));
    }
  }
  for (const AddedToken& token : spec.added) {
    Entry& entry = entries_[token.id];
    if (entry.exists &&
        ((entry.flags & kAdded) != 0 || entry.bytes != token.content)) {
      std::string other = entry.bytes;
      FromByteLevel(token.content, &other);
      if ((entry.flags & kAdded) != 0 || entry.bytes != other) {
        return absl::InvalidArgumentError(
            absl::StrCat("id ", token.id, " has two tokens, \"", entry.bytes,
                         "\" and \"", token.content, "\""));
      }
    }
    entry = {token.content, Flags(token), true};
  }
  return absl::OkStatus();
}

absl::Status TokenizerImpl::InitAdded(const TokenizerSpec& spec) {
  std::vector<AddedToken> raw, normalized;
  for (AddedToken token : spec.added) {
    if (nfc_ && token.normalized && !IsSurelyNfc(token.content)) {
      token.content = ToNfc(token.content);
    }
    (token.normalized ? normalized : raw).push_back(std::move(token));
  }
  OVERTURE_ASSIGN_OR_RETURN(added_, AddedTokens::Create(raw));
  OVERTURE_ASSIGN_OR_RETURN(normalized_added_, AddedTokens::Create(normalized));
  return absl::OkStatus();
}

absl::Status TokenizerImpl::InitModel(const TokenizerSpec& spec) {
  if (model_ == Model::kWordLevel) {
    for (const TokenizerSpec::Token& token : spec.tokens) {
      if (!words_.emplace(token.text, token.id).second) {
        return absl::InvalidArgumentError(absl::StrCat(
            "two tokens are both \"", token.text.substr(0, 64), "\""));
      }
    }
    const auto unknown = words_.find(spec.unknown);
    if (unknown == words_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "unknown token \"", spec.unknown, "\" is not in the vocabulary"));
    }
    unknown_id_ = unknown->second;
    return absl::OkStatus();
  }

  std::vector<Bpe::Token> tokens;
  tokens.reserve(spec.tokens.size());
  for (const TokenizerSpec::Token& token : spec.tokens) {
    if (!spec.unknown.empty() && token.text == spec.unknown) {
      unknown_id_ = token.id;
    }
    Bpe::Token bpe_token;
    bpe_token.id = token.id;
    // A text outside the alphabet can be decoded, but no piece leads to it.
    if (FromByteLevel(token.text, &bpe_token.bytes)) {
      tokens.push_back(std::move(bpe_token));
    }
  }
  if (!spec.unknown.empty() && unknown_id_ < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "unknown token \"", spec.unknown, "\" is not in the vocabulary"));
  }
  std::vector<Bpe::Merge> merges(spec.merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    if (!FromByteLevel(spec.merges[rank].first, &merges[rank].left) ||
        !FromByteLevel(spec.merges[rank].second, &merges[rank].right)) {
      return absl::InvalidArgumentError(
          absl::StrCat("merges[", rank,
                       "] has a character outside the byte-level "
                       "alphabet"));
    }
  }
  Bpe::Options options;
  options.ignore_merges = spec.ignore_merges;
  options.unknown_id = unknown_id_;
  options.fuse_unknown = spec.fuse_unknown;
  OVERTURE_ASSIGN_OR_RETURN(bpe_, Bpe::Create(tokens, merges, options));
  // No byte is unknown: the setting has no effect and none on the digest.
  if (bpe_.HasEveryByte()) unknown_id_ = -1;
  return absl::OkStatus();
}

absl::Status TokenizerImpl::CheckIds(absl::Span<const int32_t> ids,
                                     absl::string_view what) const {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab_size() || !entries_[id].exists) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " ", id, " is no token of the vocabulary"));
    }
  }
  return absl::OkStatus();
}

absl::Status TokenizerImpl::Init(const TokenizerSpec& spec) {
  nfc_ = spec.nfc;
  model_ = spec.model;
  pre_tokenizer_ = PreTokenizer(spec.steps);
  prefix_ids_ = spec.prefix_ids;
  suffix_ids_ = spec.suffix_ids;
  OVERTURE_RETURN_IF_ERROR(InitEntries(spec));
  OVERTURE_RETURN_IF_ERROR(InitAdded(spec));
  OVERTURE_RETURN_IF_ERROR(InitModel(spec));
  OVERTURE_RETURN_IF_ERROR(CheckIds(prefix_ids_, "prefix token"));
  OVERTURE_RETURN_IF_ERROR(CheckIds(suffix_ids_, "suffix token"));
  InitDigest(spec);
  return absl::OkStatus();
}

void TokenizerImpl::InitDigest(const TokenizerSpec& spec) {
  Sha256 sha;
  const auto update_u8 = [&sha](uint8_t value) { sha.Update(&value, 1); };
  sha.Update("overture-tokenizer-1");
  update_u8(static_cast<uint8_t>(model_));
  sha.UpdateU32(static_cast<uint32_t>(spec.steps.size()));
  for (const PreTokenizer::Step step : spec.steps) {
    update_u8(static_cast<uint8_t>(step));
  }
  update_u8(spec.nfc);
  update_u8(spec.ignore_merges);
  update_u8(unknown_id_ >= 0 && spec.fuse_unknown);
  sha.UpdateU32(static_cast<uint32_t>(unknown_id_));
  for (const auto* ids : {&prefix_ids_, &suffix_ids_}) {
    sha.UpdateU32(static_cast<uint32_t>(ids->size()));
    sha.UpdateTokens(*ids);
  }
  sha.UpdateU32(static_cast<uint32_t>(
      std::count_if(entries_.begin(), entries_.end(),
                    [](const Entry& entry) { return entry.exists; })));
  for (size_t id = 0; id < entries_.size(); ++id) {
    const Entry& entry = entries_[id];
    if (!entry.exists) continue;
    sha.UpdateU32(static_cast<uint32_t>(id));
    update_u8(entry.flags);
    sha.UpdateU32(static_cast<uint32_t>(entry.bytes.size()));
    sha.Update(entry.bytes);
  }
  sha.UpdateU32(static_cast<uint32_t>(bpe_.merge_ids().size()));
  for (const auto& [left, right] : bpe_.merge_ids()) {
    sha.UpdateU32(static_cast<uint32_t>(left));
    sha.UpdateU32(static_cast<uint32_t>(right));
  }
  digest_ = sha.Digest();
}

void TokenizerImpl::EncodePiece(absl::string_view piece, Bpe::Scratch* scratch,
                                std::vector<int32_t>* ids) const {
  if (model_ == Model::kByteLevelBpe) {
    bpe_.Encode(piece, scratch, ids);
    return;
  }
  const auto it = words_.find(piece);
  ids->push_back(it == words_.end() ? unknown_id_ : it->second);
}

void TokenizerImpl::EncodeText(absl::string_view text, bool parse_special,
                               Bpe::Scratch* scratch,
                               std::vector<int32_t>* ids) const {
  const auto encode_piece = [&](absl::string_view piece) {
    EncodePiece(piece, scratch, ids);
  };
  const auto encode_part = [&](absl::string_view part) {
    pre_tokenizer_.Split(part, encode_piece);
  };
  const auto push_id = [&](int32_t id) { ids->push_back(id); };
  while (!text.empty()) {
    absl::string_view valid = text.substr(0, ValidUtf8Prefix(text));
    text.remove_prefix(valid.size());
    std::string normalized;
    if (nfc_ && !IsSurelyNfc(valid)) {
      normalized = ToNfc(valid);
      valid = normalized;
    }
    if (parse_special) {
      normalized_added_.Split(valid, encode_part, push_id);
    } else {
      encode_part(valid);
    }
    if (text.empty()) break;
    // An ill-formed byte is a piece of its own.
    EncodePiece(text.substr(0, 1), scratch, ids);
    text.remove_prefix(1);
  }
}

std::vector<int32_t> TokenizerImpl::Encode(absl::string_view text,
                                           const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 4 + prefix_ids_.size() + suffix_ids_.size());
  if (options.add_special_tokens) {
    ids.insert(ids.end(), prefix_ids_.begin(), prefix_ids_.end());
  }
  Bpe::Scratch scratch;
  const auto encode_text = [&](absl::string_view part) {
    EncodeText(part, options.parse_special, &scratch, &ids);
  };
  if (options.parse_special) {
    added_.Split(text, encode_text, [&](int32_t id) { ids.push_back(id); });
  } else {
    encode_text(text);
  }
  if (options.add_special_tokens) {
    ids.insert(ids.end(), suffix_ids_.begin(), suffix_ids_.end());
  }
  return ids;
}

absl::StatusOr<std::string> TokenizerImpl::Decode(absl::Span<const int32_t> ids,
                                                  bool keep_special) const {
  std::string text;
  bool is_first = true;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size()) {
      return absl::OutOfRangeError(absl::StrCat(
          "ids[", i, "] = ", ids[i], " is outside [0, ", vocab_size(), ")"));
    }
    const Entry& entry = entries_[ids[i]];
    if (!entry.exists) continue;
    if ((entry.flags & kSpecial) != 0 && !keep_special) continue;
    if (model_ == Model::kWordLevel && !is_first) text.push_back(' ');
    is_first = false;
    text += entry.bytes;
  }
  return text;
}

int32_t TokenizerImpl::TokenId(absl::string_view text) const {
  for (const AddedTokens* added : {&added_, &normalized_added_}) {
    const int32_t id = added->Find(text);
    if (id >= 0) return id;
  }
  if (model_ == Model::kByteLevelBpe) return bpe_.Find(text);
  const auto it = words_.find(text);
  return it == words_.end() ? -1 : it->second;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> BuildTokenizer(
    const TokenizerSpec& spec) {
  return TokenizerImpl::Build(spec);
}

bool FromByteLevel(absl::string_view text, std::string* bytes) {
  // Printable Latin-1 stands for itself; the other 68 bytes, in order, are
  // U+0100 and following.
  static const std::array<int16_t, 324>& alphabet = *[] {
    auto* table = new std::array<int16_t, 324>;
    table->fill(-1);
    int16_t next = 256;
    for (int16_t byte = 0; byte < 256; ++byte) {
      const bool prints = (byte >= 33 && byte <= 126) ||
                          (byte >= 161 && byte <= 172) || byte >= 174;
      (*table)[prints ? byte : next++] = byte;
    }
    return table;
  }();
  bytes->clear();
  for (size_t pos = 0; pos < text.size();) {
    const DecodedChar c = DecodeUtf8(text, pos);
    if (c.size == 0 || c.code >= alphabet.size() || alphabet[c.code] < 0) {
      bytes->assign(text.data(), text.size());
      return false;
    }
    bytes->push_back(static_cast<char>(alphabet[c.code]));
    pos += c.size;
  }
  return true;
}

}  // namespace overture::engine
