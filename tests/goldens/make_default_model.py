"""Writes default_model.json: checksums of the default model's tensors, decoded
by the Python package gguf and put into Hugging Face's row order by
transformers.

Per tensor: sum, sum of squares, and a sum weighted by position, which moves
when rows are out of order. Needs gguf, numpy and transformers.
Usage: make_default_model.py MODEL.gguf OUTPUT
"""

import json
import sys

import gguf
import numpy as np
from transformers.modeling_gguf_pytorch_utils import LlamaTensorProcessor


def main():
    reader = gguf.GGUFReader(sys.argv[1])
    heads = int(reader.fields["llama.attention.head_count"].contents())
    kv_heads = int(reader.fields["llama.attention.head_count_kv"].contents())
    processor = LlamaTensorProcessor(
        config={"num_attention_heads": heads, "num_key_value_heads": kv_heads})
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if "attn_q." in tensor.name or "attn_k." in tensor.name:
            values = processor.process(values, tensor.name).weights
        flat = values.astype(np.float64).reshape(-1)
        weights = np.arange(flat.size, dtype=np.int64) % 1009 + 1
        tensors[tensor.name] = {
            "size": flat.size,
            "sum": float(flat.sum()),
            "sum_of_squares": float((flat * flat).sum()),
            "weighted_sum": float((flat * weights).sum()),
        }
    with open(sys.argv[2], "w") as file:
        # One tensor a line.
        lines = [f'"{name}": {json.dumps(t)}' for name, t in tensors.items()]
        file.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
