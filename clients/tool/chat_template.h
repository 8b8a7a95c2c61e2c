// How conversations are written for the models we know. The server speaks
// tokens; templates are the client's matter. Chosen by the special tokens that
// the served model has, so no model name is needed. Thread-safe.
//
// A message never becomes a special token, whatever it contains: only the
// template's own pieces are read as such.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "clients/cpp/client.h"

namespace overture::clients {

struct ChatTemplate {
  absl::string_view name;
  // All of them are in the vocabulary of a model of this kind.
  absl::Span<const absl::string_view> special_tokens;
  absl::string_view start;          // of a conversation
  absl::string_view before_system;  // ... message, then end_of_turn
  absl::string_view before_user;
  absl::string_view before_answer;
  absl::string_view end_of_turn;  // after each message and answer
};

// Most particular first; the last, "plain", needs no special token.
absl::Span<const ChatTemplate> ChatTemplates();

// One part of a turn's text.
struct ChatPiece {
  std::string text;
  bool is_message = false;  // written by a person: no special tokens in it
};

// What a turn adds to the conversation, up to where the answer begins. `system`
// opens the conversation; absent on a later turn, which first ends the previous
// answer.
std::vector<ChatPiece> ChatTurn(const ChatTemplate& chat,
                                std::optional<absl::string_view> system,
                                absl::string_view user);

// Asks the server which of the templates' tokens its model has.
absl::StatusOr<const ChatTemplate*> ChooseChatTemplate(OvertureClient& client);

// Token ids of the pieces, by the server's tokenizer.
absl::StatusOr<std::vector<int32_t>> EncodePieces(
    OvertureClient& client, absl::Span<const ChatPiece> pieces);

}  // namespace overture::clients
