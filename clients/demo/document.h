// The text that the demo asks about.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "clients/cpp/client.h"

namespace overture::clients {

// A licence that Debian ships; 7,600 tokens for SmolLM2.
inline constexpr char kDefaultDocument[] = "/usr/share/common-licenses/GPL-3";

struct Document {
  std::string text;
  int64_t num_tokens = 0;       // of `text`
  int64_t full_num_tokens = 0;  // of the file
};

// Reads `path` and cuts it, at the end of a paragraph where there is one near,
// to at most `max_tokens` of the server's tokenizer. NOT_FOUND if it cannot be
// read, INVALID_ARGUMENT if it is empty.
absl::StatusOr<Document> LoadDocument(OvertureClient& client,
                                      const std::string& path,
                                      int64_t max_tokens);

// `text` without what follows its last blank line, if that lies within its last
// eighth; else the whole.
std::string CutAtParagraph(const std::string& text);

}  // namespace overture::clients
