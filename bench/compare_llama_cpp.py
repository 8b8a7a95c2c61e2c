#!/usr/bin/env python3
"""Prompt rate against llama.cpp: same file, same cores, in turns.

  pip install llama-cpp-python
  compare_llama_cpp.py --model MODEL.gguf [--tokens 4096] [--threads 2]
                       [--bench build/release/bin/prefill_bench]

Each side runs --repeat times, in turns, so that noise hits both; the best run
of each counts. llama.cpp runs with and without flash attention and with
batches of 512 and 2,048 tokens; its best setting counts. Prints the ratio
overture / llama.cpp and exits 1 if it is below --least.
"""

import argparse
import os
import random
import re
import subprocess
import sys
import time


def run_llama_cpp(options, n_batch, flash):
    import llama_cpp

    random.seed(1)
    llm = llama_cpp.Llama(
        options.model,
        n_ctx=options.tokens + 64,
        n_batch=n_batch,
        n_ubatch=n_batch,
        n_threads=options.threads,
        n_threads_batch=options.threads,
        flash_attn=flash,
        verbose=False,
    )
    vocab = llm.n_vocab()
    tokens = [random.randrange(vocab) for _ in range(options.tokens)]
    llm.eval(tokens[:64])  # pages the weights in
    llm.reset()
    begin = time.perf_counter()
    llm.eval(tokens)
    return options.tokens / (time.perf_counter() - begin)


def run_overture(options):
    out = subprocess.run(
        [
            options.bench,
            "--model",
            options.model,
            "--tokens",
            str(options.tokens),
            "--repeat",
            "2",
        ],
        env={**os.environ, "OMP_NUM_THREADS": str(options.threads)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    return float(re.search(r"best ([0-9.]+) tokens/s", out).group(1))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--least", type=float, default=0.7)
    parser.add_argument("--bench", default="build/release/bin/prefill_bench")
    options = parser.parse_args()

    ours = 0.0
    theirs = {}
    for _ in range(options.repeat):
        ours = max(ours, run_overture(options))
        for n_batch in (512, 2048):
            for flash in (False, True):
                key = (n_batch, flash)
                rate = run_llama_cpp(options, n_batch, flash)
                theirs[key] = max(theirs.get(key, 0.0), rate)
    print(f"{options.tokens} tokens, {options.threads} threads, tokens/s:")
    print(f"  overture                          {ours:9.1f}")
    for (n_batch, flash), rate in theirs.items():
        setting = f"batch {n_batch}, flash attention {'on' if flash else 'off'}"
        print(f"  llama.cpp, {setting:28} {rate:9.1f}")
    ratio = ours / max(theirs.values())
    print(f"ratio to llama.cpp's best: {ratio:.2f}")
    sys.exit(0 if ratio >= options.least else 1)


if __name__ == "__main__":
    main()
