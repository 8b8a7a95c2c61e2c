// Times the CPU kernels on the shapes of SmolLM2-135M and prints microseconds,
// GFLOPS and the ratio to oneDNN's own dense product of as many FLOPs in the
// same run and dtype (1024 x 1536 x 576, weights packed, all threads).
//
//   OMP_NUM_THREADS=2 kernels_bench [seconds per line, default 0.3]
//
// Each line is the fastest of its runs, by the clock on the wall: on a busy
// machine threads wait for each other by scheduler ticks, so use one thread
// there.

#include <omp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "base/check.h"
#include "kernels/linear/linear_cpu.h"
#include "kernels/onednn/onednn.h"
#include "kernels/selectors/static_plans.h"
#include "kernels/sparse_attention/sparse_attention_cpu.h"

namespace overture::kernels {
namespace {

double seconds_per_line = 0.3;

double Now() {
  return std::chrono::duration<double>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// Seconds of the fastest run; the first, which makes the products, is not
// counted.
template <typename F>
double Fastest(F&& run) {
  run();
  double best = 1e30;
  const double start = Now();
  do {
    const double begin = Now();
    run();
    best = std::min(best, Now() - begin);
  } while (Now() - start < seconds_per_line);
  return best;
}

void Print(const std::string& name, double seconds, double flops,
           double baseline) {
  const double rate = flops / seconds;
  std::printf("%-44s %10.1f us %8.1f GFLOPS %6.2f of dense\n", name.c_str(),
              seconds * 1e6, rate / 1e9, rate / baseline);
}

template <typename T>
std::vector<T> Normal(int64_t count) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<T> values(count);
  for (T& value : values) value = T(normal(random));
  return values;
}

// FLOPS of oneDNN's own product.
double Baseline(DType dtype) {
  using dnnl::memory;
  constexpr int64_t kM = 1024, kN = 1536, kK = 576;
  const memory::data_type type = onednn::ToDnnl(dtype);
  const dnnl::engine& engine = onednn::Engine();
  const dnnl::matmul::primitive_desc pd(
      dnnl::matmul::desc(memory::desc({kM, kK}, type, memory::format_tag::ab),
                         memory::desc({kK, kN}, type, memory::format_tag::any),
                         memory::desc({kM, kN}, memory::data_type::f32,
                                      memory::format_tag::ab)),
      engine);
  std::unordered_map<int, memory> args = {
      {DNNL_ARG_SRC, memory(pd.src_desc(), engine)},
      {DNNL_ARG_WEIGHTS, memory(pd.weights_desc(), engine)},
      {DNNL_ARG_DST, memory(pd.dst_desc(), engine)}};
  for (auto& [arg, tensor] : args) {
    std::fill_n(static_cast<char*>(tensor.get_data_handle()),
                tensor.get_desc().get_size(), 0);
  }
  const dnnl::matmul product(pd);
  const double seconds = Fastest([&] {
    product.execute(onednn::ThreadStream(), args);
    onednn::ThreadStream().wait();
  });
  const double flops = 2.0 * kM * kN * kK / seconds;
  std::printf("%-44s %10.1f us %8.1f GFLOPS   (%s)\n",
              ("oneDNN dense product, " + std::string(Name(dtype))).c_str(),
              seconds * 1e6, flops / 1e9, pd.impl_info_str());
  return flops;
}

template <typename T>
void BenchLinear(DType dtype, double baseline) {
  struct Layer {
    const char* name;
    int64_t out;
    int64_t in;
  };
  for (const Layer& layer :
       {Layer{"qkv", 960, 576}, Layer{"output", 576, 576},
        Layer{"gate and up", 3072, 576}, Layer{"down", 576, 1536}}) {
    const auto weight = Normal<float>(layer.out * layer.in);
    auto linear =
        LinearCpu::Create(dtype, layer.out, layer.in, weight, /*bias=*/{});
    OVERTURE_CHECK(linear.ok());
    for (int64_t rows : {1, 64, 1024}) {
      const auto x = Normal<T>(rows * layer.in);
      std::vector<T> y(rows * layer.out);
      const double seconds = Fastest([&] {
        OVERTURE_CHECK((*linear)->Apply(x.data(), rows, y.data(), dtype).ok());
      });
      Print("linear " + std::string(layer.name) + ", " + std::to_string(rows) +
                " rows, " + std::string(Name(dtype)),
            seconds, 2.0 * rows * layer.out * layer.in, baseline);
    }
  }
}

// (row, key) pairs that the plan's rows see, of one list.
int64_t VisiblePairs(const TilePlan& plan) {
  int64_t pairs = 0;
  for (int64_t tile = 0; tile < plan.num_q_tiles(); ++tile) {
    const int64_t s = plan.first_tile_begin() + tile * plan.tile_rows;
    const int64_t row_begin = std::max(s, plan.q_begin);
    const int64_t row_end =
        std::min(s + plan.tile_rows, plan.q_begin + plan.q_len);
    for (int64_t i = plan.range_offsets[tile]; i < plan.range_offsets[tile + 1];
         ++i) {
      const int64_t begin = plan.ranges[i].begin;
      const int64_t end =
          begin + int64_t{plan.ranges[i].num_tiles} * plan.tile_keys;
      for (int64_t row = row_begin; row < row_end; ++row) {
        pairs += std::clamp<int64_t>(row + 1 - begin, 0, end - begin);
      }
    }
  }
  return pairs;
}

template <typename T>
void BenchAttention(DType dtype, const std::string& name, const TilePlan& plan,
                    int32_t num_q_heads, int32_t num_kv_heads, int32_t head_dim,
                    double baseline) {
  const auto q = Normal<T>(plan.q_len * num_q_heads * head_dim);
  const auto k = Normal<T>(plan.kv_len * num_kv_heads * head_dim);
  const auto v = Normal<T>(plan.kv_len * num_kv_heads * head_dim);
  std::vector<T> o(q.size());
  const SparseAttentionParams params = {
      .dtype = dtype,
      .q = q.data(),
      .k = k.data(),
      .v = v.data(),
      .o = o.data(),
      .stride_q_row = int64_t{num_q_heads} * head_dim,
      .stride_q_head = head_dim,
      .stride_kv_row = head_dim,
      .stride_kv_head = plan.kv_len * head_dim,
      .stride_o_row = int64_t{num_q_heads} * head_dim,
      .stride_o_head = head_dim,
      .num_q_heads = num_q_heads,
      .num_kv_heads = num_kv_heads,
      .head_dim = head_dim,
      .scale = 1.0f / std::sqrt(static_cast<float>(head_dim)),
      .plan = &plan};
  const double seconds =
      Fastest([&] { OVERTURE_CHECK(SparseAttentionCpu(params).ok()); });
  Print("attention " + name + ", " + std::string(Name(dtype)), seconds,
        4.0 * static_cast<double>(VisiblePairs(plan)) * num_q_heads * head_dim,
        baseline);
}

template <typename T>
void Bench(DType dtype) {
  const double baseline = Baseline(dtype);
  BenchLinear<T>(dtype, baseline);
  const PlanShape shape = {.q_len = 4096, .kv_len = 4096};
  const PlanShape token = {.q_begin = 4095, .q_len = 1, .kv_len = 4096};
  const auto dense = DensePlan(shape);
  const auto a_shape = AShapePlan(shape, /*num_initial=*/64, /*num_local=*/512);
  const auto decode = DensePlan(token);
  OVERTURE_CHECK(dense.ok() && a_shape.ok() && decode.ok());
  BenchAttention<T>(dtype, "dense 4096, 9/3 x 64", *dense, 9, 3, 64, baseline);
  BenchAttention<T>(dtype, "A-shape 64+512 of 4096, 9/3 x 64", *a_shape, 9, 3,
                    64, baseline);
  BenchAttention<T>(dtype, "1 token over 4096, 9/3 x 64", *decode, 9, 3, 64,
                    baseline);
  BenchAttention<T>(dtype, "dense 4096, 8/2 x 128", *dense, 8, 2, 128,
                    baseline);
}

}  // namespace
}  // namespace overture::kernels

int main(int argc, char** argv) {
  namespace kernels = overture::kernels;
  if (argc > 1) kernels::seconds_per_line = std::atof(argv[1]);
  std::printf("threads: %d, bf16 in hardware: %s\n", omp_get_max_threads(),
              kernels::CpuHasBf16() ? "yes" : "no");
  if (kernels::CpuHasBf16())
    kernels::Bench<overture::BFloat16>(overture::DType::kBF16);
  kernels::Bench<float>(overture::DType::kF32);
  return 0;
}
