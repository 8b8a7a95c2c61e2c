// A tokenizer for tests that need one but no particular one: token i is byte
// i, 256 is "th", 257 is "the", 258 is " the", and 259 is the special
// <|end|>. GPT-2's rule, no BOS.
#pragma once

#include <memory>
#include <string>

#include "engine/tokenizer.h"

namespace overture::testing {

// Its tokenizer.json.
std::string ByteTokenizerJson();

std::unique_ptr<engine::Tokenizer> MakeByteTokenizer();

}  // namespace overture::testing
