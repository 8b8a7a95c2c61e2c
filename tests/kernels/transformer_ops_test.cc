#include "kernels/transformer_ops/transformer_ops.h"

#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/fp8/quantize_rows_cpu.h"
#include "kernels/transformer_ops/transformer_ops_cpu.h"
#include "tests/support/device_copy.h"
#include "tests/support/status_matchers.h"

namespace overture::kernels {
namespace {

using ::overture::testing::StatusIs;
using ::overture::testing::ToDevice;
using ::overture::testing::ToHost;
using ::testing::HasSubstr;

// The CPU rounds its fp32 value to bf16 and so does the GPU: two fp32 values
// that differ by a few units may fall to neighbours, 2^-7 apart.
constexpr double kNeighbour = 0x1p-7;

std::vector<float> Random(int64_t count, float size, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, size);
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<BFloat16> Rounded(const std::vector<float>& values) {
  std::vector<BFloat16> rounded;
  for (const float value : values) rounded.push_back(BFloat16(value));
  return rounded;
}

// Poison, so that what nobody writes shows.
std::vector<BFloat16> Nans(int64_t count) {
  return std::vector<BFloat16>(count, BFloat16(NAN));
}

// |got - want| <= relative * |want| + absolute, everywhere; and nearly all of
// it must be equal, since neighbours are rare: a wrong rounding mode would
// shift half of it.
void ExpectClose(const std::vector<BFloat16>& got,
                 const std::vector<BFloat16>& want, double absolute) {
  ASSERT_EQ(got.size(), want.size());
  int64_t different = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const float a = static_cast<float>(got[i]);
    const float b = static_cast<float>(want[i]);
    ASSERT_NEAR(a, b, kNeighbour * std::abs(b) + absolute) << "element " << i;
    different += got[i].bits != want[i].bits;
  }
  EXPECT_LE(different, static_cast<int64_t>(got.size() / 100 + 1));
}

// Codes of values that equal those above but for a few units in fp32: a row's
// scale may be a neighbour, and rarely so a code.
void ExpectCodes(const std::vector<E4M3>& codes,
                 const std::vector<float>& scales,
                 const std::vector<BFloat16>& want) {
  const auto rows = static_cast<int64_t>(scales.size());
  std::vector<E4M3> want_codes(want.size());
  std::vector<float> want_scales(rows);
  QuantizeRowsCpu(want.data(), rows, static_cast<int64_t>(want.size()) / rows,
                  want_codes.data(), want_scales.data());
  for (int64_t r = 0; r < rows; ++r) {
    ASSERT_NEAR(scales[r], want_scales[r], kNeighbour * want_scales[r]) << r;
  }
  ASSERT_EQ(codes.size(), want.size());
  int64_t different = 0;
  for (size_t i = 0; i < codes.size(); ++i) {
    // Next to each other, or zeros of both signs.
    const int a = codes[i].bits, b = want_codes[i].bits;
    ASSERT_TRUE(std::abs(a - b) <= 1 || ((a | b) & 0x7f) == 0) << i;
    different += a != b;
  }
  EXPECT_LE(different, static_cast<int64_t>(codes.size() / 100 + 1));
}

class TransformerOpsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto stream = Stream::Create();
    OVERTURE_ASSERT_OK(stream.status());
    stream_.emplace(*std::move(stream));
  }
  std::optional<Stream> stream_;
};

TEST_F(TransformerOpsTest, EmbeddingRowsAreCopiedExactly) {
  constexpr int64_t kVocab = 37, kColumns = 72;
  const std::vector<BFloat16> table = Rounded(Random(kVocab * kColumns, 1, 1));
  const std::vector<int32_t> tokens = {36, 0, 5, 5, 17};
  const auto device_table = ToDevice(table, *stream_);
  const auto device_tokens = ToDevice(tokens, *stream_);
  auto residual =
      ToDevice(std::vector<float>(tokens.size() * kColumns, NAN), *stream_);
  OVERTURE_ASSERT_OK(LaunchEmbed({.tokens = device_tokens.data(),
                                  .table = device_table.data(),
                                  .residual = residual.data(),
                                  .rows = 5,
                                  .columns = kColumns},
                                 stream_->get()));
  const std::vector<float> got = ToHost(residual, *stream_);
  for (size_t r = 0; r < tokens.size(); ++r) {
    for (int64_t c = 0; c < kColumns; ++c) {
      ASSERT_EQ(got[r * kColumns + c],
                static_cast<float>(table[tokens[r] * kColumns + c]));
    }
  }
}

