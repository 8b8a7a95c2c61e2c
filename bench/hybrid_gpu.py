#!/usr/bin/env python3
"""Blocks by pooled scores beside columns and distances, on one structured layer.

    bench/hybrid_gpu.py [--library PATH] [--json OUT] [--tokens N ...]

The layer is that of bench/vertical_slash_gpu.py, whose sizes per head are
MInference's. Each setting goes through all segments as a prefill does: probe,
choice, means, block scores, plans, attention. Beside every time: the density,
the kept attention mass of sampled rows (mean, and of the worst head), the error
of their output against exact attention over the mean norm of a row of V (mean,
and the largest), and the scratch memory. Mass is not given under mean
corrections, which add keys of their own to a row's sum.
Needs torch with CUDA on sm_90.
"""

import ctypes
import json
import pathlib

import torch

from gpu_bench import library_parser
from vertical_slash_gpu import DIM, KV_HEADS, Q_HEADS, StructuredLayer

SINKS, WINDOW = 256, 640  # two blocks; five before a tile's first row
ROWS = 16  # sampled


class Shape(ctypes.Structure):
    _fields_ = [('num_tokens', ctypes.c_int64), ('segment', ctypes.c_int64),
                ('num_q_heads', ctypes.c_int32),
                ('num_kv_heads', ctypes.c_int32), ('head_dim', ctypes.c_int32)]


class Head(ctypes.Structure):
    _fields_ = [('vertical', ctypes.c_int32), ('slash', ctypes.c_int32),
                ('forced_columns', ctypes.c_int32),
                ('forced_distances', ctypes.c_int32),
                ('threshold', ctypes.c_float), ('count', ctypes.c_int32),
                ('correct_means', ctypes.c_int32)]


class Times(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in
                ('probe_ms', 'choice_ms', 'means_ms', 'scores_ms', 'plan_ms',
                 'attention_ms', 'pairs', 'plan_bytes')] + [
                     ('slice_rows', ctypes.c_int64)]


def static(sizes, threshold=0.0, count=0, means=0):
    return [Head(SINKS, WINDOW, SINKS, WINDOW, threshold, count, means)
            for _ in sizes]


