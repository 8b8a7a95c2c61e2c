#!/usr/bin/env python3
"""Writes a trained model as a Hugging Face folder, in bf16.

  export.py RUN OUT

RUN is train.py's --out; its scores go along if there are any.
"""

import argparse
import json
import os
import shutil

import torch
from safetensors.torch import load_file, save_file

import tasks
from model import Config

MAX_SHARD_BYTES = 13_000_000


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


def model_config(c):
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
        "rope_theta": c.rope_theta,
        "rope_parameters": {"rope_type": "default",
                            "rope_theta": c.rope_theta},
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


def write_json(path, value, indent=1):
    with open(path, "w", encoding="ascii") as file:
        json.dump(value, file, indent=indent)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("run")
    parser.add_argument("out")
    options = parser.parse_args()

    os.makedirs(options.out, exist_ok=True)
    with open(os.path.join(options.run, "config.json"),
              encoding="ascii") as file:
        config = Config(**json.load(file))
    parts = shards(load_file(os.path.join(options.run, "weights.safetensors")))
    weight_map, total = {}, 0
    for i, part in enumerate(parts):
        name = (f"model-{i + 1:05d}-of-{len(parts):05d}.safetensors"
                if len(parts) > 1 else "model.safetensors")
        save_file(part, os.path.join(options.out, name), {"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
        total += sum(tensor.nbytes for tensor in part.values())
    if len(parts) > 1:
        write_json(os.path.join(options.out, "model.safetensors.index.json"),
                   {"metadata": {"total_size": total},
                    "weight_map": weight_map})
    write_json(os.path.join(options.out, "config.json"), model_config(config))
    write_json(os.path.join(options.out, "tokenizer.json"), tokenizer(),
               indent=None)
    scores = os.path.join(options.run, "scores.json")
    if os.path.exists(scores):
        shutil.copy(scores, options.out)
    print(f"{len(weight_map)} tensors, {total / 1e6:.1f} MB, "
          f"{len(parts)} shards")


if __name__ == "__main__":
    main()
