#!/usr/bin/env python3
"""Our probe attention beside the same sums in PyTorch, in one process.

    bench/probe_gpu.py [--library PATH]

Column and diagonal sums of the attention of 64 rows over all keys. PyTorch's
way is that of the code that MInference released: scores of all heads as a
tensor, masked, softmax, summed along columns and, padded and strided anew,
along diagonals. Each case alternates the two. Needs torch with CUDA.
"""

import ctypes
import math

import torch

from gpu_bench import alternate, library_parser

DEVICE = 'cuda'
ROWS = 64


class Shape(ctypes.Structure):
    _fields_ = [('kv_len', ctypes.c_int64), ('num_rows', ctypes.c_int32),
                ('num_q_heads', ctypes.c_int32),
                ('num_kv_heads', ctypes.c_int32),
                ('head_dim', ctypes.c_int32), ('window_rows', ctypes.c_int32),
                ('sm80', ctypes.c_int32)]


def pointer(tensor):
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


class Problem:
    def __init__(self, library, kv_len, num_q_heads, num_kv_heads, head_dim,
                 window_rows=0):
        self.library = library
        self.shape = Shape(kv_len, ROWS, num_q_heads, num_kv_heads, head_dim,
                           window_rows, 0)
        torch.manual_seed(0)
        self.q = torch.randn(num_q_heads, ROWS, head_dim,
                             device=DEVICE).bfloat16()
        self.k = torch.randn(num_kv_heads, kv_len, head_dim,
                             device=DEVICE).bfloat16()
        self.columns, self.diagonals = (
            torch.empty(num_q_heads, kv_len, device=DEVICE) for _ in range(2))
        self.votes = None
        if window_rows > 0:
            self.votes = torch.empty(num_kv_heads, kv_len, device=DEVICE)
        library.OvertureProbeScratchBytes.restype = ctypes.c_int64
        self.scratch = torch.empty(
            library.OvertureProbeScratchBytes(ctypes.byref(self.shape)),
            dtype=torch.uint8, device=DEVICE)

    def ours(self, sm80=0):
        self.shape.sm80 = sm80
        code = self.library.OvertureProbe(
            ctypes.byref(self.shape), pointer(self.q), pointer(self.k),
            pointer(self.columns), pointer(self.diagonals),
            pointer(self.votes), pointer(self.scratch),
            ctypes.c_int64(self.scratch.numel()),
            ctypes.c_void_p(torch.cuda.current_stream().cuda_stream))
        assert code == 0
        return self.columns, self.diagonals

    def torchs(self):
        heads, kv_len = self.columns.shape
        kv_heads, _, dim = self.k.shape
        scores = (self.q.view(kv_heads, -1, dim) @ self.k.transpose(1, 2))
        scores = scores.view(heads, ROWS, kv_len) / math.sqrt(dim)
        hidden = torch.ones(ROWS, ROWS, dtype=torch.bool,
                            device=DEVICE).triu(1)
        scores[:, :, -ROWS:].masked_fill_(hidden, -math.inf)
        probs = torch.softmax(scores, dim=-1, dtype=torch.float32)
        # Row i shifted by ROWS - 1 - i: what lies below one another then has
        # one distance.
        padded = torch.nn.functional.pad(probs, (ROWS, ROWS))
        width = padded.shape[-1]
        shifted = padded.as_strided(
            (heads, ROWS, kv_len), (ROWS * width, width + 1, 1), 1)
        return probs.sum(1), shifted.sum(1).flip(-1)


def bench(library, kv_len, num_q_heads, num_kv_heads, head_dim, window_rows=0):
    problem = Problem(library, kv_len, num_q_heads, num_kv_heads, head_dim,
                      window_rows)
    # PyTorch rounds scores to bf16, 2^-9 of at most 8: 2% of a term.
    for mine, theirs in zip(problem.ours(), problem.torchs()):
        error = ((mine - theirs).norm() / theirs.norm()).item()
        assert error < 0.02, error
    ours, sm80, theirs = alternate(
        [problem.ours, lambda: problem.ours(1), problem.torchs], 9)
    per_key = ours / kv_len / 2 * 1e6 * 32 / num_q_heads
    print(f'| {num_q_heads} / {num_kv_heads} | {head_dim} | {kv_len} | '
          f'{window_rows} | {ours:.3f} | {per_key:.2f} | {sm80:.3f} | '
          f'{theirs:.3f} | '
          f'{theirs / ours:.1f} | {problem.scratch.numel() / 1e6:.1f} |',
          flush=True)


def main():
    parser = library_parser()
    args = parser.parse_args()
    library = ctypes.CDLL(args.library)
    print(f'{torch.cuda.get_device_name()}, torch {torch.__version__}, '
          f'{ROWS} rows')
    print('| heads | dim | keys | window | ours ms | ns a key, pass and 32 '
          'heads | sm_80 kernel ms | PyTorch ms | PyTorch / ours | scratch MB |')
    print('|---|---|---|---|---|---|---|---|---|---|')
    for kv_len in (1 << 13, 1 << 16, 1 << 17, 1 << 20):
        bench(library, kv_len, 32, 8, 128)
    bench(library, 1 << 20, 32, 8, 128, window_rows=32)
    bench(library, 1 << 17, 32, 32, 128)
    bench(library, 1 << 17, 28, 4, 128)
    bench(library, 1 << 17, 32, 32, 96)
    bench(library, 1 << 17, 32, 8, 64)
    bench(library, 1 << 17, 9, 3, 64)


if __name__ == '__main__':
    main()
