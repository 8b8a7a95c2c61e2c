#!/usr/bin/env python3
"""Writes a trained model as a Hugging Face folder: bf16, two shards.

  export.py RUN_DIR/weights.safetensors OUT_DIR --theta 1e6
"""

import argparse
import json
import os

import torch
from safetensors.torch import load_file, save_file

import tasks
from model import Config

MAX_SHARD_BYTES = 12_000_000


def shards(tensors):
    out, size = [{}], 0
    for name, tensor in tensors.items():
        tensor = tensor.to(torch.bfloat16).contiguous()
        if size + tensor.nbytes > MAX_SHARD_BYTES and out[-1]:
            out.append({})
            size = 0
        out[-1][name] = tensor
        size += tensor.nbytes
    return out


def model_config(c, theta):
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": c.vocab,
        "hidden_size": c.hidden,
        "intermediate_size": c.intermediate,
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.q_heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "max_position_embeddings": c.max_positions,
        "rms_norm_eps": c.norm_eps,
        "rope_theta": theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": theta},
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": tasks.BOS,
        "eos_token_id": tasks.EOS,
        "pad_token_id": tasks.PAD,
        "torch_dtype": "bfloat16",
        "initializer_range": 0.02,
        "use_cache": True,
    }


def tokenizer():
    vocab = {word: i for i, word in enumerate(tasks.vocab())}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<pad>"},
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("weights")
    parser.add_argument("out")
    parser.add_argument("--theta", type=float, required=True)
    options = parser.parse_args()

    os.makedirs(options.out, exist_ok=True)
    parts = shards(load_file(options.weights))
    weight_map, total = {}, 0
    for i, part in enumerate(parts):
        name = f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors"
        save_file(part, os.path.join(options.out, name), {"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
        total += sum(tensor.nbytes for tensor in part.values())

    def write(name, value):
        with open(os.path.join(options.out, name), "w",
                  encoding="ascii") as file:
            json.dump(value, file, indent=1)

    write("model.safetensors.index.json",
          {"metadata": {"total_size": total}, "weight_map": weight_map})
    write("config.json", model_config(Config(), options.theta))
    write("tokenizer.json", tokenizer())
    print(f"{len(weight_map)} tensors, {total / 1e6:.1f} MB, "
          f"{len(parts)} shards")


if __name__ == "__main__":
    main()
