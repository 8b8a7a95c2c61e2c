#!/usr/bin/env python3
"""Our vertical-slash choice and plan beside torch.topk, in one process.

    bench/selector_gpu.py [--library PATH]

Ours goes from probe sums to a plan that the attention kernel runs: top columns
and distances of all heads, key tiles, filtered columns and the order of work.
torch.topk does the first of these steps alone, on the same sums, as the code
that MInference released does before it builds its index. Needs torch with CUDA
on sm_90.
"""

import ctypes
import re

import torch

from gpu_bench import library_parser

DEVICE = 'cuda'
NUM_HEADS = 32


class Shape(ctypes.Structure):
    _fields_ = [('q_begin', ctypes.c_int64), ('q_len', ctypes.c_int64),
                ('kv_len', ctypes.c_int64), ('num_heads', ctypes.c_int32),
                ('vertical', ctypes.c_int32), ('slash', ctypes.c_int32),
                ('mass', ctypes.c_float)]


def median_ms(function, repeats=20):
    for _ in range(3):
        function()
    events = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        function()
        end.record()
        events.append((start, end))
    torch.cuda.synchronize()
    return sorted(s.elapsed_time(e) for s, e in events)[repeats // 2]


def kernel_times(function, repeats=10):
    """Microseconds per call of every kernel, by its name's stem."""
    from torch.profiler import ProfilerActivity, profile
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(repeats):
            function()
        torch.cuda.synchronize()
    times = {}
    for event in profiler.key_averages():
        name = re.sub(r'.*?(\w+)Kernel(<\d+>)?.*', r'\1\2', event.key)
        total = getattr(event, 'device_time_total', 0)
        if total > 0:
            times[name] = times.get(name, 0) + total / repeats
    return times


def bench(library, kv_len, q_len, vertical, slash, mass=0.0):
    shape = Shape(kv_len - q_len, q_len, kv_len, NUM_HEADS, vertical, slash,
                  mass)
    # Over many magnitudes, as attention's sums are.
    torch.manual_seed(0)
    columns, diagonals = (
        torch.exp(6 * torch.randn(NUM_HEADS, kv_len, device=DEVICE) - 12)
        for _ in range(2))
    library.OvertureSelectorScratchBytes.restype = ctypes.c_int64
    scratch_bytes = library.OvertureSelectorScratchBytes(ctypes.byref(shape))
    scratch = torch.empty(scratch_bytes, dtype=torch.uint8, device=DEVICE)
    pairs = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)

    def ours():
        code = library.OvertureSelectorPlan(
            ctypes.byref(shape), ctypes.c_void_p(columns.data_ptr()),
            ctypes.c_void_p(diagonals.data_ptr()),
            ctypes.c_void_p(pairs.data_ptr()),
            ctypes.c_void_p(scratch.data_ptr()),
            ctypes.c_int64(scratch_bytes), stream)
        assert code == 0

    def topk():
        columns.topk(vertical, dim=1)
        diagonals.topk(slash, dim=1)

    steps = ', '.join(f'{name} {time:.0f}'
                      for name, time in kernel_times(ours).items())
    print(f'| {kv_len} | {q_len} | ({vertical}, {slash}) | {mass} | '
          f'{1e3 * median_ms(ours):.0f} | {1e3 * median_ms(topk):.0f} | '
          f'{steps} | {scratch_bytes / 1e6:.0f} |', flush=True)


def main():
    parser = library_parser()
    args = parser.parse_args()
    library = ctypes.CDLL(args.library)
    print(f'{torch.cuda.get_device_name()}, torch {torch.__version__}, '
          f'{NUM_HEADS} heads')
    print('| keys | rows | size | mass | ours us | torch.topk us |'
          ' of ours, us | scratch MB |')
    print('|---|---|---|---|---|---|---|---|')
    for kv_len in (1 << 16, 1 << 17, 1 << 19, 1 << 20):
        bench(library, kv_len, 16384, 1000, 6096)
    bench(library, 1 << 20, 65536, 1000, 6096)
    bench(library, 1 << 20, 16384, 3500, 100)
    bench(library, 1 << 20, 16384, 1000, 6096, mass=0.9)


if __name__ == '__main__':
    main()
