#include "engine/decoder.h"

#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/naive_llama.h"
#include "tests/support/prefill_harness.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::LoadedTinyModel;
using ::overture::testing::MaxDifference;
using ::overture::testing::NaiveForward;
using ::overture::testing::NaivePair;
using ::overture::testing::RandomTokens;
using ::overture::testing::RelativeRms;
using ::overture::testing::RunNaiveLlama;
using ::overture::testing::StatusIs;
using ::overture::testing::TinyModelOptions;
using ::testing::HasSubstr;

// fp32 against double on the tiny models. A product sums at most 128 terms, so
// its relative error stays below 128 * 2^-24 = 7.6e-6 of the sum of its terms'
// magnitudes; some 8 products in a row, values of order 1, logits up to 8:
// 8 * 8 * 7.6e-6. Random signs leave about a tenth of that in practice.
constexpr double kTolerance = 5e-4;

std::unique_ptr<Decoder> NewDecoder(const ModelFiles& files,
                                    int64_t logical_length,
                                    ComputeDType dtype = ComputeDType::kF32) {
  auto model = DecoderModel::Create(files, dtype);
  EXPECT_THAT(model, ::overture::testing::IsOk());
  auto decoder = Decoder::Create(*model, logical_length);
  EXPECT_THAT(decoder, ::overture::testing::IsOk());
  return *std::move(decoder);
}

// Decodes every token from nothing and compares all logits.
void ExpectDecodesLikeNaive(const TinyModelOptions& options, int64_t count) {
  const LoadedTinyModel model(options);
  const std::vector<int32_t> tokens =
      RandomTokens(count, options.vocab_size, 7);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const NaiveForward naive,
                                RunNaiveLlama(model.files(), tokens));
  const auto decoder = NewDecoder(model.files(), 0);
  for (int64_t i = 0; i < count; ++i) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(const absl::Span<const float> logits,
                                  decoder->Step(tokens[i]));
    ASSERT_LT(MaxDifference(logits, naive.logits[i]), kTolerance) << i;
  }
  EXPECT_EQ(decoder->logical_length(), count);
  EXPECT_EQ(decoder->rows(options.num_layers - 1, 0), count);
}

TEST(DecoderTest, EqualsTheNaiveForwardPass) { ExpectDecodesLikeNaive({}, 70); }

TEST(DecoderTest, EqualsTheNaiveForwardPassWithQkvBias) {
  ExpectDecodesLikeNaive({.architecture = "qwen2", .num_kv_heads = 1}, 40);
}

TEST(DecoderTest, EqualsTheNaiveForwardPassWithItsOwnHeadAndLlama3Rope) {
  TinyModelOptions options{.head_dim = 32, .tied_embeddings = false};
  options.rope_scaling = {.kind = RopeScaling::Kind::kLlama3,
                          .factor = 8,
                          .low_freq_factor = 1,
                          .high_freq_factor = 4,
                          .original_max_positions = 64};
  ExpectDecodesLikeNaive(options, 70);
}

TEST(DecoderTest, AgreesBetweenOneAndSeveralPartsOfRows) {
  // 600 rows are two parts; the reference holds them in double.
  const LoadedTinyModel model({.num_layers = 1});
  const std::vector<int32_t> tokens = RandomTokens(600, 320, 3);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const NaiveForward naive,
                                RunNaiveLlama(model.files(), tokens));
  const auto decoder = NewDecoder(model.files(), 0);
  absl::Span<const float> logits;
  for (const int32_t token : tokens) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(logits, decoder->Step(token));
  }
  EXPECT_LT(MaxDifference(logits, naive.logits.back()), kTolerance);
}

TEST(DecoderTest, Bf16StaysWithinItsRounding) {
  // A rounding to bf16 is off by 2^-9 / sqrt(3) = 0.11% rms; some 20 of them
  // in each of two layers add up to 0.7%. Attention here is sharp: scores near
  // 10 are off by 10 * 0.3% each, which moves weights by 3% and doubles or
  // triples the total.
  const LoadedTinyModel model({});
  const std::vector<int32_t> tokens = RandomTokens(40, 320, 5);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const NaiveForward naive,
                                RunNaiveLlama(model.files(), tokens));
  const auto decoder = NewDecoder(model.files(), 0, ComputeDType::kBF16);
  for (size_t i = 0; i < tokens.size(); ++i) {
    OVERTURE_ASSERT_OK_AND_ASSIGN(const absl::Span<const float> logits,
                                  decoder->Step(tokens[i]));
    const double error = RelativeRms(logits, naive.logits[i]);
    ASSERT_LT(error, 0.03) << i;
    ASSERT_GT(error, 1e-4) << i;  // it is not fp32 in disguise
  }
}

