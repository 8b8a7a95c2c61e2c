#!/usr/bin/env python3
"""Vertical-slash attention of one structured layer, and dense beside cuDNN.

    bench/vertical_slash_gpu.py [--library PATH] [--json OUT] [--long]

Queries and keys are those of bench/structured_model.h, RoPE applied: sinks,
local bands, slashes, columns of marked tokens, noise, with MInference's sizes
per head. The plan is chosen by our own selector, segment by segment, as in a
prefill. The error is that of sampled output rows against exact attention, over
the mean norm of a row of V: mean and, in brackets, maximum. Dense at 262,144
tokens and above runs once per side, --long adds 1,048,576 (40 s).
Needs torch with CUDA on sm_90.
"""

import ctypes
import json
import pathlib

import numpy as np
import torch

from attention_gpu import DEVICE, Plan, Problem, dense_cells
from gpu_bench import alternate, library_parser

Q_HEADS, KV_HEADS, DIM = 32, 8, 128
NOISE = 0.35


class Shape(ctypes.Structure):
    _fields_ = [('num_tokens', ctypes.c_int64), ('segment', ctypes.c_int64),
                ('longest_segment', ctypes.c_int64),
                ('num_q_heads', ctypes.c_int32),
                ('num_kv_heads', ctypes.c_int32), ('head_dim', ctypes.c_int32)]


class Times(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in
                ('probe_ms', 'plan_ms', 'attention_ms', 'pairs')]


def pointer(array):
    return ctypes.c_void_p(array.ctypes.data)


