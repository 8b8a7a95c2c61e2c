// Turns token ids, one by one, into text that can be shown at once: only whole
// characters come out, the rest waits for the next id. What comes out, joined
// with Flush(), is always well-formed UTF-8; bytes that no character can come
// of become U+FFFD.
//
// Not thread-safe: one per stream. Borrows the tokenizer.
//
//   StreamDecoder decoder(tokenizer);
//   for (int32_t id : ids) {
//     OVERTURE_ASSIGN_OR_RETURN(std::string text, decoder.Feed(id));
//     std::cout << text << std::flush;
//   }
//   std::cout << decoder.Flush();
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/tokenizer.h"

namespace overture::engine {

class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool keep_special = false)
      : tokenizer_(tokenizer), keep_special_(keep_special) {}

  // The text that `id` completes; may be empty. OUT_OF_RANGE as
  // Tokenizer::Decode, after which the decoder is as before the call.
  absl::StatusOr<std::string> Feed(int32_t id);

  // The unfinished rest, as U+FFFD. Afterwards the decoder is as new.
  std::string Flush();

 private:
  const Tokenizer& tokenizer_;
  const bool keep_special_;
  int32_t last_id_ = -1;   // last id that yielded text; -1 at the start
  std::string last_text_;  // ... and that text alone
  std::string pending_;    // an unfinished character, at most 3 bytes
};

}  // namespace overture::engine
