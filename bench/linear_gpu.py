#!/usr/bin/env python3
"""Our GPU linear layers beside PyTorch's, and the kernels between them.

    bench/linear_gpu.py [--library PATH] [--rows 8192]

The shapes are Llama-3-8B's, our outputs those that the layer loop asks for:
fp32, added to the residual stream, but for gate_up's. PyTorch's are bf16 from
torch.matmul and torch._scaled_mm with row-wise scales; `with its sum` compares
with the product in our output's type and the addition after it, `torch fast` is
with 14-bit sums (use_fast_accum). Ours and PyTorch's run in turn, in one
process and through the same cuBLASLt, so that both see the same clocks: under
sustained load the card's clock falls. The small kernels are timed against the
memory's 4.8 TB/s. Needs torch on sm_90.
"""

import ctypes

import torch

from gpu_bench import alternate, library_parser

DEVICE = 'cuda'
HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD_DIM = 4096, 14336, 32, 8, 128
# Name, out features, in features, fp32 output, adds to the residual stream. Two
# a second time with PyTorch's output, to compare the library calls alone.
SHAPES = [('qkv', 6144, HIDDEN, True, False),
          ('o', HIDDEN, HIDDEN, True, True),
          ('gate_up', 2 * INTERMEDIATE, HIDDEN, False, False),
          ('down', HIDDEN, INTERMEDIATE, True, True),
          ('o, bf16 out', HIDDEN, HIDDEN, False, False),
          ('down, bf16 out', HIDDEN, INTERMEDIATE, False, False)]
MEMORY_GBS = 4800


class Library:
    """Ours: calls by name, tensors as pointers."""

    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        for name in ('OvertureStream', 'OvertureLinear'):
            getattr(self.lib, name).restype = ctypes.c_void_p
        self.stream = torch.cuda.ExternalStream(self.lib.OvertureStream())

    def __getattr__(self, name):
        function = getattr(self.lib, 'Overture' + name)

        def call(*args):
            result = function(*[self.convert(a) for a in args])
            assert result, name
            return result
        return call

    @staticmethod
    def convert(value):
        if isinstance(value, torch.Tensor):
            return ctypes.c_void_p(value.data_ptr())
        if isinstance(value, int) and value > 2**31:  # a handle
            return ctypes.c_void_p(value)
        if isinstance(value, int):
            return ctypes.c_int64(value)
        return ctypes.c_void_p(value)


def alternate_on_ours(library, functions, repeats):
    with torch.cuda.stream(library.stream):
        return alternate(functions, repeats, calls=4)


def relative_error(got, want):
    return ((got.float() - want).norm() / want.norm()).item()


def bench_linear(library, name, out, inp, f32, accumulate, rows, repeats):
    flop = 2.0 * rows * out * inp
    x = torch.randn(rows, inp, device=DEVICE).bfloat16()
    w = (torch.randn(out, inp, device=DEVICE) / inp**0.5).bfloat16()
    y = torch.zeros(rows, out, device=DEVICE,
                    dtype=torch.float32 if f32 else torch.bfloat16)
    want = x.float() @ w.float().t()
    torch.cuda.synchronize()
    linear = library.Linear(out, inp, 0, w)
    ours = lambda: library.LinearApply(linear, x, None, rows, y, int(f32),
                                       int(accumulate))
    ours()
    torch.cuda.synchronize()
    error = relative_error(y, want)
    def added(product):
        """PyTorch's way to what ours does: the product, then the sum."""
        return (lambda: y.add_(product())) if accumulate else product
    torch_ms, same_ms, ours_ms = alternate_on_ours(
        library, [lambda: x @ w.t(), added(lambda: x @ w.t()), ours], repeats)
    library.lib.OvertureLinearFree(ctypes.c_void_p(linear))
    print(f'| {name} | bf16 | {out} x {inp} | {ours_ms:.3f} | '
          f'{flop / ours_ms / 1e9:.0f} | {flop / torch_ms / 1e9:.0f} | '
          f'{torch_ms / ours_ms:.2f} | {same_ms / ours_ms:.2f} | | '
          f'{error:.1e} |', flush=True)

    linear = library.Linear(out, inp, 1, w)
    codes = torch.empty(rows, inp, device=DEVICE, dtype=torch.uint8)
    scales = torch.empty(rows, device=DEVICE)
    library.QuantizeRows(x, codes, scales, rows, inp)
    w_scales = w.abs().amax(dim=1, keepdim=True).float() / 448
    w8 = (w.float() / w_scales).to(torch.float8_e4m3fn)
    x8 = codes.view(torch.float8_e4m3fn)
    y.zero_()
    torch.cuda.synchronize()
    ours = lambda: library.LinearApply(linear, codes, scales, rows, y,
                                       int(f32), int(accumulate))
    ours()
    torch.cuda.synchronize()
    error = relative_error(y, want)

    def scaled_mm(dtype=torch.bfloat16, fast=False):
        return torch._scaled_mm(x8, w8.t(), scales[:, None], w_scales.t(),
                                out_dtype=dtype, use_fast_accum=fast)
    torch_ms, same_ms, fast_ms, ours_ms = alternate_on_ours(
        library, [scaled_mm, added(lambda: scaled_mm(y.dtype)),
                  lambda: scaled_mm(fast=True), ours], repeats)
    library.lib.OvertureLinearFree(ctypes.c_void_p(linear))
    print(f'| {name} | e4m3 | {out} x {inp} | {ours_ms:.3f} | '
          f'{flop / ours_ms / 1e9:.0f} | {flop / torch_ms / 1e9:.0f} | '
          f'{torch_ms / ours_ms:.2f} | {same_ms / ours_ms:.2f} | '
          f'{flop / fast_ms / 1e9:.0f} | {error:.1e} |', flush=True)