class RaggedDecoderTest : public ::testing::Test {
 protected:
  // Rows `positions` of one head of the naive pass, as fp32 bytes.
  static std::vector<std::byte> RowsOf(
      const std::vector<std::vector<double>>& head,
      const std::vector<int32_t>& positions) {
    std::vector<float> values;
    for (const int32_t position : positions) {
      values.insert(values.end(), head[position].begin(), head[position].end());
    }
    std::vector<std::byte> bytes(values.size() * sizeof(float));
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
};

TEST_F(RaggedDecoderTest, HeadsHoldOtherRowsAndThePositionCountsOn) {
  // One layer, so that every head's KV is exact whatever is left out of the
  // other: each head keeps its own rows, and the naive pass must be masked the
  // same way. With a mask shared by all heads both heads keep the same rows;
  // the ragged part is checked by feeding them in two pieces.
  const LoadedTinyModel model({.num_layers = 1});
  const std::vector<int32_t> tokens = RandomTokens(41, 320, 9);
  const std::vector<int32_t> kept = {0, 1, 5, 17, 30, 31, 39};
  const auto is_kept = [&](int64_t k) {
    return std::find(kept.begin(), kept.end(), k) != kept.end();
  };
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const NaiveForward naive,
      RunNaiveLlama(model.files(), tokens, [&](const NaivePair& at) {
        return at.q < 40 || at.k == 40 || is_kept(at.k);
      }));
  const auto decoder = NewDecoder(model.files(), 40);
  for (int32_t head = 0; head < 2; ++head) {
    const size_t split = head == 0 ? 3 : 6;
    const std::vector<int32_t> first(kept.begin(), kept.begin() + split);
    const std::vector<int32_t> rest(kept.begin() + split, kept.end());
    for (const std::vector<int32_t>& part : {first, rest}) {
      OVERTURE_ASSERT_OK(decoder->AppendRows(0, head, DType::kF32,
                                             RowsOf(naive.k[0][head], part),
                                             RowsOf(naive.v[0][head], part)));
    }
    EXPECT_EQ(decoder->rows(0, head), 7);
  }
  OVERTURE_ASSERT_OK_AND_ASSIGN(const absl::Span<const float> logits,
                                decoder->Step(tokens[40]));
  EXPECT_LT(MaxDifference(logits, naive.logits[40]), kTolerance);
  EXPECT_EQ(decoder->logical_length(), 41);
  EXPECT_EQ(decoder->rows(0, 0), 8);
}

TEST_F(RaggedDecoderTest, OneHeadWithFewerRowsLeavesTheOtherAlone) {
  // Head 1 loses all but one row: the output of head 0's query heads enters
  // the logits as before, so a second decoder that differs only in head 1 must
  // differ, and one with equal rows must not.
  const LoadedTinyModel model({.num_layers = 1});
  const std::vector<int32_t> tokens = RandomTokens(9, 320, 2);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const NaiveForward naive,
                                RunNaiveLlama(model.files(), tokens));
  std::vector<int32_t> all(8);
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::vector<float>> results;
  for (const bool ragged : {false, false, true}) {
    const auto decoder = NewDecoder(model.files(), 8);
    for (int32_t head = 0; head < 2; ++head) {
      const std::vector<int32_t> rows =
          ragged && head == 1 ? std::vector<int32_t>{7} : all;
      OVERTURE_ASSERT_OK(decoder->AppendRows(0, head, DType::kF32,
                                             RowsOf(naive.k[0][head], rows),
                                             RowsOf(naive.v[0][head], rows)));
    }
    OVERTURE_ASSERT_OK_AND_ASSIGN(const absl::Span<const float> logits,
                                  decoder->Step(tokens[8]));
    results.emplace_back(logits.begin(), logits.end());
  }
  EXPECT_LT(MaxDifference(results[0], naive.logits[8]), kTolerance);
  EXPECT_EQ(results[0], results[1]);
  EXPECT_GT(MaxDifference(results[0], absl::MakeConstSpan(results[2])),
            10 * kTolerance);
}

