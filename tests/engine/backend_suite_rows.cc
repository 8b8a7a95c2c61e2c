// The part of BackendSuite that is about single rows: the audit, observed rows.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "tests/engine/backend_suite.h"
#include "tests/support/naive_llama.h"
#include "tests/support/status_matchers.h"

namespace overture::engine {
namespace {

using ::overture::testing::LoadedTinyModel;
using ::overture::testing::NaiveMask;
using ::overture::testing::NaivePair;
using ::overture::testing::RandomTokens;
using ::overture::testing::RecordedPrefill;
using ::overture::testing::RunPrefill;
using ::overture::testing::StatusIs;
using ::overture::testing::TinyModelOptions;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Keeps the queries of all rows of a prompt, and the keys.
class WholeObserver final : public RowObserver {
 public:
  WholeObserver(const ModelConfig& config, const KvLayout& layout, int64_t rows)
      : config_(config), layout_(layout), rows_(rows) {
    std::iota(rows_.begin(), rows_.end(), 0);
  }
  absl::Span<const int64_t> rows() const override { return rows_; }
  void LayerObserved(int32_t layer, const QueryRows& queries,
                     const LayerKvView& kv) override {
    ASSERT_EQ(layer, static_cast<int32_t>(q_.size()));
    ASSERT_EQ(queries.positions, rows_);
    const int64_t bytes = layout_.HeadBytes(rows_.size()) * config_.num_q_heads;
    q_.emplace_back(queries.q, queries.q + bytes);
    k_.emplace_back(layout_.LayerBytes(rows_.size()));
    GatherRows(layout_, kv, 0, rows_.size(), k_.back().data());
  }

  // The kept mass in double of what `mask` leaves, and a bound of its relative
  // error in fp32.
  struct Kept {
    double mass;
    double error;
  };
  Kept NaiveKept(int32_t layer, int32_t head, int64_t row,
                 const NaiveMask& mask) const {
    const int32_t d = config_.head_dim;
    const int64_t n = rows_.size();
    const int32_t kv_head = head / (config_.num_q_heads / config_.num_kv_heads);
    double kept = 0;
    double all = 0;
    double terms = 0;  // the largest sum of |q k| * scale
    for (int64_t key = 0; key <= row; ++key) {
      double logit = 0;
      double size = 0;
      for (int32_t i = 0; i < d; ++i) {
        const double term =
            Value(q_[layer], (row * config_.num_q_heads + head) * d + i) *
            Value(k_[layer], (kv_head * n + key) * d + i) / std::sqrt(d);
        logit += term;
        size += std::abs(term);
      }
      terms = std::max(terms, size);
      const double weight = std::exp(logit);
      all += weight;
      if (mask == nullptr || mask({layer, head, row, key})) kept += weight;
    }
    // A logit, a sum of d products in fp32 times a rounded scale, is off by
    // (d + 2) eps of its terms, and an exponential by as much, relatively,
    // beside its own 4 eps and that of its argument, which is at most 2 terms;
    // so is the sum of up to n of them, with n / 16 + 32 additions. Both sums,
    // and the rounding of both logarithms.
    const double eps = std::numeric_limits<float>::epsilon() / 2;
    return {kept / all, 2 * eps *
                            ((d + 6) * terms + n / 16.0 + 36 +
                             2 * std::abs(std::log(all)))};
  }

 private:
  double Value(const std::vector<std::byte>& bytes, int64_t i) const {
    if (layout_.dtype == DType::kF32) {
      return reinterpret_cast<const float*>(bytes.data())[i];
    }
    return static_cast<float>(
        reinterpret_cast<const BFloat16*>(bytes.data())[i]);
  }