def bench_small(library, rows, repeats):
    residual = torch.randn(rows, HIDDEN, device=DEVICE)
    weight = torch.randn(max(HIDDEN, INTERMEDIATE), device=DEVICE)
    qkv = torch.randn(rows, (HEADS + 2 * KV_HEADS) * HEAD_DIM, device=DEVICE)
    gate_up = torch.randn(rows, 2 * INTERMEDIATE, device=DEVICE).bfloat16()
    out = torch.empty(rows, INTERMEDIATE, device=DEVICE, dtype=torch.bfloat16)
    k, v = (torch.empty(rows, KV_HEADS * HEAD_DIM, device=DEVICE,
                        dtype=torch.bfloat16) for _ in range(2))
    scales = torch.empty(rows, device=DEVICE)
    inv_freq = 500000.0**(-torch.arange(0, HEAD_DIM, 2, device=DEVICE,
                                        dtype=torch.float64) / HEAD_DIM)

    def rope(position):
        return lambda: library.RopeKv(qkv, inv_freq, out, k, v, rows, position,
                                      HEADS, KV_HEADS, HEAD_DIM)
    width = (HEADS + 2 * KV_HEADS) * HEAD_DIM
    # Name, bytes of a row, call.
    cases = [
        ('RMSNorm, bf16 out', 6 * HIDDEN,
         lambda: library.RmsNorm(residual, weight, out, None, rows, HIDDEN)),
        ('RMSNorm, e4m3 out', 5 * HIDDEN,
         lambda: library.RmsNorm(residual, weight, out, scales, rows, HIDDEN)),
        ('RoPE and KV, position 0', 6 * width, rope(0)),
        ('RoPE and KV, position 1,000,000', 6 * width, rope(1000000)),
        ('attention output to e4m3', 3 * HIDDEN,
         lambda: library.QuantizeRows(gate_up, out, scales, rows, HIDDEN)),
        ('SwiGLU, bf16 out', 6 * INTERMEDIATE,
         lambda: library.SwiGlu(gate_up, out, None, rows, INTERMEDIATE)),
        ('SwiGLU, e4m3 out', 5 * INTERMEDIATE,
         lambda: library.SwiGlu(gate_up, out, scales, rows, INTERMEDIATE)),
    ]
    times = alternate_on_ours(library, [call for _, _, call in cases],
                              repeats)
    print('\n| kernel | bytes a row | us | GB/s | of 4,800 |')
    print('|---|---|---|---|---|')
    for (name, row_bytes, _), ms in zip(cases, times):
        rate = row_bytes * rows / ms / 1e6
        print(f'| {name} | {row_bytes:,} | {ms * 1e3:.1f} | {rate:.0f} | '
              f'{rate / MEMORY_GBS:.2f} |', flush=True)


def main():
    parser = library_parser()
    parser.add_argument('--rows', type=int, default=8192)
    parser.add_argument('--repeats', type=int, default=15)
    args = parser.parse_args()
    torch.zeros(1, device=DEVICE)
    library = Library(args.library)
    print(f'{torch.cuda.get_device_name()}, torch {torch.__version__}, '
          f'{args.rows} rows')
    print('| product | input | out x in | ms | ours TF | torch TF | ours / '
          'torch | with its sum | torch fast TF | error |')
    print('|---|---|---|---|---|---|---|---|---|---|')
    for shape in SHAPES:
        bench_linear(library, *shape, args.rows, args.repeats)
    bench_small(library, args.rows, args.repeats)


if __name__ == '__main__':
    main()