TEST(DecoderTest, ConvertsRowsToItsOwnDtype) {
  const LoadedTinyModel model({.num_layers = 1});
  const std::vector<float> values = {0.5f, -1.25f, 3.0f, 0.0f};
  std::vector<float> row(16);
  for (size_t i = 0; i < row.size(); ++i) row[i] = values[i % 4];
  std::vector<std::vector<float>> results;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    // The values are exact in all three.
    std::vector<std::byte> bytes(row.size() * SizeOf(dtype));
    for (size_t i = 0; i < row.size(); ++i) {
      std::byte* dst = bytes.data() + i * SizeOf(dtype);
      const BFloat16 bf16(row[i]);
      const Float16 f16(row[i]);
      if (dtype == DType::kF32) std::memcpy(dst, &row[i], 4);
      if (dtype == DType::kBF16) std::memcpy(dst, &bf16, 2);
      if (dtype == DType::kF16) std::memcpy(dst, &f16, 2);
    }
    const auto decoder = NewDecoder(model.files(), 1);
    for (int32_t head = 0; head < 2; ++head) {
      OVERTURE_ASSERT_OK(decoder->AppendRows(0, head, dtype, bytes, bytes));
    }
    OVERTURE_ASSERT_OK_AND_ASSIGN(const absl::Span<const float> logits,
                                  decoder->Step(1));
    results.emplace_back(logits.begin(), logits.end());
  }
  EXPECT_EQ(results[0], results[1]);
  EXPECT_EQ(results[0], results[2]);
}

TEST(DecoderTest, RefusesWhatDoesNotFit) {
  const LoadedTinyModel model({.num_layers = 1, .max_positions = 4});
  const auto decoder = NewDecoder(model.files(), 3);
  const std::vector<std::byte> row(16 * 4);
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(decoder->AppendRows(1, 0, DType::kF32, row, row),
              StatusIs(kInvalid, HasSubstr("layer is 1")));
  EXPECT_THAT(decoder->AppendRows(0, 2, DType::kF32, row, row),
              StatusIs(kInvalid, HasSubstr("kv_head is 2")));
  EXPECT_THAT(decoder->AppendRows(0, 0, DType::kF32, row, {}),
              StatusIs(kInvalid, HasSubstr("multiple of 64")));
  EXPECT_THAT(decoder->AppendRows(0, 0, DType::kF32,
                                  absl::MakeConstSpan(row).subspan(1),
                                  absl::MakeConstSpan(row).subspan(1)),
              StatusIs(kInvalid, HasSubstr("multiple of 64")));
  EXPECT_THAT(decoder->Step(0), StatusIs(absl::StatusCode::kFailedPrecondition,
                                         HasSubstr("layer 0 KV head 0")));
  for (int32_t head = 0; head < 2; ++head) {
    OVERTURE_ASSERT_OK(decoder->AppendRows(0, head, DType::kF32, row, row));
  }
  const auto kRange = absl::StatusCode::kOutOfRange;
  EXPECT_THAT(decoder->Step(320), StatusIs(kRange, HasSubstr("token is 320")));
  EXPECT_THAT(decoder->Step(-1), StatusIs(kRange, HasSubstr("token is -1")));
  OVERTURE_EXPECT_OK(decoder->Step(0));
  EXPECT_THAT(decoder->Step(0), StatusIs(kRange, HasSubstr("position 4")));
}

TEST(ArgmaxTest, TakesTheFirstOfEqualLogits) {
  EXPECT_EQ(Argmax({1.0f, 3.0f, 3.0f, 2.0f}), 1);
}

TEST(LogProbabilityTest, IsTheLogOfTheSoftmax) {
  const std::vector<float> logits = {1.0f, 2.0f, 1000.0f};
  EXPECT_FLOAT_EQ(LogProbability(logits, 2), 0.0f);
  EXPECT_FLOAT_EQ(LogProbability(logits, 0), -999.0f);
  const std::vector<float> equal(4, -3.0f);
  EXPECT_NEAR(LogProbability(equal, 3), -std::log(4.0), 1e-6);
}

}  // namespace
}  // namespace overture::engine
