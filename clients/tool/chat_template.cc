#include "clients/tool/chat_template.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace overture::clients {
namespace {

constexpr absl::string_view kChatMlTokens[] = {"<|im_start|>", "<|im_end|>"};
constexpr absl::string_view kLlama3Tokens[] = {
    "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|eot_id|>"};

constexpr ChatTemplate kTemplates[] = {
    {.name = "chatml",
     .special_tokens = kChatMlTokens,
     .start = "",
     .before_system = "<|im_start|>system\n",
     .before_user = "<|im_start|>user\n",
     .before_answer = "<|im_start|>assistant\n",
     .end_of_turn = "<|im_end|>\n"},
    {.name = "llama3",
     .special_tokens = kLlama3Tokens,
     .start = "<|begin_of_text|>",
     .before_system = "<|start_header_id|>system<|end_header_id|>\n\n",
     .before_user = "<|start_header_id|>user<|end_header_id|>\n\n",
     .before_answer = "<|start_header_id|>assistant<|end_header_id|>\n\n",
     .end_of_turn = "<|eot_id|>"},
    {.name = "plain",
     .special_tokens = {},
     .start = "",
     .before_system = "",
     .before_user = "User: ",
     .before_answer = "Assistant:",
     .end_of_turn = "\n"},
};

}  // namespace

absl::Span<const ChatTemplate> ChatTemplates() { return kTemplates; }

std::vector<ChatPiece> ChatTurn(const ChatTemplate& chat,
                                std::optional<absl::string_view> system,
                                absl::string_view user) {
  std::string opening;
  std::vector<ChatPiece> pieces;
  auto add_message = [&](absl::string_view before, absl::string_view message) {
    absl::StrAppend(&opening, before);
    if (!opening.empty()) pieces.push_back({std::move(opening), false});
    pieces.push_back({std::string(message), true});
    opening = std::string(chat.end_of_turn);
  };
  if (system.has_value()) {
    absl::StrAppend(&opening, chat.start);
    if (!system->empty()) add_message(chat.before_system, *system);
  } else {
    absl::StrAppend(&opening, chat.end_of_turn);
  }
  add_message(chat.before_user, user);
  absl::StrAppend(&opening, chat.before_answer);
  pieces.push_back({std::move(opening), false});
  return pieces;
}

absl::StatusOr<const ChatTemplate*> ChooseChatTemplate(OvertureClient& client) {
  for (const ChatTemplate& chat : kTemplates) {
    bool known = true;
    for (absl::string_view token : chat.special_tokens) {
      v1::TokenizeRequest request;
      request.set_text(std::string(token));
      OVERTURE_ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                                client.Tokenize(request));
      // What is no token of its own falls into several.
      known = known && ids.size() == 1;
    }
    if (known) return &chat;
  }
  return absl::InternalError("the plain template needs no token");
}

absl::StatusOr<std::vector<int32_t>> EncodePieces(
    OvertureClient& client, absl::Span<const ChatPiece> pieces) {
  std::vector<int32_t> ids;
  for (const ChatPiece& piece : pieces) {
    v1::TokenizeRequest request;
    request.set_text(piece.text);
    request.set_plain(piece.is_message);
    OVERTURE_ASSIGN_OR_RETURN(std::vector<int32_t> part,
                              client.Tokenize(request));
    ids.insert(ids.end(), part.begin(), part.end());
  }
  return ids;
}

}  // namespace overture::clients
