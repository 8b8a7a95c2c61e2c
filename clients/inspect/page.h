// What a prompt's heads do, as one page of HTML that loads nothing else: per
// layer and head where it looks (a heat map and shares), what it kept of its
// attention and at what density. Thread-safe: no state.
#pragma once

#include <cstdint>
#include <string>

#include "engine/attention_profile.h"
#include "engine/backend.h"
#include "engine/model_config.h"

namespace overture::clients {

// What the page's head says; any text.
struct PageTitle {
  std::string model;
  std::string prompt;  // a file's name, or its first words
  std::string policy;
  std::string backend;
  int64_t num_tokens = 0;
};

// Of a prefill of all the prompt's tokens that was audited and that `profiler`
// observed. Everything in it is escaped.
std::string InspectPage(const PageTitle& title,
                        const engine::ModelConfig& config,
                        const engine::PrefillOutput& output,
                        const engine::AttentionProfiler& profiler);

}  // namespace overture::clients
