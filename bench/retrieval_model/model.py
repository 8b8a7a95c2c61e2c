"""A plain Llama (GQA, RoPE, RMSNorm, SwiGLU, tied embeddings) to train.

Parameters have Hugging Face's names. What stands before and after attention
works on flat [N, d] rows, so that it is compiled once for all lengths.
"""

import dataclasses
import math

import torch
import torch.nn.functional as F


@dataclasses.dataclass(frozen=True)
class Config:
    vocab: int = 2048
    hidden: int = 384
    layers: int = 6
    q_heads: int = 6
    kv_heads: int = 2
    head_dim: int = 64
    intermediate: int = 1024
    rope_theta: float = 1e6
    norm_eps: float = 1e-5
    max_positions: int = 65536


CONFIGS = {
    "base": Config(),
    "wide": Config(layers=4, q_heads=4, kv_heads=2, head_dim=128,
                   intermediate=640),
    "small": Config(hidden=256, layers=4, q_heads=4, kv_heads=2,
                    intermediate=512),
    # For a smoke test without a GPU.
    "tiny": Config(hidden=64, layers=2, q_heads=2, kv_heads=1, head_dim=32,
                   intermediate=128),
}


def init_params(config, device, seed):
    """N(0, 1 / fan_in); what writes to the residual divided by sqrt(2 L)."""
    generator = torch.Generator().manual_seed(seed)

    def normal(rows, cols, scale=1.0):
        weight = torch.randn(rows, cols, generator=generator)
        return weight * scale / math.sqrt(cols)

    c = config
    residual = 1 / math.sqrt(2 * c.layers)
    q_rows, kv_rows = c.q_heads * c.head_dim, c.kv_heads * c.head_dim
    params = {"model.embed_tokens.weight": normal(c.vocab, c.hidden)}
    for layer in range(c.layers):
        params |= {
            f"model.layers.{layer}.{name}.weight": weight for name, weight in [
                ("self_attn.q_proj", normal(q_rows, c.hidden)),
                ("self_attn.k_proj", normal(kv_rows, c.hidden)),
                ("self_attn.v_proj", normal(kv_rows, c.hidden)),
                ("self_attn.o_proj", normal(c.hidden, q_rows, residual)),
                ("mlp.gate_proj", normal(c.intermediate, c.hidden)),
                ("mlp.up_proj", normal(c.intermediate, c.hidden)),
                ("mlp.down_proj", normal(c.hidden, c.intermediate, residual)),
                ("input_layernorm", torch.ones(c.hidden)),
                ("post_attention_layernorm", torch.ones(c.hidden)),
            ]
        }
    params["model.norm.weight"] = torch.ones(c.hidden)
    return {name: weight.to(device).requires_grad_(True)
            for name, weight in params.items()}


def rms_norm(x, weight, eps):
    x = x.float()
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


