// Hugging Face tokenizer.json as a tokenizer.
//
// What is read: model BPE (merges as "a b" or ["a", "b"]) and WordLevel;
// normalizer NFC; pre_tokenizer Split with the pattern of GPT-2, Llama-3 or
// Qwen2, ByteLevel, Digits, WhitespaceSplit; post_processor TemplateProcessing
// and ByteLevel; decoder ByteLevel; added_tokens with all their flags; and a
// Sequence of any of these. truncation and padding are the caller's business
// and ignored.
//
// INVALID_ARGUMENT naming the key and index for malformed data; UNIMPLEMENTED
// for anything else of the format, naming it and what is supported.
// Source: Hugging Face `tokenizers`, the serde implementations of each part.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/tokenizer.h"

namespace overture::engine {

// `what` names the text in errors, e.g. its path. Takes memory of up to about
// 40 times the text.
absl::StatusOr<std::unique_ptr<Tokenizer>> TokenizerFromJson(
    absl::string_view text, absl::string_view what);

}  // namespace overture::engine
