#include "engine/weight_table.h"

#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kNotFound = absl::StatusCode::kNotFound;

// Two heads of dimension 4 over a hidden size of 3; every tensor counts up from
// 0, so that a value says which stored element it is.
class WeightTableTest : public ::testing::Test {
 protected:
  WeightTableTest() : counting_(64) {
    std::iota(counting_.begin(), counting_.end(), 0.0f);
    config_ = {.architecture = "llama",
               .vocab_size = 5,
               .hidden_size = 3,
               .intermediate_size = 4,
               .num_layers = 2,
               .num_q_heads = 2,
               .num_kv_heads = 1,
               .head_dim = 4,
               .max_positions = 16,
               .tied_embeddings = true,
               .qkv_bias = true};
    for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
      for (int r = 0; r < kNumTensorRoles; ++r) {
        const TensorRole role = static_cast<TensorRole>(r);
        const ModelFiles::Shape shape = ExpectedShape(config_, role);
        if (shape.rows == 0) continue;
        const bool rotated =
            role == TensorRole::kQ || role == TensorRole::kQBias;
        stored_[GgufName(role, layer)] = {
            .type = TensorType::kF32,
            .is_matrix = shape.rows > 1,
            .rows = shape.rows,
            .columns = shape.columns,
            .data = {reinterpret_cast<const char*>(counting_.data()),
                     static_cast<size_t>(shape.rows * shape.columns * 4)},
            .interleaved = rotated};
      }
    }
  }

  absl::StatusOr<WeightTable> Build() const {
    return WeightTable::Build(
        config_, GgufName,
        [this](const std::string& name) -> std::optional<Weight> {
          const auto it = stored_.find(name);
          if (it == stored_.end()) return std::nullopt;
          return it->second;
        });
  }

  std::vector<float> counting_;
  ModelConfig config_;
  std::map<std::string, Weight> stored_;
};

TEST_F(WeightTableTest, NamesAreThoseOfBothFormats) {
  EXPECT_EQ(GgufName(TensorRole::kTokenEmbedding, 7), "token_embd.weight");
  EXPECT_EQ(GgufName(TensorRole::kQBias, 7), "blk.7.attn_q.bias");
  EXPECT_EQ(HuggingFaceName(TensorRole::kLmHead, 7), "lm_head.weight");
  EXPECT_EQ(HuggingFaceName(TensorRole::kDown, 7),
            "model.layers.7.mlp.down_proj.weight");
  EXPECT_EQ(Name(TensorRole::kDown), "down");
}

TEST_F(WeightTableTest, InterleavedRowsComeBackInHalves) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const WeightTable table, Build());
  // Stored rows of a head: 0 2 1 3 of the order that is asked for.
  std::vector<float> q(24);
  OVERTURE_ASSERT_OK(table.ReadTensor(TensorRole::kQ, 0, absl::MakeSpan(q)));
  std::vector<float> first_columns;
  for (int row = 0; row < 8; ++row) first_columns.push_back(q[3 * row] / 3);
  EXPECT_THAT(first_columns, ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
  std::vector<float> rows(6);
  OVERTURE_ASSERT_OK(
      table.ReadRows(TensorRole::kQ, 1, 5, absl::MakeSpan(rows)));
  EXPECT_THAT(rows, ElementsAre(18, 19, 20, 15, 16, 17));
  std::vector<float> bias(8);
  OVERTURE_ASSERT_OK(
      table.ReadTensor(TensorRole::kQBias, 0, absl::MakeSpan(bias)));
  EXPECT_THAT(bias, ElementsAre(0, 2, 1, 3, 4, 6, 5, 7));
}

TEST_F(WeightTableTest, OtherRowsComeBackAsStored) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const WeightTable table, Build());
  std::vector<float> rows(6);
  OVERTURE_ASSERT_OK(
      table.ReadRows(TensorRole::kTokenEmbedding, 99, 3, absl::MakeSpan(rows)));
  EXPECT_THAT(rows, ElementsAre(9, 10, 11, 12, 13, 14));
  OVERTURE_ASSERT_OK(
      table.ReadRows(TensorRole::kTokenEmbedding, 0, 5, absl::Span<float>()));
}

TEST_F(WeightTableTest, ReadingOutsideIsRefused) {
  OVERTURE_ASSERT_OK_AND_ASSIGN(const WeightTable table, Build());
  std::vector<float> rows(6);
  const auto dst = absl::MakeSpan(rows);
  EXPECT_THAT(table.ReadRows(TensorRole::kK, 0, 3, dst),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("4 rows")));
  EXPECT_THAT(table.ReadRows(TensorRole::kK, 0, -1, dst),
              StatusIs(absl::StatusCode::kOutOfRange));
  EXPECT_THAT(table.ReadRows(TensorRole::kK, 0, 0, dst.subspan(1)),
              StatusIs(kInvalid, HasSubstr("rows of 3")));
  EXPECT_THAT(table.ReadTensor(TensorRole::kK, 0, dst),
              StatusIs(kInvalid, HasSubstr("12 elements")));
  for (const int32_t layer : {-1, 2}) {
    EXPECT_THAT(table.ReadRows(TensorRole::kK, layer, 0, dst),
                StatusIs(kNotFound, HasSubstr("layers 0 to 1")));
  }
  EXPECT_THAT(table.TensorShape(TensorRole::kLmHead, 0),
              StatusIs(kNotFound, HasSubstr("LM head")));
  EXPECT_THAT(table.TensorShape(static_cast<TensorRole>(200), 0),
              StatusIs(kNotFound));
}

TEST_F(WeightTableTest, MissingTensorsAndWrongShapesAreNamed) {
  stored_.at("blk.1.ffn_up.weight").rows = 5;
  EXPECT_THAT(Build(), StatusIs(kInvalid,
                                HasSubstr("'blk.1.ffn_up.weight' has shape [5, "
                                          "3], the config implies [4, 3]")));
  stored_.at("blk.1.ffn_up.weight").rows = 4;
  stored_.at("output_norm.weight").is_matrix = true;
  EXPECT_THAT(Build(), StatusIs(kInvalid, HasSubstr("has shape [1, 3], the "
                                                    "config implies [3]")));
  stored_.erase("output_norm.weight");
  EXPECT_THAT(Build(),
              StatusIs(kInvalid, HasSubstr("'output_norm.weight' is missing")));
}

}  // namespace
}  // namespace overture::engine