TEST_F(TransformerOpsTest, RmsNormEqualsTheCpus) {
  for (const int64_t columns : {8, 576, 2048, 4104, 32768}) {
    constexpr int64_t kRows = 67;
    const std::vector<float> x = Random(kRows * columns, 3, 2);
    const std::vector<float> weight = Random(columns, 1, 3);
    std::vector<BFloat16> want(x.size());
    RmsNormCpu(x.data(), weight.data(), 1e-5, kRows, columns, DType::kBF16,
               want.data());
    const auto device_x = ToDevice(x, *stream_);
    const auto device_weight = ToDevice(weight, *stream_);
    auto out = ToDevice(Nans(x.size()), *stream_);
    OVERTURE_ASSERT_OK(LaunchRmsNorm({.x = device_x.data(),
                                      .weight = device_weight.data(),
                                      .out = out.data(),
                                      .eps = 1e-5,
                                      .rows = kRows,
                                      .columns = columns},
                                     stream_->get()));
    ExpectClose(ToHost(out, *stream_), want, 0);

    auto codes = ToDevice(std::vector<E4M3>(x.size()), *stream_);
    auto scales = ToDevice(std::vector<float>(kRows, NAN), *stream_);
    OVERTURE_ASSERT_OK(LaunchRmsNorm({.x = device_x.data(),
                                      .weight = device_weight.data(),
                                      .out = codes.data(),
                                      .out_scales = scales.data(),
                                      .eps = 1e-5,
                                      .rows = kRows,
                                      .columns = columns},
                                     stream_->get()));
    ExpectCodes(ToHost(codes, *stream_), ToHost(scales, *stream_), want);
  }
}

struct Heads {
  int32_t q;
  int32_t kv;
  int32_t dim;
};

TEST_F(TransformerOpsTest, RopeRotatesAndPlacesLikeTheCpu) {
  for (const Heads heads :
       {Heads{9, 3, 64}, Heads{4, 2, 96}, Heads{8, 1, 128}, Heads{2, 2, 16}}) {
    // 1,000,003 shows whether angles stay exact at a million positions.
    for (const int64_t position : {int64_t{0}, int64_t{1000003}}) {
      constexpr int64_t kRows = 70, kCacheRows = 75, kFirst = 3;
      const int64_t width = int64_t{heads.q + 2 * heads.kv} * heads.dim;
      const std::vector<float> qkv = Random(kRows * width, 1, 4);
      RopeTable table;
      for (int32_t i = 0; i < heads.dim / 2; ++i) {
        table.inv_freq.push_back(std::pow(500000.0, -2.0 * i / heads.dim));
      }
      std::vector<BFloat16> q = Nans(kRows * heads.q * heads.dim);
      std::vector<BFloat16> k = Nans(heads.kv * kCacheRows * heads.dim);
      std::vector<BFloat16> v = k;
      auto device_q = ToDevice(q, *stream_);
      auto device_k = ToDevice(k, *stream_);
      auto device_v = ToDevice(v, *stream_);
      RopeParams params{.x = qkv.data(),
                        .stride_x_row = width,
                        .stride_x_head = heads.dim,
                        .out = q.data(),
                        .stride_out_row = int64_t{heads.q} * heads.dim,
                        .stride_out_head = heads.dim,
                        .dtype = DType::kBF16,
                        .rows = kRows,
                        .num_heads = heads.q,
                        .head_dim = heads.dim,
                        .position_begin = position};
      RopeCpu(table, params);
      params.x += heads.q * heads.dim;
      params.out = k.data() + kFirst * heads.dim;
      params.stride_out_row = heads.dim;
      params.stride_out_head = kCacheRows * heads.dim;
      params.num_heads = heads.kv;
      RopeCpu(table, params);
      params.x += heads.kv * heads.dim;
      params.out = v.data() + kFirst * heads.dim;
      CastHeadsCpu(params);

      const auto device_qkv = ToDevice(qkv, *stream_);
      const auto inv_freq = ToDevice(table.inv_freq, *stream_);
      OVERTURE_ASSERT_OK(
          LaunchRopeKv({.qkv = device_qkv.data(),
                        .inv_freq = inv_freq.data(),
                        .q = device_q.data(),
                        .k = device_k.data() + kFirst * heads.dim,
                        .v = device_v.data() + kFirst * heads.dim,
                        .stride_kv_head = kCacheRows * heads.dim,
                        .rows = kRows,
                        .position_begin = position,
                        .num_q_heads = heads.q,
                        .num_kv_heads = heads.kv,
                        .head_dim = heads.dim},
                       stream_->get()));
      // A rotation adds two products of at most 5 in fp32: below 2^-20 where
      // they cancel.
      ExpectClose(ToHost(device_q, *stream_), q, 0x1p-20);
      // Rows of the cache outside the range keep their poison on both sides.
      const std::vector<BFloat16> got_k = ToHost(device_k, *stream_);
      const std::vector<BFloat16> got_v = ToHost(device_v, *stream_);
      for (size_t i = 0; i < k.size(); ++i) {
        ASSERT_EQ(got_v[i].bits, v[i].bits) << i;
        const float a = static_cast<float>(got_k[i]);
        const float b = static_cast<float>(k[i]);
        ASSERT_EQ(std::isnan(a), std::isnan(b)) << i;
        if (std::isnan(b)) continue;
        ASSERT_NEAR(a, b, kNeighbour * std::abs(b) + 0x1p-20) << i;
      }
    }
  }
}