  const ModelConfig config_;
  const KvLayout layout_;
  std::vector<int64_t> rows_;
  std::vector<std::vector<std::byte>> q_;  // by layer
  std::vector<std::vector<std::byte>> k_;
};

}  // namespace

TEST_P(BackendSuite, TheAuditOfEachRowIsTheShareOfWeightsThatItsPlanKeeps) {
  const TinyModelOptions options = Tiny();
  const LoadedTinyModel model(options);
  const auto backend = NewBackend(model.files());
  const int64_t n = 500;
  const std::vector<int32_t> tokens = RandomTokens(n, options.vocab_size, 3);
  const int64_t tile_rows = GetParam().tile_rows;
  const SelectorSpec a_shape{
      .kind = SelectorSpec::Kind::kAShape, .num_initial = 64, .num_local = 100};
  const NaiveMask a_shape_mask = [=](const NaivePair& at) {
    const int64_t s = at.q / tile_rows * tile_rows;
    return at.k < 64 || at.k >= (s - 99) / 64 * 64;
  };
  for (const bool is_dense : {true, false}) {
    SCOPED_TRACE(is_dense);
    WholeObserver observer(backend->config(), backend->kv_layout(), n);
    OVERTURE_ASSERT_OK_AND_ASSIGN(
        const RecordedPrefill run,
        RunPrefill(*backend, tokens,
                   {.selector = is_dense ? SelectorSpec() : a_shape,
                    .audit_rows = 9,
                    .observer = &observer}));
    const std::vector<AuditedLayer>& audit = run.output.audit;
    ASSERT_EQ(audit.size(), 2);
    EXPECT_EQ(audit[0].rows, AuditRows(0, 0, n, 9));
    EXPECT_EQ(audit[1].rows, std::vector<int64_t>{n - 1});
    for (int32_t layer = 0; layer < 2; ++layer) {
      ASSERT_EQ(audit[layer].kept.size(),
                audit[layer].rows.size() * options.num_q_heads);
      for (size_t i = 0; i < audit[layer].kept.size(); ++i) {
        const auto want = observer.NaiveKept(
            layer, static_cast<int32_t>(i) % options.num_q_heads,
            audit[layer].rows[i / options.num_q_heads],
            is_dense ? nullptr : a_shape_mask);
        // FP8 attention's quantised queries and keys are others, as a vote's.
        const double error =
            GetParam().columns ? want.error : GetParam().vote_tolerance;
        EXPECT_NEAR(audit[layer].kept[i], want.mass, error * want.mass)
            << layer << ", " << i;
        if (is_dense) {
          EXPECT_EQ(want.mass, 1.0);
        }
      }
    }
    EXPECT_EQ(Summarize(audit).num_rows, 10);
    if (!is_dense) {
      EXPECT_LT(Summarize(audit).lowest, 0.9);
    }
  }
}

TEST_P(BackendSuite, AuditedAndObservedRowsOfAPrefixsRestAreItsNewOnes) {
  const LoadedTinyModel model(Tiny());
  const auto backend = NewBackend(model.files());
  const std::vector<int32_t> tokens = RandomTokens(300, 320, 3);
  OVERTURE_ASSERT_OK_AND_ASSIGN(const RecordedPrefill whole,
                                RunPrefill(*backend, tokens));
  EXPECT_THAT(whole.output.audit, IsEmpty());
  OVERTURE_ASSERT_OK_AND_ASSIGN(
      const RecordedPrefill rest,
      RunPrefill(*backend, tokens,
                 {.prefix = &whole.kv, .num_cached = 297, .audit_rows = 64}));
  ASSERT_EQ(rest.output.audit.size(), 2);
  EXPECT_THAT(rest.output.audit[0].rows, ElementsAre(297, 298, 299));
  WholeObserver observer(backend->config(), backend->kv_layout(), 300);
  EXPECT_THAT(
      RunPrefill(
          *backend, tokens,
          {.prefix = &whole.kv, .num_cached = 297, .observer = &observer}),
      StatusIs(absl::StatusCode::kInvalidArgument,
               HasSubstr("an observed row is 0")));
  EXPECT_THAT(RunPrefill(*backend, tokens, {.audit_rows = 65}),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("audit_rows is 65")));
}

}  // namespace overture::engine
