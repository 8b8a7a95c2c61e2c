// The whole chain once, with real processes: a server that keeps KV on disk,
// clients that prefill over gRPC, decode workers that answer from what they
// fetch, and a kill -9 in the middle. One thread.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "clients/demo/document.h"
#include "clients/demo/report.h"

namespace overture::clients {

struct DemoOptions {
  std::string model;                    // .gguf file or Hugging Face folder
  std::string file = kDefaultDocument;  // the document
  std::string question;
  std::string second_question;
  // Of the document; the rest is cut off, as is what leaves no room for
  // questions and answers within the model's positions. >= 1.
  int64_t max_document_tokens = 6700;
  int64_t max_answer_tokens = 48;
  std::string selector = "vertical_slash:128,256";
  std::string view = "snapkv:32,1024,max,7";
  std::string system;        // message that opens the conversation
  std::string server_flags;  // further ones for overtured, split at spaces
};

// Prints what happens as it happens. FAILED_PRECONDITION if the second turn
// reused less of the first than ReusedEnough asks.
absl::StatusOr<DemoReport> RunDemo(const DemoOptions& options);

}  // namespace overture::clients
