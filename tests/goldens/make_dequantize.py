"""Writes dequantize.gguf: random blocks of every supported tensor type, and the
values that the reference Python implementation decodes them to.

Tensor "<type>" holds the blocks, "<type>.expected" the fp32 values. Needs the
packages gguf and numpy. Usage: make_dequantize.py OUTPUT
"""

import sys

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Type

# Byte offsets of the f16 factors inside a block.
FACTORS = {
    Type.Q4_0: [0],
    Type.Q4_1: [0, 2],
    Type.Q8_0: [0],
    Type.Q4_K: [0, 2],
    Type.Q5_K: [0, 2],
    Type.Q6_K: [208],
}


def blocks_of(qtype, rng, num_blocks):
    elements, size = GGML_QUANT_SIZES[qtype]
    raw = rng.integers(0, 256, (num_blocks, size), dtype=np.uint8)
    for offset in FACTORS[qtype]:
        # Both signs, from f16's subnormals (below 6e-5) to 8.
        factors = rng.choice([-1.0, 1.0], num_blocks) * 2.0 ** rng.uniform(
            -22, 3, num_blocks)
        raw[:, offset:offset + 2] = (
            factors.astype(np.float16).view(np.uint8).reshape(num_blocks, 2))
    return raw.reshape(1, -1)


def main():
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(sys.argv[1], "golden")
    for qtype in FACTORS:
        elements = GGML_QUANT_SIZES[qtype][0]
        raw = blocks_of(qtype, rng, 1024 // elements)
        writer.add_tensor(qtype.name, raw, raw_dtype=qtype)
        writer.add_tensor(qtype.name + ".expected",
                          gguf.quants.dequantize(raw, qtype))
    # Every finite f16 and bf16 exponent, zeros and infinities; no NaN, whose
    # payload NumPy may change.
    bits = rng.permutation(1 << 16)[:4096].astype(np.uint16)
    half = bits.view(np.float16)
    half = half[~np.isnan(half)][:1024].reshape(1, -1)
    writer.add_tensor("F16", half, raw_dtype=Type.F16)
    writer.add_tensor("F16.expected", half.astype(np.float32))
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    keep = ~np.isnan(wide)
    brain = bits[keep][:1024].reshape(1, -1)
    writer.add_tensor("BF16", brain.view(np.uint8), raw_dtype=Type.BF16)
    writer.add_tensor("BF16.expected", wide[keep][:1024].reshape(1, -1))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    main()
