"""What the GPU benches share: their library and how they time."""

import argparse
import pathlib

import torch


def library_parser():
    """--library: liboverture_attention.so beside the script or as built."""
    here = pathlib.Path(__file__).resolve().parent
    default = here / 'liboverture_attention.so'
    if not default.exists():
        default = here.parent / 'build/release/bin/liboverture_attention.so'
    parser = argparse.ArgumentParser()
    parser.add_argument('--library', default=str(default))
    return parser


def alternate(functions, repeats, calls=1):
    """Median milliseconds of each, run in turn `calls` times at a go.

    On torch's current stream, which is to be the one that they launch on.
    """
    for function in functions:
        function()
    torch.cuda.synchronize()
    times = [[] for _ in functions]
    for _ in range(repeats):
        for function, log in zip(functions, times):
            start, end = (torch.cuda.Event(enable_timing=True)
                          for _ in range(2))
            start.record()
            for _ in range(calls):
                function()
            end.record()
            torch.cuda.synchronize()
            log.append(start.elapsed_time(end) / calls)
    return [sorted(log)[len(log) // 2] for log in times]
