#!/usr/bin/env python3
"""Our GPU attention beside PyTorch's cuDNN attention, in one process.

    bench/attention_gpu.py [--library PATH] [--quick]

Each case alternates the two, so that both see the same clocks: under sustained
load the card's clock falls, and whoever runs first would look faster. FLOP
counts are those of what is computed: causal pairs for dense, whole tiles and
gathered columns for sparse. Needs torch with CUDA on sm_90.
"""

import ctypes
import math

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from gpu_bench import alternate, library_parser

TILE_ROWS = 128
TILE_KEYS = 64
BLOCK_KEYS = 128  # of a mean
DEVICE = 'cuda'


class Shape(ctypes.Structure):
    _fields_ = [('q_begin', ctypes.c_int64), ('q_len', ctypes.c_int64),
                ('kv_len', ctypes.c_int64), ('num_q_heads', ctypes.c_int32),
                ('num_kv_heads', ctypes.c_int32),
                ('head_dim', ctypes.c_int32), ('num_lists', ctypes.c_int32),
                ('tile_rows', ctypes.c_int32), ('sm80', ctypes.c_int32)]


class PlanPointers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_void_p) for name in
                ('cells', 'ranges', 'columns', 'mean_offsets', 'mean_blocks',
                 'k_means', 'v_means', 'order', 'next_item')]


# PlanCell of kernels/sparse_attention/device_plan.h.
CELL = np.dtype([('range_end', np.int64), ('column_begin', np.int64),
                 ('num_tiles', np.int32), ('key_origin', np.int32),
                 ('num_columns', np.int32), ('num_means', np.int32)])


