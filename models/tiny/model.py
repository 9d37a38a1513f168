"""The network: a qwen3-style decoder in PyTorch (training extra only, never needed at run time).

RMSNorm before each block, grouped-query attention with normalised queries and keys, rotary positions in the
NEOX layout, SwiGLU, and an output head tied to the token embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.tiny.shape import Shape


class RMSNorm(nn.Module):
    """Root-mean-square normalisation with a learnt scale, computed in float32 (Zhang and Sennrich 2019)."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


def rope_tables(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, float32 [length, head_dim], for the NEOX layout (first half, second half)."""
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(length, dtype=torch.float32), shape.rope_base**-half)
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to x [batch, heads, tokens, head_dim]."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


def attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Attention of q, k and v, each [batch, heads, tokens, head_dim].

    `bias`, [..., tokens, tokens], is -inf where a token (row) does not see another one (column), and 0 elsewhere.

    Written out because training rows are short: the fused CPU kernel took three times as long at 60 to 150 tokens.
    """
    scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
    return torch.softmax(scores + bias, dim=-1).to(v.dtype) @ v


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.attn_norm = RMSNorm(shape.width, shape.norm_eps)
        self.q_norm = RMSNorm(shape.head_dim, shape.norm_eps)
        self.k_norm = RMSNorm(shape.head_dim, shape.norm_eps)
        self.q = nn.Linear(shape.width, shape.heads * shape.head_dim, bias=False)
        self.k = nn.Linear(shape.width, shape.kv_heads * shape.head_dim, bias=False)
        self.v = nn.Linear(shape.width, shape.kv_heads * shape.head_dim, bias=False)
        self.o = nn.Linear(shape.heads * shape.head_dim, shape.width, bias=False)
        self.ffn_norm = RMSNorm(shape.width, shape.norm_eps)
        self.gate = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.up = nn.Linear(shape.width, shape.feed_forward, bias=False)
        self.down = nn.Linear(shape.feed_forward, shape.width, bias=False)

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
        batch, tokens, _ = x.shape
        split = (batch, tokens, -1, self.shape.head_dim)
        q = rotate(self.q_norm(self.q(x).view(split)).transpose(1, 2), cos, sin)
        k = rotate(self.k_norm(self.k(x).view(split)).transpose(1, 2), cos, sin)
        v = self.v(x).view(split).transpose(1, 2)
        groups = self.shape.heads // self.shape.kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        mixed = attention(q.to(v.dtype), k.to(v.dtype), v, bias)
        return self.o(mixed.transpose(1, 2).reshape(batch, tokens, -1))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
        x = x + self.attend(self.attn_norm(x), cos, sin, bias)
        y = self.ffn_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class TinyModel(nn.Module):
    """Token ids in, hidden states or logits out."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embed = nn.Embedding(shape.vocab, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.width, shape.norm_eps)
        cos, sin = rope_tables(shape, shape.context)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.apply(self._init)

    def _init(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, Block):
            scale = (2 * self.shape.layers) ** -0.5
            nn.init.normal_(module.o.weight, std=0.02 * scale)
            nn.init.normal_(module.down.weight, std=0.02 * scale)

    def hidden(self, ids: Tensor, positions: Tensor | None = None, sees: Tensor | None = None) -> Tensor:
        """Normalised last states [batch, tokens, width] of ids, int64 [batch, tokens].

        Args:
            positions: int64 [batch, tokens]; by default they stand in order.
            sees: bool [batch, tokens, tokens], whether a token (row) sees another one (column); by default it sees
                itself and those before it.
        """
        tokens = ids.shape[1]
        cos, sin = (self.cos[:tokens], self.sin[:tokens]) if positions is None else self._turned(positions)
        seen = torch.ones(tokens, tokens, dtype=torch.bool).tril() if sees is None else sees[:, None]
        bias = torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x, cos, sin, bias)
        return self.norm(x)

    def _turned(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        return self.cos[positions][:, None], self.sin[positions][:, None]

    def forward(self, ids: Tensor) -> Tensor:
        """Logits [batch, tokens, vocab]."""
        return functional.linear(self.hidden(ids), self.embed.weight)
