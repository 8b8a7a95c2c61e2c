#!/usr/bin/env python3
"""Makes smollm2_135m.json: what an independent implementation answers.

The default model's GGUF file is dequantised with the `gguf` package into a
Transformers LlamaForCausalLM. Ten prompts of real text run through it in

  float64   the reference: norms, RoPE angles and softmax in double too
  float32   Transformers as it stands
  bfloat16  Transformers as it stands

The golden holds, per prompt, its ids, the float64 logits after its last token,
64 greedy tokens with the margin between the best two logits at each step, and
how far the two other runs are from float64: what bf16 is measured against. A
prompt with a margin below MIN_MARGIN would test rounding, not the engine, and
is replaced by a later stretch of its text.

  pip install torch transformers gguf numpy
  make_model_goldens.py MODEL.gguf smollm2_135m.json
"""

import json
import sys

import gguf
import numpy as np
import torch
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

NUM_GREEDY = 64
NUM_TOP = 64
MIN_MARGIN = 0.01
LICENSES = "/usr/share/common-licenses/"

# (name, tokens, text or licence file): chat prompts are taken whole.
CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained "
    "by Hugging Face<|im_end|>\n<|im_start|>user\n{}<|im_end|>\n"
    "<|im_start|>assistant\n"
)
PROMPTS = [
    ("one_token", 1, LICENSES + "GPL-1"),
    ("five_tokens", 5, LICENSES + "Artistic"),
    ("chat_capital", None, CHAT.format("What is the capital of France?")),
    ("chat_list", None, CHAT.format("Name three uses of a paper clip.")),
    ("block_less_one", 255, LICENSES + "BSD"),
    ("block_plus_one", 257, LICENSES + "CC0-1.0"),
    ("odd_700", 701, LICENSES + "Apache-2.0"),
    ("odd_1800", 1801, LICENSES + "MPL-2.0"),
    ("even_4096", 4096, LICENSES + "GFDL-1.3"),
    ("long_7000", 7000, LICENSES + "GPL-3"),
]