class Plan:
    """A plan on the device. cells: [(ranges [(begin, tiles)], columns)].

    tile_rows below 128: each work item packs 128 / tile_rows query heads.
    means: per cell the intervals (begin, count) of corrected blocks, whose
    means are k_means and v_means.
    """

    def __init__(self, cells, num_lists, num_q_heads, tile_rows=TILE_ROWS,
                 means=None, k_means=None, v_means=None):
        num_heads = num_q_heads * tile_rows // TILE_ROWS  # of work items
        counts = np.array([len(columns) for _, columns in cells])
        table = np.zeros(len(cells), CELL)
        table['range_end'] = np.cumsum([len(ranges) for ranges, _ in cells])
        table['num_tiles'] = [sum(n for _, n in ranges) for ranges, _ in cells]
        table['num_columns'] = counts
        table['column_begin'] = np.cumsum(counts) - counts
        if means:
            table['num_means'] = [sum(n for _, n in cell) for cell in means]
        num_tiles = len(cells) // num_lists
        cost = (table['num_tiles'] +
                (counts + table['num_means']) / TILE_KEYS)
        cost = np.repeat(cost.reshape(num_lists, num_tiles),
                         num_heads // num_lists, axis=0)
        # Most expensive first; heads of one tile side by side.
        by_tile = np.argsort(-cost.T.reshape(-1), kind='stable')
        order = by_tile % num_heads * num_tiles + by_tile // num_heads

        def to_device(values, dtype):
            values = np.asarray(values, dtype=dtype)
            # Of no element torch has no address.
            values = values if values.size else np.zeros(1, dtype)
            return torch.from_numpy(values.view(np.uint8)).to(DEVICE)

        self.tensors = [
            to_device(table, CELL),
            to_device([r for ranges, _ in cells for r in ranges], np.int32),
            to_device(np.concatenate([c for _, c in cells]), np.int32),
            to_device([0] + list(np.cumsum([len(m) for m in means or []])),
                      np.int64),
            to_device([i for cell in means or [] for i in cell], np.int32),
            k_means, v_means,
            to_device(order, np.int32),
            to_device([0], np.int32)]
        pointers = [t.data_ptr() if t is not None else None
                    for t in self.tensors]
        if not means:
            pointers[3:5] = [None, None]
        self.pointers = PlanPointers(*pointers)
        self.num_lists = num_lists
        self.tile_rows = tile_rows
        repeats = num_heads // num_lists
        self.num_key_tiles = int(table['num_tiles'].sum()) * repeats
        self.num_gathered = int((counts + table['num_means']).sum()) * repeats

    def flop(self, head_dim):
        keys = self.num_key_tiles * TILE_KEYS + self.num_gathered
        return 4.0 * TILE_ROWS * keys * head_dim


def dense_cells(num_tokens):
    return [([(0, -(-min((t + 1) * TILE_ROWS, num_tokens) // TILE_KEYS))], [])
            for t in range(-(-num_tokens // TILE_ROWS))]


def vertical_slash_cells(num_tokens, num_heads, band, num_slashes, num_columns,
                         seed=0):
    """Per head: a local band, slashes of one key tile, single columns."""
    random = np.random.default_rng(seed)
    cells = []
    for _ in range(num_heads):
        distances = random.choice(num_tokens // TILE_KEYS, num_slashes,
                                  replace=False) * TILE_KEYS
        head_columns = np.sort(
            random.choice(num_tokens, num_columns, replace=False))
        for t in range(num_tokens // TILE_ROWS):
            begin = t * TILE_ROWS
            starts = np.unique(np.concatenate([
                begin - distances, begin + TILE_KEYS - distances,
                np.arange(begin - band, begin + TILE_ROWS, TILE_KEYS)]))
            starts = starts[(starts >= 0) & (starts < begin + TILE_ROWS)]
            cut = np.nonzero(np.diff(starts) != TILE_KEYS)[0]
            first = np.concatenate([[0], cut + 1])
            last = np.concatenate([cut, [len(starts) - 1]])
            columns = head_columns[head_columns < begin]
            covered = np.isin(columns // TILE_KEYS * TILE_KEYS, starts)
            cells.append((list(zip(starts[first].tolist(),
                                   (last - first + 1).tolist())),
                          columns[~covered]))
    return cells


def packed_cells(cells, num_lists, tile_rows):
    """The same keys for query tiles of fewer rows, less what they cannot see."""
    num_tiles = len(cells) // num_lists
    packed = []
    for i, (ranges, columns) in enumerate(cells):
        for part in range(TILE_ROWS // tile_rows):
            end = i % num_tiles * TILE_ROWS + (part + 1) * tile_rows
            cut = [(begin, min(tiles, -(-(end - begin) // TILE_KEYS)))
                   for begin, tiles in ranges if begin < end]
            packed.append((cut, columns))
    return packed


def intervals(sorted_values):
    """Runs of consecutive integers as (begin, count)."""
    cut = np.nonzero(np.diff(sorted_values) != 1)[0] + 1
    return [(int(run[0]), len(run)) for run in np.split(sorted_values, cut)
            if len(run)]


def block_cells(num_tokens, num_lists, tile_rows, density, seed=0):
    """Random blocks, the first and the diagonal; and the rest as means."""
    random = np.random.default_rng(seed)
    cells, means = [], []
    for _ in range(num_lists):
        for end in range(tile_rows, num_tokens + 1, tile_rows):
            last = (end - 1) // BLOCK_KEYS
            kept = np.unique(np.concatenate([
                [0, last], random.integers(0, last + 1, int(density * last))]))
            ranges = [(b * BLOCK_KEYS, n * BLOCK_KEYS // TILE_KEYS)
                      for b, n in intervals(kept)]
            begin = ranges[-1][0]
            ranges[-1] = (begin, -(-(end - begin) // TILE_KEYS))
            cells.append((ranges, np.zeros(0, np.int32)))
            whole = np.arange((end - tile_rows) // BLOCK_KEYS)
            means.append(intervals(np.setdiff1d(whole, kept)))
    return cells, means


class Problem:
    def __init__(self, num_tokens, num_q_heads, num_kv_heads, head_dim):
        def random(heads):
            return torch.randn(heads, num_tokens, head_dim,
                               device=DEVICE).bfloat16()
        self.q = random(num_q_heads)
        self.k = random(num_kv_heads)
        self.v = random(num_kv_heads)
        self.o = torch.empty_like(self.q)
        self.head_dim = head_dim
        self.num_tokens = num_tokens

    def ours(self, library, plan, sm80=False):
        heads, n, dim = self.q.shape
        shape = Shape(0, n, n, heads, self.k.shape[0], dim, plan.num_lists,
                      plan.tile_rows, sm80)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        code = library.OvertureAttention(
            ctypes.byref(shape), ctypes.byref(plan.pointers),
            *[ctypes.c_void_p(t.data_ptr())
              for t in (self.q, self.k, self.v, self.o)],
            ctypes.c_void_p(None), stream)
        assert code == 0
        return self.o

    def fp8(self, library, plan):
        """Our FP8 attention, K and V quantised anew; of a plan of tiles."""
        heads, n, dim = self.q.shape
        shape = Shape(0, n, n, heads, self.k.shape[0], dim, plan.num_lists,
                      plan.tile_rows, False)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

        def pointer(tensor):
            return ctypes.c_void_p(tensor.data_ptr())
        if not hasattr(self, 'fp8_buffers'):
            sizes = (library.OvertureFp8KvBytes, library.OvertureFp8QueryBytes)
            for size in sizes:
                size.restype = ctypes.c_int64
            self.fp8_buffers = [
                torch.empty(size(ctypes.byref(shape)), dtype=torch.uint8,
                            device=DEVICE) for size in sizes]
        kv, scratch = self.fp8_buffers
        assert library.OvertureFp8QuantizeKv(
            ctypes.byref(shape), pointer(self.k), pointer(self.v), pointer(kv),
            stream) == 0
        tiles = PlanPointers(cells=plan.pointers.cells,
                             ranges=plan.pointers.ranges,
                             order=plan.pointers.order,
                             next_item=plan.pointers.next_item)
        assert library.OvertureFp8Attention(
            ctypes.byref(shape), ctypes.byref(tiles), pointer(self.q),
            pointer(kv), pointer(scratch), pointer(self.o),
            ctypes.c_void_p(None), stream) == 0
        return self.o

    def cudnn(self):
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(
                self.q[None], self.k[None], self.v[None], is_causal=True,
                enable_gqa=True)[0]


def bench_dense(library, head_dim, num_tokens, repeats):
    problem = Problem(num_tokens, 32, 8, head_dim)
    plan = Plan(dense_cells(num_tokens), 1, 32)
    # The same answer, before any time is believed: two bf16 roundings apart.
    error = ((problem.ours(library, plan).float() -
              problem.cudnn().float()).norm() /
             problem.cudnn().float().norm()).item()
    assert error < 2**-7, error
    ours, cudnn = alternate([lambda: problem.ours(library, plan),
                             problem.cudnn], repeats)
    flop = 4.0 * 32 * head_dim * num_tokens**2 / 2
    print(f'| dense | {head_dim} | {num_tokens} | 1.000 | {ours:.3f} | '
          f'{flop / ours / 1e9:.0f} | {flop / cudnn / 1e9:.0f} | '
          f'{cudnn / ours:.2f} |', flush=True)


def bench_dense_fp8(library, num_tokens, repeats):
    """With K and V quantised in every run; cuDNN's is bf16."""
    problem = Problem(num_tokens, 32, 8, 128)
    plan = Plan(dense_cells(num_tokens), 1, 32)
    exact = problem.cudnn().float()
    error = ((problem.fp8(library, plan).float() - exact).norm() /
             exact.norm()).item()
    # Of random data: docs/fp8_attention.md.
    assert error < 0.08, error
    ours, cudnn = alternate([lambda: problem.fp8(library, plan),
                             problem.cudnn], repeats)
    flop = 4.0 * 32 * 128 * num_tokens**2 / 2
    print(f'| dense, FP8 | 128 | {num_tokens} | 1.000 | {ours:.3f} | '
          f'{flop / ours / 1e9:.0f} | {flop / cudnn / 1e9:.0f} | '
          f'{cudnn / ours:.2f} |', flush=True)


def bench_dense_sm80(library, head_dim, num_tokens, repeats):
    """The sm_80 kernel on this card; its ratio is to our sm_90a kernel."""
    problem = Problem(num_tokens, 32, 8, head_dim)
    plan = Plan(dense_cells(num_tokens), 1, 32)
    sm80, best = alternate([lambda: problem.ours(library, plan, sm80=True),
                            lambda: problem.ours(library, plan)], repeats)
    flop = 4.0 * 32 * head_dim * num_tokens**2 / 2
    print(f'| dense, sm_80 kernel | {head_dim} | {num_tokens} | 1.000 | '
          f'{sm80:.3f} | {flop / sm80 / 1e9:.0f} | '
          f'({flop / best / 1e9:.0f} ours) | {best / sm80:.2f} |', flush=True)


def bench_sparse(library, name, num_tokens, band, num_slashes, num_columns,
                 repeats):
    head_dim = 128
    problem = Problem(num_tokens, 32, 8, head_dim)
    plan = Plan(vertical_slash_cells(num_tokens, 32, band, num_slashes,
                                     num_columns), 32, 32)
    cudnn_ms = math.nan
    (ours,) = alternate([lambda: problem.ours(library, plan)], repeats)
    if num_tokens <= 131072:
        (cudnn_ms,) = alternate([problem.cudnn], max(2, repeats // 3))
    dense = 4.0 * 32 * head_dim * num_tokens**2 / 2
    print(f'| {name} | {head_dim} | {num_tokens} | '
          f'{plan.flop(head_dim) / dense:.3f} | {ours:.3f} | '
          f'{plan.flop(head_dim) / ours / 1e9:.0f} | '
          f'{dense / cudnn_ms / 1e9:.0f} | {cudnn_ms / ours:.2f} |', flush=True)


def bench_packed(library, num_tokens, num_columns, repeats):
    """One list per KV head: each query head alone, then the four packed."""
    problem = Problem(num_tokens, 32, 8, 128)
    cells = vertical_slash_cells(num_tokens, 8, 512, 40, num_columns)
    plans = [Plan(cells, 8, 32),
             Plan(packed_cells(cells, 8, TILE_ROWS // 4), 8, 32,
                  TILE_ROWS // 4)]
    times = alternate([lambda p=p: problem.ours(library, p) for p in plans],
                      repeats)
    dense = 4.0 * 32 * 128 * num_tokens**2 / 2
    for name, plan, ms in zip(('alone', 'packed'), plans, times):
        print(f'| per KV head, {num_columns} columns, heads {name} | 128 | '
              f'{num_tokens} | {plan.flop(128) / dense:.3f} | {ms:.3f} | '
              f'{plan.flop(128) / ms / 1e9:.0f} | | |', flush=True)


def bench_means(library, num_tokens, density, repeats):
    """Packed random blocks, without and with the rest as means."""
    problem = Problem(num_tokens, 32, 8, 128)
    rows = TILE_ROWS // 4
    cells, means = block_cells(num_tokens, 8, rows, density)

    def block_means(tensor):
        return tensor.view(8, -1, BLOCK_KEYS, 128).float().mean(2).bfloat16()
    plans = [Plan(cells, 8, 32, rows),
             Plan(cells, 8, 32, rows, means, block_means(problem.k),
                  block_means(problem.v))]
    times = alternate([lambda p=p: problem.ours(library, p) for p in plans],
                      repeats)
    dense = 4.0 * 32 * 128 * num_tokens**2 / 2
    for name, plan, ms in zip(('dropped', 'as means'), plans, times):
        print(f'| per KV head, random blocks, the rest {name} | 128 | '
              f'{num_tokens} | {plan.flop(128) / dense:.3f} | {ms:.3f} | '
              f'{plan.flop(128) / ms / 1e9:.0f} | | |', flush=True)


def main():
    parser = library_parser()
    parser.add_argument('--quick', action='store_true',
                        help='only up to 32,768 tokens')
    args = parser.parse_args()
    library = ctypes.CDLL(args.library)
    print(f'{torch.cuda.get_device_name()}, torch {torch.__version__}, '
          f'cuDNN {torch.backends.cudnn.version()}')
    print('| plan | head dim | tokens | density | ms | ours TF | cuDNN TF |'
          ' cuDNN / ours, time |')
    print('|---|---|---|---|---|---|---|---|')
    sizes = [8192, 16384, 32768] + ([] if args.quick else [65536, 131072])
    for num_tokens in sizes:
        bench_dense(library, 128, num_tokens, 9 if num_tokens < 65536 else 4)
    for num_tokens in sizes:
        bench_dense_fp8(library, num_tokens, 9 if num_tokens < 65536 else 4)
    for head_dim in (64, 96):
        for num_tokens in sizes[:3]:
            bench_dense(library, head_dim, num_tokens, 9)
    bench_dense_sm80(library, 128, 16384, 9)
    for num_tokens in sizes[2:]:
        bench_sparse(library, 'band and slashes', num_tokens, 512, 40, 0, 6)
        bench_sparse(library, 'with 1,000 columns', num_tokens, 512, 40, 1000,
                     6)
    bench_sparse(library, 'columns alone', 32768, 0, 1, 4000, 6)
    for num_columns in (0, 1000):
        bench_packed(library, 32768, num_columns, 6)
    bench_means(library, 65536, 0.05, 6)


if __name__ == '__main__':
    main()
