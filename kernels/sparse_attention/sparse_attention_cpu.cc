#include "kernels/sparse_attention/sparse_attention_cpu.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "base/status_macros.h"
#include "kernels/linear/linear_cpu.h"
#include "kernels/onednn/matmul.h"
#include "kernels/onednn/onednn.h"
#include "kernels/simd/scratch_buffer.h"
#include "kernels/simd/simd.h"
#include "kernels/sparse_attention/key_chunks.h"
#include "kernels/sparse_attention/softmax_rows.h"

namespace overture::kernels {
namespace {

// Keys of one product, and of one pass of the softmax: 4096 dense tokens, 9
// heads of 64 on one AMX core take 49 ms with 512, 54 with 256 or 1024.
constexpr int32_t kMaxChunkKeys = 512;
// A chunk with fewer keys is padded to one of these, so that few products are
// made; what is computed in vain is masked.
constexpr int32_t kChunkWidths[] = {64, 128, 256, kMaxChunkKeys};

// Query heads of a group are stacked up to this many rows: scores, weights, K,
// V and accumulators then take 1 MB at head dim 128, half of an L2 cache.
constexpr int64_t kMaxStackedRows = 256;
// Rows are padded to a multiple: with fewer oneDNN picks other kernels, and a
// row's bits would depend on how many rows stand beside it.
constexpr int64_t kRowMultiple = 16;

constexpr int32_t kMaxHeadDim = 512;

int32_t WidthFor(int32_t num_keys) {
  for (int32_t width : kChunkWidths) {
    if (num_keys <= width) return width;
  }
  return kMaxChunkKeys;
}

absl::Status Bad(absl::string_view field, int64_t value,
                 absl::string_view limit) {
  return absl::InvalidArgumentError(absl::StrCat(
      "sparse attention: ", field, " is ", value, ", must be ", limit));
}

absl::Status CheckMeans(const TilePlan& plan) {
  const auto cells = static_cast<size_t>(plan.num_cells());
  if (plan.mean_offsets.size() != cells + 1) {
    return Bad("size of plan.mean_offsets", plan.mean_offsets.size(),
               "number of cells + 1, or 0");
  }
  const auto num_intervals = static_cast<int64_t>(plan.mean_blocks.size());
  for (size_t cell = 0; cell < cells; ++cell) {
    const int64_t begin = plan.mean_offsets[cell];
    const int64_t end = plan.mean_offsets[cell + 1];
    if (begin < 0 || end < begin || end > num_intervals) {
      return Bad("plan.mean_offsets of cell", static_cast<int64_t>(cell),
                 "ascending and in range");
    }
  }
  for (const BlockInterval& blocks : plan.mean_blocks) {
    if (blocks.begin < 0 || blocks.count < 0 ||
        int64_t{blocks.begin} + blocks.count > plan.kv_len / kMeanBlockKeys) {
      return Bad("plan.mean_blocks begin", blocks.begin,
                 "within the whole blocks of kv_len");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCells(const TilePlan& plan) {
  const auto num_ranges = static_cast<int64_t>(plan.ranges.size());
  const auto num_intervals = static_cast<int64_t>(plan.intervals.size());
  const int64_t tiles = plan.num_q_tiles();
  for (int64_t list = 0; list < plan.num_lists; ++list) {
    const int64_t column_begin = plan.column_offsets[list];
    const int64_t column_end = plan.column_offsets[list + 1];
    if (column_begin < 0 || column_end < column_begin ||
        column_end > static_cast<int64_t>(plan.columns.size())) {
      return Bad("plan.column_offsets of list", list, "ascending and in range");
    }
    for (int64_t i = column_begin; i < column_end; ++i) {
      if (plan.columns[i] < 0 || plan.columns[i] >= plan.kv_len) {
        return Bad("plan.columns entry", plan.columns[i], "in [0, kv_len)");
      }
    }
    for (int64_t cell = list * tiles; cell < (list + 1) * tiles; ++cell) {
      const int64_t range_begin = plan.range_offsets[cell];
      const int64_t range_end = plan.range_offsets[cell + 1];
      const int64_t interval_begin = plan.interval_offsets[cell];
      const int64_t interval_end = plan.interval_offsets[cell + 1];
      if (range_begin < 0 || range_end < range_begin ||
          range_end > num_ranges || interval_begin < 0 ||
          interval_end < interval_begin || interval_end > num_intervals) {
        return Bad("plan offset of cell", cell, "ascending and in range");
      }
      for (int64_t i = range_begin; i < range_end; ++i) {
        const KeyRange& range = plan.ranges[i];
        if (range.begin < 0 || range.num_tiles < 0 ||
            range.begin >= plan.kv_len) {
          return Bad("plan.ranges begin", range.begin, "in [0, kv_len)");
        }
      }
      for (int64_t i = interval_begin; i < interval_end; ++i) {
        const ColumnInterval& interval = plan.intervals[i];
        if (interval.begin < 0 || interval.count < 0 ||
            int64_t{interval.begin} + interval.count >
                column_end - column_begin) {
          return Bad("plan.intervals begin", interval.begin,
                     "within the list's columns");
        }
      }
    }
  }
  return absl::OkStatus();
}

// Only what memory safety needs: a plan may be a part of a whole, in which a
// row does not see its own key, so Validate would be too strict.
absl::Status CheckPlan(const TilePlan& plan) {
  if (plan.tile_rows < 1) return Bad("plan.tile_rows", plan.tile_rows, ">= 1");
  if (plan.tile_keys < 1) return Bad("plan.tile_keys", plan.tile_keys, ">= 1");
  if (plan.q_begin < 0) return Bad("plan.q_begin", plan.q_begin, ">= 0");
  if (plan.q_len < 0) return Bad("plan.q_len", plan.q_len, ">= 0");
  if (plan.kv_len < plan.q_begin + plan.q_len ||
      plan.kv_len > std::numeric_limits<int32_t>::max()) {
    return Bad("plan.kv_len", plan.kv_len, "in [q_begin + q_len, 2^31 - 1]");
  }
  const auto cells = static_cast<size_t>(plan.num_cells());
  if (plan.range_offsets.size() != cells + 1) {
    return Bad("size of plan.range_offsets", plan.range_offsets.size(),
               "number of cells + 1");
  }
  if (plan.interval_offsets.size() != cells + 1) {
    return Bad("size of plan.interval_offsets", plan.interval_offsets.size(),
               "number of cells + 1");
  }
  if (plan.column_offsets.size() != static_cast<size_t>(plan.num_lists) + 1) {
    return Bad("size of plan.column_offsets", plan.column_offsets.size(),
               "num_lists + 1");
  }
  if (!plan.mean_offsets.empty()) OVERTURE_RETURN_IF_ERROR(CheckMeans(plan));
  return CheckCells(plan);
}

absl::Status CheckParams(const SparseAttentionParams& params) {
  if (params.dtype != DType::kF32 && params.dtype != DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrCat("sparse attention: dtype is ", Name(params.dtype),
                     ", must be f32 or bf16"));
  }
  if (params.head_dim < 16 || params.head_dim > kMaxHeadDim ||
      params.head_dim % 16 != 0) {
    return Bad("head_dim", params.head_dim, "a multiple of 16 in [16, 512]");
  }
  if (params.num_kv_heads < 1) {
    return Bad("num_kv_heads", params.num_kv_heads, ">= 1");
  }
  if (params.num_q_heads < 1 || params.num_q_heads % params.num_kv_heads != 0) {
    return Bad("num_q_heads", params.num_q_heads,
               "a positive multiple of num_kv_heads");
  }
  if (!(params.scale > 0) || !std::isfinite(params.scale)) {
    return absl::InvalidArgumentError(
        absl::StrCat("sparse attention: scale is ", params.scale,
                     ", must be positive and finite"));
  }
  if (params.plan == nullptr) {
    return absl::InvalidArgumentError("sparse attention: plan is null");
  }
  const int32_t lists = params.plan->num_lists;
  if (lists != 1 && lists != params.num_kv_heads &&
      lists != params.num_q_heads) {
    return Bad("plan.num_lists", lists, "1, num_kv_heads or num_q_heads");
  }
  if (params.plan->q_len > 0 && (params.q == nullptr || params.k == nullptr ||
                                 params.v == nullptr || params.o == nullptr)) {
    return absl::InvalidArgumentError(
        "sparse attention: one of q, k, v, o is null");
  }
  if (!params.plan->mean_blocks.empty() &&
      (params.k_means == nullptr || params.v_means == nullptr)) {
    return absl::InvalidArgumentError(
        "sparse attention: the plan corrects blocks, k_means or v_means is "
        "null");
  }
  return CheckPlan(*params.plan);
}

// Query heads [head_begin, head_begin + num_heads), all of one KV head and one
// list, in one query tile: the unit of work.
struct Item {
  int32_t head_begin = 0;
  int32_t num_heads = 0;
  int32_t kv_head = 0;
  int32_t list = 0;
  int64_t tile = 0;
  int64_t cost = 0;  // (row, key) pairs to compute
};

int64_t NumKeys(const TilePlan& plan, int64_t cell) {
  int64_t keys = 0;
  for (int64_t i = plan.range_offsets[cell]; i < plan.range_offsets[cell + 1];
       ++i) {
    keys += int64_t{plan.ranges[i].num_tiles} * plan.tile_keys;
  }
  for (int64_t i = plan.interval_offsets[cell];
       i < plan.interval_offsets[cell + 1]; ++i) {
    keys += plan.intervals[i].count;
  }
  if (plan.mean_offsets.empty()) return keys;
  for (int64_t i = plan.mean_offsets[cell]; i < plan.mean_offsets[cell + 1];
       ++i) {
    keys += plan.mean_blocks[i].count;
  }
  return keys;
}

// Largest first, so that the last items to finish are small ones.
std::vector<Item> MakeItems(const SparseAttentionParams& params) {
  const TilePlan& plan = *params.plan;
  const int32_t group = params.num_q_heads / params.num_kv_heads;
  const bool list_per_q_head = plan.num_lists == params.num_q_heads;
  const int32_t stack = list_per_q_head && group > 1
                            ? 1
                            : static_cast<int32_t>(std::clamp<int64_t>(
                                  kMaxStackedRows / plan.tile_rows, 1, group));
  std::vector<Item> items;
  for (int32_t kv_head = 0; kv_head < params.num_kv_heads; ++kv_head) {
    for (int32_t g = 0; g < group; g += stack) {
      const int32_t head = kv_head * group + g;
      const int32_t list = plan.num_lists == 1 ? 0
                           : list_per_q_head   ? head
                                               : kv_head;
      const int32_t num_heads = std::min(stack, group - g);
      for (int64_t tile = 0; tile < plan.num_q_tiles(); ++tile) {
        const int64_t keys = NumKeys(plan, list * plan.num_q_tiles() + tile);
        items.push_back({.head_begin = head,
                         .num_heads = num_heads,
                         .kv_head = kv_head,
                         .list = list,
                         .tile = tile,
                         .cost = keys * num_heads});
      }
    }
  }
  std::stable_sort(
      items.begin(), items.end(),
      [](const Item& a, const Item& b) { return a.cost > b.cost; });
  return items;
}

// Rows of `columns` elements, converted if the types differ. `columns` is a
// multiple of 16.
template <typename T>
void CopyRow(const T* in, int64_t columns, T* out) {
  std::memcpy(static_cast<void*>(out), in, columns * sizeof(T));
}
OVERTURE_SIMD_CLONES void CopyRow(const BFloat16* in, int64_t columns,
                                  float* out) {
  for (int64_t i = 0; i < columns; i += simd::kLanes) {
    simd::Store(out + i, simd::Load(in + i));
  }
}

// What a thread keeps between items and calls.
struct Workspace {
  KeyChunks keys;
  std::vector<SoftmaxRow> rows;
  ScratchBuffer q;        // [padded_rows, head_dim]
  ScratchBuffer k;        // [kMaxChunkKeys, head_dim], a chunk that is no range
  ScratchBuffer v;        // as k
  ScratchBuffer scores;   // [padded_rows, width] fp32
  ScratchBuffer weights;  // [padded_rows, width]
  ScratchBuffer o;        // [padded_rows, head_dim] fp32
};

// One item, step by step. T is the element type of the tensors, C the one that
// is multiplied: float for bf16 tensors on a CPU without bf16 hardware.
template <typename T, typename C>
class ItemRunner {
 public:
  ItemRunner(const SparseAttentionParams& params, WeightRounding rounding,
             const Item& item, Workspace& workspace)
      : p_(params),
        plan_(*params.plan),
        rounding_(rounding),
        item_(item),
        ws_(workspace) {
    const int64_t begin = plan_.first_tile_begin() +
                          item.tile * static_cast<int64_t>(plan_.tile_rows);
    row_begin_ = std::max(begin, plan_.q_begin);
    num_rows_ = std::min(begin + plan_.tile_rows, plan_.q_begin + plan_.q_len) -
                row_begin_;
    stacked_rows_ = num_rows_ * item.num_heads;
    padded_rows_ =
        (stacked_rows_ + kRowMultiple - 1) / kRowMultiple * kRowMultiple;
  }

  void Run() {
    LoadQueries();
    ws_.keys.Build(plan_, item_.list, item_.tile, kMaxChunkKeys);
    for (const KeyChunk& chunk : ws_.keys.chunks) RunChunk(chunk);
    StoreOutputs();
  }

 private:
  void LoadQueries() {
    const int64_t dim = p_.head_dim;
    q_ = ws_.q.Reserve<C>(padded_rows_ * dim);
    o_ = ws_.o.Reserve<float>(padded_rows_ * dim);
    scores_ = ws_.scores.Reserve<float>(padded_rows_ * kMaxChunkKeys);
    weights_ = ws_.weights.Reserve<C>(padded_rows_ * kMaxChunkKeys);
    ws_.rows.assign(padded_rows_,
                    {-std::numeric_limits<float>::infinity(), 0.0f});
    std::fill_n(o_, padded_rows_ * dim, 0.0f);
    C* out = q_;
    for (int32_t h = 0; h < item_.num_heads; ++h) {
      const T* in = static_cast<const T*>(p_.q) +
                    (row_begin_ - plan_.q_begin) * p_.stride_q_row +
                    (item_.head_begin + h) * p_.stride_q_head;
      for (int64_t r = 0; r < num_rows_; ++r, out += dim) {
        CopyRow(in + r * p_.stride_q_row, dim, out);
      }
    }
    std::fill_n(out, (padded_rows_ - stacked_rows_) * dim, C(0.0f));
  }

  void RunChunk(const KeyChunk& chunk) {
    const int64_t dim = p_.head_dim;
    const int32_t width = WidthFor(chunk.num_keys);
    const C* k = LoadKeys(chunk.means ? p_.k_means : p_.k, chunk, width, ws_.k);
    const C* v = LoadKeys(chunk.means ? p_.v_means : p_.v, chunk, width, ws_.v);
    using onednn::MatMul;
    MatMul::ForThread({.dtype = kComputeType,
                       .m = padded_rows_,
                       .n = width,
                       .k = dim,
                       .transpose_b = true})
        .Run(q_, k, scores_);
    if (chunk.means) {
      WeighMeans(chunk, width);
    } else {
      MaskFuture(chunk, width);
    }
    MaskPadding(chunk, width);
    UpdateRows(chunk, width);
    MatMul::ForThread({.dtype = kComputeType,
                       .m = padded_rows_,
                       .n = dim,
                       .k = width,
                       .accumulate = true})
        .Run(weights_, v, o_);
  }

  // The chunk's rows of K or V or their means, `width` of them. In place if
  // they are one range of dense rows, `width` of them readable; else copied,
  // with zeros for what is past the tensor's end or past the chunk.
  const C* LoadKeys(const void* tensor, const KeyChunk& chunk, int32_t width,
                    ScratchBuffer& buffer) const {
    const int64_t stride_row =
        chunk.means ? p_.stride_mean_row : p_.stride_kv_row;
    const int64_t num_rows =
        chunk.means ? plan_.kv_len / kMeanBlockKeys : plan_.kv_len;
    const T* head =
        static_cast<const T*>(tensor) +
        item_.kv_head * (chunk.means ? p_.stride_mean_head : p_.stride_kv_head);
    const KeyPiece& first = ws_.keys.pieces[chunk.piece_begin];
    if constexpr (std::is_same_v<T, C>) {
      if (stride_row == p_.head_dim &&
          chunk.piece_end - chunk.piece_begin == 1 &&
          int64_t{first.key_begin} + width <= num_rows) {
        return head + first.key_begin * stride_row;
      }
    }
    const int64_t dim = p_.head_dim;
    C* out = buffer.Reserve<C>(kMaxChunkKeys * dim);
    for (int32_t i = chunk.piece_begin; i < chunk.piece_end; ++i) {
      const KeyPiece& piece = ws_.keys.pieces[i];
      const int64_t real =
          std::clamp<int64_t>(num_rows - piece.key_begin, 0, piece.count);
      C* rows = out + piece.offset * dim;
      for (int64_t r = 0; r < real; ++r) {
        CopyRow(head + (piece.key_begin + r) * stride_row, dim, rows + r * dim);
      }
      std::fill_n(rows + real * dim, (piece.count - real) * dim, C(0.0f));
    }
    std::fill_n(out + chunk.num_keys * dim, (width - chunk.num_keys) * dim,
                C(0.0f));
    return out;
  }

  // Sets to -inf what the causal mask hides, and with it all past kv_len. Tiles
  // that every row sees whole, and columns, take no pass.
  void MaskFuture(const KeyChunk& chunk, int32_t width) {
    for (int32_t i = chunk.piece_begin; i < chunk.piece_end; ++i) {
      const KeyPiece& piece = ws_.keys.pieces[i];
      if (int64_t{piece.key_begin} + piece.count <= row_begin_ + 1) continue;
      for (int64_t r = 0; r < num_rows_; ++r) {
        const int64_t seen = std::clamp<int64_t>(
            row_begin_ + r + 1 - piece.key_begin, 0, piece.count);
        for (int32_t h = 0; h < item_.num_heads; ++h) {
          float* row = scores_ + (h * num_rows_ + r) * width;
          std::fill(row + piece.offset + seen, row + piece.offset + piece.count,
                    kMasked);
        }
      }
    }
  }

  // Each mean stands for its block's keys.
  void WeighMeans(const KeyChunk& chunk, int32_t width) {
    const float bias = std::log(float{kMeanBlockKeys}) / p_.scale;
    for (int64_t r = 0; r < padded_rows_; ++r) {
      float* row = scores_ + r * width;
      for (int32_t i = 0; i < chunk.num_keys; ++i) row[i] += bias;
    }
  }

  void MaskPadding(const KeyChunk& chunk, int32_t width) {
    const int64_t whole = WholeLanes(chunk.num_keys);
    if (whole == chunk.num_keys) return;
    for (int64_t r = 0; r < padded_rows_; ++r) {
      float* row = scores_ + r * width;
      std::fill(row + chunk.num_keys, row + whole, kMasked);
    }
  }

  void UpdateRows(const KeyChunk& chunk, int32_t width) {
    const float scale_log2 = p_.scale * simd::kLog2E;
    const int64_t whole = WholeLanes(chunk.num_keys);
    for (int64_t r = 0; r < padded_rows_; ++r) {
      C* weights = weights_ + r * width;
      const float factor =
          Update(scores_ + r * width, whole, scale_log2, ws_.rows[r], weights);
      std::fill(weights + whole, weights + width, C(0.0f));
      if (factor != 1.0f) ScaleRow(o_ + r * p_.head_dim, p_.head_dim, factor);
    }
  }

  float Update(const float* scores, int64_t count, float scale_log2,
               SoftmaxRow& row, C* weights) const {
    if constexpr (std::is_same_v<T, float>) {
      if (rounding_ == WeightRounding::kE4M3) {
        return UpdateRowE4M3(scores, count, scale_log2, row, weights);
      }
    }
    return UpdateRow(scores, count, scale_log2, row, weights);
  }

  void StoreOutputs() {
    constexpr float kLn2 = 0x1.62e43p-1f;
    for (int32_t h = 0; h < item_.num_heads; ++h) {
      const int64_t head = item_.head_begin + h;
      for (int64_t r = 0; r < num_rows_; ++r) {
        const int64_t stacked = h * num_rows_ + r;
        const int64_t out_row = row_begin_ - plan_.q_begin + r;
        const SoftmaxRow& row = ws_.rows[stacked];
        const bool empty = row.sum == 0.0f;
        FinishRow(o_ + stacked * p_.head_dim, p_.head_dim,
                  empty ? 0.0f : 1.0f / row.sum,
                  static_cast<T*>(p_.o) + out_row * p_.stride_o_row +
                      head * p_.stride_o_head);
        if (p_.lse != nullptr) {
          p_.lse[head * plan_.q_len + out_row] =
              empty ? -std::numeric_limits<float>::infinity()
                    : kLn2 * (row.max + std::log2(row.sum));
        }
      }
    }
  }

  static constexpr float kMasked = -std::numeric_limits<float>::infinity();

  static int64_t WholeLanes(int64_t count) {
    return (count + simd::kLanes - 1) / simd::kLanes * simd::kLanes;
  }

  static constexpr DType kComputeType =
      std::is_same_v<C, float> ? DType::kF32 : DType::kBF16;

  const SparseAttentionParams& p_;
  const TilePlan& plan_;
  const WeightRounding rounding_;
  const Item& item_;
  Workspace& ws_;
  int64_t row_begin_ = 0;  // absolute position of the first real row
  int64_t num_rows_ = 0;
  int64_t stacked_rows_ = 0;  // num_heads * num_rows_, head-major
  int64_t padded_rows_ = 0;
  C* q_ = nullptr;
  float* o_ = nullptr;
  float* scores_ = nullptr;
  C* weights_ = nullptr;
};

absl::Status RunItem(const SparseAttentionParams& params,
                     WeightRounding rounding, const Item& item) {
  thread_local Workspace workspace;
  return onednn::Guard("sparse attention", [&]() -> absl::Status {
    if (params.dtype == DType::kF32) {
      ItemRunner<float, float>(params, rounding, item, workspace).Run();
    } else if (CpuHasBf16()) {
      ItemRunner<BFloat16, BFloat16>(params, rounding, item, workspace).Run();
    } else {
      ItemRunner<BFloat16, float>(params, rounding, item, workspace).Run();
    }
    return absl::OkStatus();
  });
}

}  // namespace

absl::Status SparseAttentionCpu(const SparseAttentionParams& params,
                                WeightRounding rounding) {
  OVERTURE_RETURN_IF_ERROR(CheckParams(params));
  if (rounding == WeightRounding::kE4M3 && params.dtype != DType::kF32) {
    return absl::InvalidArgumentError(
        absl::StrCat("sparse attention: dtype is ", Name(params.dtype),
                     ", must be f32 for e4m3 weights"));
  }
  if (params.plan->q_len == 0) return absl::OkStatus();
  const std::vector<Item> items = MakeItems(params);
  const auto num_items = static_cast<int64_t>(items.size());
  absl::Mutex mutex;
  absl::Status first_error;  // guarded by mutex
#pragma omp parallel num_threads( \
    static_cast <int>(std::min <int64_t>(omp_get_max_threads(), num_items)))
  {
    const onednn::SingleThreaded single;
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < num_items; ++i) {
      const absl::Status status = RunItem(params, rounding, items[i]);
      if (!status.ok()) {
        absl::MutexLock lock(&mutex);
        first_error.Update(status);
      }
    }
  }
  return first_error;
}

}  // namespace overture::kernels