def load_state(path):
    reader = gguf.GGUFReader(path)

    def meta(key):
        return reader.fields["llama." + key].contents()

    heads = meta("attention.head_count")
    kv_heads = meta("attention.head_count_kv")
    hidden = meta("embedding_length")
    config = LlamaConfig(
        vocab_size=meta("vocab_size"),
        hidden_size=hidden,
        intermediate_size=meta("feed_forward_length"),
        num_hidden_layers=meta("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=hidden // heads,
        max_position_embeddings=meta("context_length"),
        rms_norm_eps=meta("attention.layer_norm_rms_epsilon"),
        rope_theta=meta("rope.freq_base"),
        tie_word_embeddings=True,
        attention_bias=False,
    )
    # Some releases read the base from here.
    config.rope_parameters = {
        "rope_type": "default",
        "rope_theta": meta("rope.freq_base"),
    }

    def unpermute(weight, num_heads):
        # GGUF interleaves the two halves of every head for ggml's RoPE.
        rows, columns = weight.shape
        return (
            weight.reshape(num_heads, rows // num_heads // 2, 2, columns)
            .swapaxes(1, 2)
            .reshape(rows, columns)
        )

    names = {
        "token_embd": "model.embed_tokens",
        "output_norm": "model.norm",
        "attn_norm": "input_layernorm",
        "ffn_norm": "post_attention_layernorm",
        "attn_q": "self_attn.q_proj",
        "attn_k": "self_attn.k_proj",
        "attn_v": "self_attn.v_proj",
        "attn_output": "self_attn.o_proj",
        "ffn_gate": "mlp.gate_proj",
        "ffn_up": "mlp.up_proj",
        "ffn_down": "mlp.down_proj",
    }
    state = {}
    for tensor in reader.tensors:
        weight = gguf.dequantize(tensor.data, tensor.tensor_type)
        weight = np.array(weight, dtype=np.float32)
        parts = tensor.name.removesuffix(".weight").split(".")
        if parts[0] == "blk":
            if parts[2] == "attn_q":
                weight = unpermute(weight, heads)
            if parts[2] == "attn_k":
                weight = unpermute(weight, kv_heads)
            name = f"model.layers.{parts[1]}.{names[parts[2]]}"
        else:
            name = names[parts[0]]
        state[name + ".weight"] = torch.from_numpy(weight)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    return config, state


def make_model(config, state, dtype):
    model = LlamaForCausalLM(config)
    model.load_state_dict(state)
    model = model.to(dtype).eval()
    if dtype == torch.float64:
        use_double(model, config)
    return model


def use_double(model, config):
    """Transformers computes these two in float32 whatever the model's type."""

    def norm(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * x * torch.rsqrt(variance + self.variance_epsilon)

    def rope(self, x, position_ids):
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float64)
        theta = config.rope_parameters["rope_theta"]
        inv_freq = theta ** (-exponent / config.head_dim)
        angle = position_ids[..., None].double() * inv_freq
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos(), angle.sin()

    for module in model.modules():
        kind = type(module).__name__
        if kind == "LlamaRMSNorm":
            module.forward = norm.__get__(module)
        elif kind == "LlamaRotaryEmbedding":
            module.forward = rope.__get__(module)


@torch.no_grad()
def last_logits(model, ids):
    out = model(torch.tensor([ids]), logits_to_keep=1, use_cache=False)
    return out.logits[0, -1].double()


@torch.no_grad()
def greedy(model, ids):
    out = model(torch.tensor([ids]), logits_to_keep=1, use_cache=True)
    first = out.logits[0, -1].double()
    logits, tokens, margins = first, [], []
    for step in range(NUM_GREEDY):
        top = logits.topk(2)
        tokens.append(int(top.indices[0]))
        margins.append(float(top.values[0] - top.values[1]))
        if step + 1 == NUM_GREEDY:
            break
        out = model(
            torch.tensor([tokens[-1:]]),
            past_key_values=out.past_key_values,
            use_cache=True,
        )
        logits = out.logits[0, -1].double()
    return first, tokens, margins


def main():
    path, out_path = sys.argv[1:]
    tokenizer = AutoTokenizer.from_pretrained(
        path.rpartition("/")[0] or ".", gguf_file=path.rpartition("/")[2]
    )
    config, state = load_state(path)
    models = {
        dtype: make_model(config, state, dtype)
        for dtype in (torch.float64, torch.float32, torch.bfloat16)
    }
    prompts = []
    for name, length, text in PROMPTS:
        if length is not None:
            text = open(text, encoding="utf-8").read()
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        length = length or len(ids)
        for skip in range(0, 1 + len(ids) - length, 7):
            prompt = ids[skip : skip + length]
            logits, tokens, margins = greedy(models[torch.float64], prompt)
            print(name, skip, len(prompt), min(margins), flush=True)
            if min(margins) >= MIN_MARGIN:
                break
        else:
            raise SystemExit(f"{name}: no stretch without a near tie")
        _, tokens32, _ = greedy(models[torch.float32], prompt)
        assert tokens32 == tokens, name
        errors = {}
        for key, dtype in (("f32", torch.float32), ("bf16", torch.bfloat16)):
            error = last_logits(models[dtype], prompt) - logits
            errors[key] = {
                "max": float(error.abs().max()),
                "rms": float(error.pow(2).mean().sqrt()),
            }
        print(errors, repr(tokenizer.decode(tokens))[:100], flush=True)
        top = logits.topk(NUM_TOP)
        prompts.append(
            {
                "name": name,
                "tokens": prompt,
                "greedy": tokens,
                "margins": [round(margin, 4) for margin in margins],
                "top_ids": top.indices.tolist(),
                "top_logits": [round(x, 6) for x in top.values.tolist()],
                # Every 16th of the vocabulary, from id 0.
                "strided_logits": [round(x, 5) for x in logits[::16].tolist()],
                "mean": float(logits.mean()),
                "rms": float(logits.pow(2).mean().sqrt()),
                "reference_error": errors,
            }
        )
    with open(out_path, "w", encoding="ascii") as out:
        out.write('{"prompts":[\n')
        out.write(
            ",\n".join(json.dumps(p, separators=(",", ":")) for p in prompts)
        )
        out.write("\n]}\n")


if __name__ == "__main__":
    main()
