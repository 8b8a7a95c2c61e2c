#include "engine/cpu_weights.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "engine/fused_weights.h"
#include "gtest/gtest.h"
#include "tests/support/prefill_harness.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::LoadedTinyModel;
using ::overture::testing::StatusIs;
using ::testing::HasSubstr;

// Passes everything on, but one tensor's shape or reading is broken.
class BrokenFiles final : public ModelFiles {
 public:
  BrokenFiles(const ModelFiles& files, TensorRole role, bool wrong_shape)
      : files_(files), role_(role), wrong_shape_(wrong_shape) {}
  const ModelConfig& config() const override { return files_.config(); }
  const Sha256Digest& weights_digest() const override {
    return files_.weights_digest();
  }
  absl::Status ReadTensor(TensorRole role, int32_t layer,
                          absl::Span<float> dst) const override {
    if (role == role_ && !wrong_shape_) return absl::DataLossError("torn");
    return files_.ReadTensor(role, layer, dst);
  }
  absl::Status ReadRows(TensorRole role, int32_t layer, int64_t row_begin,
                        absl::Span<float> dst) const override {
    if (role == role_ && !wrong_shape_) return absl::DataLossError("torn");
    return files_.ReadRows(role, layer, row_begin, dst);
  }
  absl::StatusOr<Shape> TensorShape(TensorRole role,
                                    int32_t layer) const override {
    auto shape = files_.TensorShape(role, layer);
    if (shape.ok() && role == role_ && wrong_shape_) ++shape->columns;
    return shape;
  }

 private:
  const ModelFiles& files_;
  const TensorRole role_;
  const bool wrong_shape_;
};

TEST(CpuWeightsTest, StacksQkvInThatOrder) {
  const LoadedTinyModel model({});
  auto weights = CpuWeights::Create(model.files(), ComputeDType::kF32);
  ASSERT_THAT(weights, ::overture::testing::IsOk());
  EXPECT_EQ((*weights)->qkv_size(), 64 + 2 * 32);
  // Multiply by the first unit vector: the first column of each matrix.
  std::vector<float> x(64);
  x[0] = 1;
  std::vector<float> y(128);
  OVERTURE_ASSERT_OK(
      (*weights)->layer(1).qkv->Apply(x.data(), 1, y.data(), DType::kF32));
  int64_t row = 0;
  for (const auto& [role, rows] :
       {std::pair{TensorRole::kQ, 64}, std::pair{TensorRole::kK, 32},
        std::pair{TensorRole::kV, 32}}) {
    std::vector<float> matrix(rows * 64);
    OVERTURE_ASSERT_OK(
        model.files().ReadTensor(role, 1, absl::MakeSpan(matrix)));
    for (int r = 0; r < rows; ++r) EXPECT_EQ(y[row++], matrix[r * 64]);
  }
}

TEST(CpuWeightsTest, AFusedMatrixIsReadInAnyPieces) {
  const LoadedTinyModel model({});
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const FusedMatrix matrix,
      FusedMatrix::Find(model.files(), FusedRole::kQkv, 1));
  ASSERT_EQ(matrix.rows(), 128);  // Q, K and V end at 64, 96 and 128
  ASSERT_EQ(matrix.columns(), 64);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const std::vector<float> all, matrix.Read());
  for (const int64_t rows : {1, 50, 100}) {
    for (int64_t begin = 0; begin < 128; begin += rows) {
      const int64_t count = std::min(rows, 128 - begin) * 64;
      std::vector<BFloat16> some(count);
      OVERTURE_ASSERT_OK(matrix.ReadRows(begin, absl::MakeSpan(some)));
      for (int64_t i = 0; i < count; ++i) {
        ASSERT_EQ(some[i].bits, BFloat16(all[begin * 64 + i]).bits)
            << rows << " rows from " << begin;
      }
    }
  }
}

TEST(CpuWeightsTest, EmbedsRowsInTheComputeDtype) {
  const LoadedTinyModel model({});
  std::vector<float> expected(64);
  OVERTURE_ASSERT_OK(model.files().ReadRows(TensorRole::kTokenEmbedding, 0, 7,
                                            absl::MakeSpan(expected)));
  std::vector<float> row(64);
  auto f32 = CpuWeights::Create(model.files(), ComputeDType::kF32);
  (*f32)->Embed(7, row.data());
  EXPECT_EQ(row, expected);
  auto bf16 = CpuWeights::Create(model.files(), ComputeDType::kBF16);
  (*bf16)->Embed(7, row.data());
  for (size_t i = 0; i < row.size(); ++i) {
    EXPECT_EQ(row[i], static_cast<float>(BFloat16(expected[i])));
  }
}

TEST(CpuWeightsTest, RefusesATensorThatDoesNotFitTheConfig) {
  const LoadedTinyModel model({.tied_embeddings = false});
  const std::pair<TensorRole, const char*> kTensors[] = {
      {TensorRole::kTokenEmbedding, "token_embedding"},
      {TensorRole::kOutputNorm, "output_norm"},
      {TensorRole::kLmHead, "lm_head"},
      {TensorRole::kMlpNorm, "mlp_norm"},
      {TensorRole::kV, "tensor v"},
      {TensorRole::kDown, "down"}};
  for (const auto& [role, name] : kTensors) {
    EXPECT_THAT(CpuWeights::Create(BrokenFiles(model.files(), role, true),
                                   ComputeDType::kF32),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(name)));
    EXPECT_THAT(CpuWeights::Create(BrokenFiles(model.files(), role, false),
                                   ComputeDType::kF32),
                StatusIs(absl::StatusCode::kDataLoss));
  }
}

TEST(CpuWeightsTest, AutoIsBf16OnlyInHardware) {
  EXPECT_EQ(Resolve(ComputeDType::kAuto),
            kernels::CpuHasBf16() ? DType::kBF16 : DType::kF32);
  EXPECT_EQ(Resolve(ComputeDType::kBF16), DType::kBF16);
  EXPECT_EQ(Resolve(ComputeDType::kF32), DType::kF32);
}

}  // namespace
}  // namespace overture::engine