class StructuredLayer:
    def __init__(self, library, layer, num_tokens):
        q_means = np.zeros((Q_HEADS, DIM), np.float32)
        k_means = np.zeros((3, KV_HEADS, DIM), np.float32)
        inv_freq = np.zeros(DIM // 2, np.float64)
        self.sizes = np.zeros((Q_HEADS, 2), np.int32)
        assert library.OvertureStructuredLayer(
            layer, pointer(q_means), pointer(k_means), pointer(inv_freq),
            pointer(self.sizes)) == 0
        torch.manual_seed(0)
        self.num_tokens = num_tokens
        marked = torch.rand(num_tokens, device=DEVICE) < 1 / 512
        kind = marked.int() * 2
        kind[0] = 1
        position = torch.arange(num_tokens, device=DEVICE, dtype=torch.float64)
        angle = position[:, None] * torch.from_numpy(inv_freq).to(DEVICE)
        cos, sin = angle.cos().float(), angle.sin().float()

        def rotated(mean):
            x = mean + NOISE * torch.randn(num_tokens, DIM, device=DEVICE)
            a, b = x[:, :DIM // 2], x[:, DIM // 2:]
            return torch.cat([a * cos - b * sin, b * cos + a * sin],
                             1).bfloat16()

        q_means = torch.from_numpy(q_means).to(DEVICE)
        k_means = torch.from_numpy(k_means).to(DEVICE)
        self.q = torch.stack([rotated(q_means[h]) for h in range(Q_HEADS)])
        self.k = torch.stack([rotated(k_means[:, h][kind.long()])
                              for h in range(KV_HEADS)])
        self.v = torch.randn(KV_HEADS, num_tokens, DIM,
                             device=DEVICE).bfloat16()
        self.o = torch.empty_like(self.q)

    def run(self, library, segment, longest):
        torch.cuda.synchronize()
        shape = Shape(self.num_tokens, segment, longest, Q_HEADS, KV_HEADS,
                      DIM)
        times = Times()
        assert library.OvertureVerticalSlashLayer(
            ctypes.byref(shape), pointer(self.sizes),
            *[ctypes.c_void_p(t.data_ptr())
              for t in (self.q, self.k, self.v, self.o)],
            ctypes.byref(times)) == 0
        return times

    def output_error(self, rows=8):
        """Relative to exact attention, over sampled rows of every head."""
        errors = []
        for row in torch.randint(self.num_tokens // 2, self.num_tokens,
                                 (rows,)).tolist():
            for h in range(Q_HEADS):
                k, v = (t[h // (Q_HEADS // KV_HEADS), :row + 1]
                        for t in (self.k, self.v))
                p = torch.softmax((k.float() @ self.q[h, row].float()) /
                                  DIM**0.5, 0)
                exact = p @ v.float()
                errors.append(((self.o[h, row].float() - exact).norm() /
                               v.float().norm(dim=1).mean()).item())
        return float(np.mean(errors)), float(np.max(errors))


def bench_structured(library, layer, num_tokens, segment, longest, rows):
    problem = StructuredLayer(library, layer, num_tokens)
    problem.run(library, segment, longest)
    runs = sorted([problem.run(library, segment, longest) for _ in range(3)],
                  key=lambda t: t.attention_ms)
    times = runs[1]
    causal = num_tokens * (num_tokens + 1) / 2
    mean_error, max_error = problem.output_error()
    row = dict(plan='vertical-slash', tokens=num_tokens, segment=segment,
               longest_segment=longest,
               density=times.pairs / causal / Q_HEADS,
               probe_ms=times.probe_ms, plan_ms=times.plan_ms,
               ms=times.attention_ms,
               tflops=4 * DIM * times.pairs / times.attention_ms / 1e9,
               mean_error=mean_error, max_error=max_error)
    rows.append(row)
    choosing = times.probe_ms + times.plan_ms
    total = choosing + times.attention_ms
    print(f'| {num_tokens} | {segment} to {longest} | {row["density"]:.4f} | '
          f'{times.probe_ms:.2f} + {times.plan_ms:.2f} | '
          f'{100 * choosing / times.attention_ms:.1f}% | '
          f'{times.attention_ms:.1f} | {total:.1f} | {row["tflops"]:.0f} | '
          f'{mean_error:.4f} ({max_error:.4f}) |', flush=True)


def bench_dense(library, num_tokens, rows):
    problem = Problem(num_tokens, Q_HEADS, KV_HEADS, DIM)
    plan = Plan(dense_cells(num_tokens), 1, Q_HEADS)
    sides = [lambda: problem.ours(library, plan), problem.cudnn]
    times = []
    for side in sides:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        side()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    if num_tokens < 262144:  # the first runs were for warmth
        times = alternate(sides, 5 if num_tokens < 131072 else 3)
    flop = 4.0 * Q_HEADS * DIM * num_tokens**2 / 2
    ours, cudnn = (flop / ms / 1e9 for ms in times)
    rows.append(dict(plan='dense', tokens=num_tokens, density=1, ms=times[0],
                     tflops=ours, cudnn_tflops=cudnn))
    print(f'| dense | {num_tokens} | {times[0]:.1f} | {ours:.0f} | '
          f'{cudnn:.0f} | {times[1] / times[0]:.2f} |', flush=True)


def main():
    parser = library_parser()
    parser.add_argument('--json')
    parser.add_argument('--layer', type=int, default=19,
                        help='of the model; 19 is nearest to the head mix')
    parser.add_argument('--only', choices=['structured', 'dense'])
    parser.add_argument('--long', action='store_true')
    args = parser.parse_args()
    library = ctypes.CDLL(args.library)
    print(f'{torch.cuda.get_device_name()}, torch {torch.__version__}, '
          f'cuDNN {torch.backends.cudnn.version()}')
    rows = []
    if args.only != 'dense':
        print('| tokens | segment | density | choose ms | of attention |'
              ' attend ms | ms | TF | error |')
        print('|---|---|---|---|---|---|---|---|---|')
        for num_tokens, segment, longest in ((1 << 17, 16384, 16384),
                                             (1 << 17, 16384, 262144),
                                             (1 << 19, 16384, 262144),
                                             (1 << 20, 65536, 65536),
                                             (1 << 20, 16384, 262144)):
            bench_structured(library, args.layer, num_tokens, segment,
                             longest, rows)
            torch.cuda.empty_cache()
    if args.only != 'structured':
        print('| plan | tokens | ms | ours TF | cuDNN TF | cuDNN / ours |')
        print('|---|---|---|---|---|---|')
        for log2 in range(13, 21 if args.long else 20):
            bench_dense(library, 1 << log2, rows)
            torch.cuda.empty_cache()
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(
            dict(device=torch.cuda.get_device_name(), rows=rows), indent=1))


if __name__ == '__main__':
    main()
