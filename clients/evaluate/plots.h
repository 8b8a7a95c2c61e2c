// Plots of an evaluation as SVG, of records that have answers. Thread-safe: no
// state.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "clients/evaluate/record.h"

namespace overture::clients {

// A panel per task and configuration: lengths from left to right, depths from
// top to bottom, each field with its share of right answers in %.
std::string HeatMapSvg(absl::Span<const Record> records);

// Share of right answers over the mean density, or over the share of KV bytes
// that the decode worker received; one mark per task and configuration.
enum class CostAxis { kDensity, kKvBytes };
std::string AccuracySvg(absl::Span<const Record> records, CostAxis axis);

// Share of right answers turn by turn, a line per mode and configuration; empty
// if nothing has a second turn.
std::string TurnsSvg(absl::Span<const Record> records);

}  // namespace overture::clients
