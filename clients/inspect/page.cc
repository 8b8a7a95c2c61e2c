#include "clients/inspect/page.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "clients/inspect/page_template.h"
#include "engine/row_audit.h"
#include "nlohmann/json.hpp"

namespace overture::clients {
namespace {

// Masses from 1e-4 to 1 on a logarithmic scale, a byte each.
std::string MapBytes(const std::vector<float>& map) {
  std::string bytes;
  for (const float mass : map) {
    const double level = mass > 0 ? 1 + std::log10(mass) / 4 : 0;
    bytes.push_back(
        static_cast<char>(std::lround(255 * std::clamp(level, 0.0, 1.0))));
  }
  return bytes;
}

// A number of the page: four digits tell all that it shows.
double Short(double value) { return std::round(value * 1e4) / 1e4; }

nlohmann::json HeadJson(const engine::PrefillOutput& output,
                        const engine::AttentionProfiler& profiler,
                        int32_t layer, int32_t head, int32_t num_heads) {
  const engine::HeadProfile& profile = profiler.head(layer, head);
  const engine::AttentionShares& shares = profile.shares;
  const engine::AuditedLayer& audit = output.audit[layer];
  double kept = 0;
  double worst = 1;
  for (size_t row = 0; row < audit.rows.size(); ++row) {
    const double mass = audit.kept[row * num_heads + head];
    kept += mass / static_cast<double>(audit.rows.size());
    worst = std::min(worst, mass);
  }
  return {{"layer", layer},
          {"head", head},
          {"density", Short(output.layer_density[layer])},
          {"kept", Short(kept)},
          {"worst", Short(worst)},
          {"sinks", Short(shares.sinks)},
          {"local", Short(shares.local)},
          {"columns", Short(shares.columns)},
          {"slashes", Short(shares.slashes)},
          {"elsewhere", Short(shares.elsewhere)},
          {"map", absl::Base64Escape(MapBytes(profile.map))}};
}

}  // namespace

std::string InspectPage(const PageTitle& title,
                        const engine::ModelConfig& config,
                        const engine::PrefillOutput& output,
                        const engine::AttentionProfiler& profiler) {
  nlohmann::json heads = nlohmann::json::array();
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    for (int32_t head = 0; head < config.num_q_heads; ++head) {
      heads.push_back(
          HeadJson(output, profiler, layer, head, config.num_q_heads));
    }
  }
  std::vector<int64_t> key_begins;
  for (int64_t i = 0; i < profiler.map_keys(); ++i) {
    key_begins.push_back(profiler.MapKeyBegin(i));
  }
  const nlohmann::json data = {
      {"model", title.model},
      {"prompt", title.prompt},
      {"policy", title.policy},
      {"backend", title.backend},
      {"tokens", title.num_tokens},
      {"layers", config.num_layers},
      {"heads", config.num_q_heads},
      {"density", output.density},
      {"kept", engine::Summarize(output.audit).mean},
      {"selectorSeconds", output.selector_seconds},
      {"attentionSeconds", output.attention_seconds},
      {"rows",
       std::vector<int64_t>(profiler.rows().begin(), profiler.rows().end())},
      {"keys", key_begins},
      {"list", std::move(heads)}};
  // In a script element only "</" and "<!--" mean something: without any "<"
  // neither is there. The page's own code shows texts as text.
  const std::string json =
      absl::StrReplaceAll(data.dump(-1, ' ', /*ensure_ascii=*/true,
                                    nlohmann::json::error_handler_t::replace),
                          {{"<", "\\u003c"}});
  return absl::StrReplaceAll(kInspectTemplate, {{"@DATA@", json}});
}

}  // namespace overture::clients