TEST_F(TransformerOpsTest, SwiGluEqualsTheCpus) {
  for (const int64_t columns : {8, 1536, 14336, 53248}) {
    constexpr int64_t kRows = 33;
    std::vector<float> values = Random(kRows * 2 * columns, 4, 5);
    values[0] = -200;  // exp overflows: the result is 0, not NaN
    values[1] = 200;
    const std::vector<BFloat16> gate_up = Rounded(values);
    std::vector<BFloat16> want(kRows * columns);
    SwiGluCpu(gate_up.data(), DType::kBF16, kRows, columns, DType::kBF16,
              want.data());
    const auto device_in = ToDevice(gate_up, *stream_);
    auto out = ToDevice(Nans(want.size()), *stream_);
    OVERTURE_ASSERT_OK(LaunchSwiGlu({.gate_up = device_in.data(),
                                     .out = out.data(),
                                     .rows = kRows,
                                     .columns = columns},
                                    stream_->get()));
    ExpectClose(ToHost(out, *stream_), want, 1e-30);

    auto codes = ToDevice(std::vector<E4M3>(want.size()), *stream_);
    auto scales = ToDevice(std::vector<float>(kRows, NAN), *stream_);
    OVERTURE_ASSERT_OK(LaunchSwiGlu({.gate_up = device_in.data(),
                                     .out = codes.data(),
                                     .out_scales = scales.data(),
                                     .rows = kRows,
                                     .columns = columns},
                                    stream_->get()));
    ExpectCodes(ToHost(codes, *stream_), ToHost(scales, *stream_), want);
  }
}

TEST_F(TransformerOpsTest, NamesASizeThatVectorsCannotTake) {
  EXPECT_THAT(LaunchRmsNorm({.rows = 1, .columns = 20}, stream_->get()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("columns is 20, must be a multiple of 8")));
  EXPECT_THAT(
      LaunchSwiGlu({.rows = 0, .columns = 16}, stream_->get()),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("rows is 0")));
  EXPECT_THAT(LaunchRopeKv({.stride_kv_head = 8,
                            .rows = 1,
                            .num_q_heads = 1,
                            .num_kv_heads = 1,
                            .head_dim = 40},
                           stream_->get()),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("head_dim is 40")));
}

}  // namespace
}  // namespace overture::kernels