def rope(x, cos, sin):
    """x [N, heads, head_dim]; cos, sin [N, head_dim / 2]; halves rotated."""
    a, b = x.float().chunk(2, -1)
    cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def attention(q, k, v):
    """q [B, heads, T, head_dim], k and v [B, kv_heads, T, head_dim]."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                          enable_gqa=True)


class Llama:
    """fp32 weights and residual, products in `dtype`, RoPE in fp32."""

    def __init__(self, config, params, dtype, compiled):
        self.config, self.params = config, params
        c = config

        def before(x, norm, wq, wk, wv, cos, sin):
            h = rms_norm(x, norm, c.norm_eps).to(dtype)
            q = F.linear(h, wq.to(dtype)).view(-1, c.q_heads, c.head_dim)
            k = F.linear(h, wk.to(dtype)).view(-1, c.kv_heads, c.head_dim)
            v = F.linear(h, wv.to(dtype)).view(-1, c.kv_heads, c.head_dim)
            return rope(q, cos, sin).to(dtype), rope(k, cos, sin).to(dtype), v

        def after(x, out, wo, norm, gate, up, down):
            x = x + F.linear(out, wo.to(dtype)).float()
            h = rms_norm(x, norm, c.norm_eps).to(dtype)
            h = F.silu(F.linear(h, gate.to(dtype))) * F.linear(h, up.to(dtype))
            return x + F.linear(h, down.to(dtype)).float()

        def head(x, norm, embedding, target, weight):
            h = rms_norm(x, norm, c.norm_eps).to(dtype)
            logits = F.linear(h, embedding.to(dtype)).float()
            loss = torch.logsumexp(logits, -1)
            loss = loss - logits.gather(1, target.unsqueeze(1)).squeeze(1)
            mean = (loss * weight).sum() / weight.sum().clamp_min(1.0)
            return mean, logits.argmax(-1)

        if compiled:
            before, after, head = (torch.compile(f, dynamic=False)
                                   for f in (before, after, head))
        self.before, self.after, self.head = before, after, head
        steps = torch.arange(0, c.head_dim, 2, dtype=torch.float64)
        self.frequencies = 1.0 / c.rope_theta ** (steps / c.head_dim)

    def hidden(self, tokens, positions):
        """Rows [B * T, hidden] after the last layer."""
        c, p = self.config, self.params
        batch, length = tokens.shape
        angles = positions.reshape(-1, 1).float() * self.frequencies.to(
            tokens.device, torch.float32)
        cos, sin = angles.cos(), angles.sin()
        x = F.embedding(tokens.reshape(-1), p["model.embed_tokens.weight"])

        def heads(t):
            return t.view(batch, length, -1, c.head_dim).transpose(1, 2)

        for layer in range(c.layers):
            def weight(name):
                return p[f"model.layers.{layer}.{name}.weight"]
            q, k, v = self.before(
                x, weight("input_layernorm"), weight("self_attn.q_proj"),
                weight("self_attn.k_proj"), weight("self_attn.v_proj"), cos,
                sin)
            out = attention(heads(q), heads(k), heads(v)).transpose(1, 2)
            x = self.after(
                x, out.reshape(batch * length, -1),
                weight("self_attn.o_proj"),
                weight("post_attention_layernorm"), weight("mlp.gate_proj"),
                weight("mlp.up_proj"), weight("mlp.down_proj"))
        return x

    def loss(self, tokens, weights, positions):
        """(mean weighted cross entropy, predictions [B, T]).

        Row t predicts tokens[t + 1]; the last row counts for nothing.
        """
        x = self.hidden(tokens, positions)
        target = torch.cat([tokens[:, 1:], tokens[:, :1]], 1).reshape(-1)
        weight = torch.cat(
            [weights[:, 1:], torch.zeros_like(weights[:, :1])], 1).reshape(-1)
        loss, predicted = self.head(
            x, self.params["model.norm.weight"],
            self.params["model.embed_tokens.weight"], target, weight)
        return loss, predicted.view(tokens.shape)


class Muon:
    """Muon on stacked matrices of equal shape.

    Source: Moonlight, arXiv 2502.16982: the RMS of a step is 0.2 of the rate.
    """

    def __init__(self, params, momentum=0.95):
        self.groups = {}
        for param in params:
            self.groups.setdefault(tuple(param.shape), []).append(param)
        self.buffers = {
            shape: torch.zeros(len(group), *shape, device=group[0].device)
            for shape, group in self.groups.items()}
        self.momentum = momentum

    @torch.no_grad()
    def step(self, rate):
        for shape, group in self.groups.items():
            grad = torch.stack([param.grad for param in group])
            buffer = self.buffers[shape].mul_(self.momentum)
            buffer.add_(grad, alpha=1 - self.momentum)
            update = orthogonal(grad.lerp(buffer, self.momentum))
            scale = 0.2 * math.sqrt(max(shape)) * rate
            for param, delta in zip(group, update.float()):
                param.add_(delta, alpha=-scale)


def orthogonal(x):
    """Five Newton-Schulz steps towards the nearest orthogonal matrices."""
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-12)
    if x.is_cuda:
        x = x.bfloat16()
    for _ in range(5):
        a = x @ x.transpose(1, 2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.transpose(1, 2) if tall else x
