#include "engine/tokenizer.h"

#include <filesystem>
#include <system_error>

#include "base/status_macros.h"
#include "engine/gguf.h"
#include "engine/mapped_file.h"
#include "engine/tokenizer_gguf.h"
#include "engine/tokenizer_json.h"
#include "engine/tokenizer_spec.h"

namespace overture::engine {
namespace {

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadGguf(absl::string_view bytes) {
  OVERTURE_ASSIGN_OR_RETURN(const Gguf gguf, Gguf::Parse(bytes));
  OVERTURE_ASSIGN_OR_RETURN(const TokenizerSpec spec,
                            TokenizerSpecFromGguf(gguf));
  return BuildTokenizer(spec);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(
    absl::string_view path) {
  std::string file_path(path);
  std::error_code ignored;  // Open() reports what cannot be read
  const bool is_folder = std::filesystem::is_directory(file_path, ignored);
  if (is_folder) file_path += "/tokenizer.json";
  OVERTURE_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(file_path));
  if (is_folder) return TokenizerFromJson(file.bytes(), file_path);
  auto tokenizer = LoadGguf(file.bytes());
  if (!tokenizer.ok()) return WithContext(tokenizer.status(), file_path);
  return tokenizer;
}

}  // namespace overture::engine
