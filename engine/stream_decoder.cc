#include "engine/stream_decoder.h"

#include "base/status_macros.h"
#include "engine/unicode.h"

namespace overture::engine {

absl::StatusOr<std::string> StreamDecoder::Feed(int32_t id) {
  OVERTURE_ASSIGN_OR_RETURN(std::string alone,
                            tokenizer_.Decode({&id, 1}, keep_special_));
  if (alone.empty()) return std::string();
  // A word-level tokenizer puts a space between two tokens, so the text of a
  // token is what it adds behind the last one.
  std::string added = alone;
  if (last_id_ >= 0) {
    const int32_t pair[] = {last_id_, id};
    OVERTURE_ASSIGN_OR_RETURN(added, tokenizer_.Decode(pair, keep_special_));
    added.erase(0, last_text_.size());
  }
  last_id_ = id;
  last_text_ = std::move(alone);
  pending_ += added;
  const size_t complete = CompleteUtf8Prefix(pending_);
  std::string text = ReplaceIllFormed({pending_.data(), complete});
  pending_.erase(0, complete);
  return text;
}

std::string StreamDecoder::Flush() {
  std::string text = ReplaceIllFormed(pending_);
  pending_.clear();
  last_id_ = -1;
  last_text_.clear();
  return text;
}

}  // namespace overture::engine