def vertical_slash(sizes, threshold=0.0, count=0, means=0, part=1):
    return [Head(max(30, int(v) // part), max(100, int(s) // part), 30, 100,
                 threshold, count, means) for v, s in sizes]


SETTINGS = {
    'vertical-slash': lambda s: vertical_slash(s),
    'a quarter of it': lambda s: vertical_slash(s, part=4),
    'sinks and window': lambda s: static(s),
    'blocks, threshold 0.1': lambda s: static(s, 0.1),
    'blocks, threshold 0.02': lambda s: static(s, 0.02),
    'blocks, threshold 0.1, means': lambda s: static(s, 0.1, means=1),
    'blocks, best 50': lambda s: static(s, count=50),
    'hybrid, threshold 0.1': lambda s: vertical_slash(s, 0.1),
    'hybrid of a quarter, 0.1': lambda s: vertical_slash(s, 0.1, part=4),
    'vertical-slash, means': lambda s: vertical_slash(s, means=1),
}


class Exact:
    """Log of the sum and output of sampled rows, over all their keys."""

    def __init__(self, problem):
        torch.manual_seed(1)
        n = problem.num_tokens
        self.rows = torch.randint(n // 2, n, (ROWS,)).tolist()
        self.lse = torch.zeros(ROWS, Q_HEADS)
        self.out = torch.zeros(ROWS, Q_HEADS, DIM)
        group = Q_HEADS // KV_HEADS
        self.norm = torch.zeros(Q_HEADS)
        for h in range(Q_HEADS):
            k, v = (t[h // group].float() for t in (problem.k, problem.v))
            self.norm[h] = v[:4096].norm(dim=1).mean()
            logits = problem.q[h, self.rows].float() @ k.T / DIM**0.5
            for i, row in enumerate(self.rows):
                visible = logits[i, :row + 1]
                self.lse[i, h] = visible.logsumexp(0)
                self.out[i, h] = visible.softmax(0) @ v[:row + 1]


def bench(library, problem, exact, segment, name, heads, repeats):
    n = problem.num_tokens
    shape = Shape(n, segment, Q_HEADS, KV_HEADS, DIM)
    table = (Head * Q_HEADS)(*heads)
    lse = torch.zeros(Q_HEADS * n, device='cuda')
    problem.o.zero_()
    torch.cuda.synchronize()
    runs = []
    for _ in range(repeats + 1):
        times = Times()
        code = library.OvertureHybridLayer(
            ctypes.byref(shape), table,
            *[ctypes.c_void_p(t.data_ptr())
              for t in (problem.q, problem.k, problem.v, problem.o, lse)],
            ctypes.byref(times))
        assert code == 0, name
        runs.append(times)
    runs = runs[1:]
    times = sorted(runs, key=lambda t: t.attention_ms)[len(runs) // 2]
    mass = torch.zeros(ROWS, Q_HEADS)
    error = torch.zeros(ROWS, Q_HEADS)
    for i, row in enumerate(exact.rows):
        begin = row // segment * segment
        begin += (row - begin) // times.slice_rows * times.slice_rows
        rows = min(times.slice_rows, n - begin, segment - begin % segment)
        at = Q_HEADS * begin + row - begin
        mass[i] = (lse[at:at + Q_HEADS * rows:rows][:Q_HEADS].cpu() -
                   exact.lse[i]).exp()
        error[i] = (problem.o[:, row].float().cpu() -
                    exact.out[i]).norm(dim=1) / exact.norm
    row = {field: getattr(times, field) for field, _ in Times._fields_}
    row.update(setting=name, tokens=n, segment=segment,
               density=times.pairs / (n * (n + 1) / 2) / Q_HEADS,
               mass=mass.mean().item(),
               worst_mass=mass.mean(0).min().item(),
               error=error.mean().item(), max_error=error.max().item())
    choose = [row[f'{p}_ms'] for p in
              ('probe', 'choice', 'means', 'scores', 'plan')]
    kept = (f'{row["mass"]:.3f} ({row["worst_mass"]:.3f})'
            if not heads[0].correct_means else '')
    print(f'| {n} | {name} | {row["density"]:.4f} | '
          f'{" + ".join(f"{ms:.1f}" for ms in choose)} | '
          f'{times.attention_ms:.1f} | {sum(choose) + times.attention_ms:.1f} |'
          f' {4 * DIM * times.pairs / times.attention_ms / 1e9:.0f} | {kept} | '
          f'{row["error"]:.4f} ({row["max_error"]:.3f}) | '
          f'{times.plan_bytes / 1e6:.0f} |', flush=True)
    return row


def main():
    parser = library_parser()
    parser.add_argument('--json')
    parser.add_argument('--layer', type=int, default=19,
                        help='of the model; 19 is nearest to the head mix')
    parser.add_argument('--tokens', type=int, nargs='+',
                        default=[1 << 17, 1 << 20])
    parser.add_argument('--only', nargs='+', help='parts of settings\' names')
    parser.add_argument('--repeats', type=int, default=3)
    args = parser.parse_args()
    library = ctypes.CDLL(args.library)
    print(f'{torch.cuda.get_device_name()}, torch {torch.__version__}')
    print('| tokens | setting | density | probe + choice + means + scores + '
          'plan ms | attend ms | ms | TF | kept mass | error | scratch MB |')
    print('|' + '---|' * 10)
    rows = []
    for num_tokens in args.tokens:
        problem = StructuredLayer(library, args.layer, num_tokens)
        exact = Exact(problem)
        segment = 16384 if num_tokens <= 1 << 17 else 65536
        for name, heads in SETTINGS.items():
            if args.only and not any(part in name for part in args.only):
                continue
            rows.append(bench(library, problem, exact, segment, name,
                              heads(problem.sizes), args.repeats))
        del problem, exact
        torch.cuda.empty_cache()
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(
            dict(device=torch.cuda.get_device_name(), rows=rows), indent=1))


if __name__ == '__main__':
    main()
