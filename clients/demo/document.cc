#include "clients/demo/document.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "clients/tool/request_text.h"

namespace overture::clients {
namespace {

absl::StatusOr<std::vector<int32_t>> TokenizePlain(OvertureClient& client,
                                                   const std::string& text) {
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_plain(true);
  return client.Tokenize(request);
}

}  // namespace

std::string CutAtParagraph(const std::string& text) {
  const size_t blank = text.rfind("\n\n");
  if (blank == std::string::npos || blank < text.size() / 8 * 7) return text;
  return text.substr(0, blank);
}

absl::StatusOr<Document> LoadDocument(OvertureClient& client,
                                      const std::string& path,
                                      int64_t max_tokens) {
  Document document;
  OVERTURE_ASSIGN_OR_RETURN(document.text, ReadTextFile(path));
  OVERTURE_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                            TokenizePlain(client, document.text));
  document.full_num_tokens = static_cast<int64_t>(ids.size());
  if (ids.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is empty"));
  }
  if (document.full_num_tokens > max_tokens) {
    OVERTURE_ASSIGN_OR_RETURN(
        document.text,
        client.Detokenize(absl::MakeConstSpan(ids).first(max_tokens)));
    document.text = CutAtParagraph(document.text);
    OVERTURE_ASSIGN_OR_RETURN(ids, TokenizePlain(client, document.text));
  }
  document.num_tokens = static_cast<int64_t>(ids.size());
  return document;
}

}  // namespace overture::clients
