// How people write a selector, on command lines and in the server's options:
//
//   dense
//   a_shape[:INITIAL,LOCAL]
//   tri_shape[:INITIAL,LOCAL[,LAST]]
//   vertical_slash[:VERTICAL,SLASH]   further: mass=M, threshold=T, count=C,
//                                     means, whole_prompt
//   vertical_slash:per_head           further: whole_prompt
//   blocks                            further: threshold=T, count=C, means,
//                                     initial=I, local=L
//   random_blocks:DENSITY[,SEED]
//   oracle:DENSITY
//
// after a colon and separated by commas, the further ones in any order; every
// kind takes dense_until=P and skip=S. What is left out is the default; the
// meanings stand in common.proto. So "vertical_slash:1000,6096,threshold=0.1"
// is the hybrid of columns, distances and blocks.
//
// Thread-safe: no state.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "overture/v1/common.pb.h"

namespace overture::v1 {

// INVALID_ARGUMENT naming the text and what is accepted; whoever runs the
// selector checks the limits.
absl::StatusOr<Selector> ParseSelector(absl::string_view text);

// What ParseSelector reads as the same; "default" without a kind.
std::string SelectorText(const Selector& selector);

}  // namespace overture::v1
