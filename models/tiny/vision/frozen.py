"""The small text model with frozen weights, from embeddings on: bfloat16, and half as long as models/tiny/model.py.

Gradients go through it to the embeddings alone, so weights are joined, and norms have a backward pass of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from models.tiny.model import Block, TinyModel
from models.tiny.start import start_of
from models.tiny.vision.batches import CELL, Asked, PromptBatch, prompts_of
from models.tiny.vision.spelling import Speller

HALF = torch.bfloat16


class FrozenNorm(torch.autograd.Function):
    """RMSNorm of x [..., size] with weights that get no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        scale = (length * x.shape[-1] ** -0.5).clamp(min=1e-3).reciprocal().to(x.dtype)
        normal = x * scale
        ctx.save_for_backward(normal, scale, weight)
        return normal * weight

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        normal, scale, weight = ctx.saved_tensors
        gradient = gradients[0] * weight
        along = (gradient * normal).mean(-1, keepdim=True)
        return torch.addcmul(gradient, normal, along, value=-1).mul_(scale), None


def norm(x: Tensor, weight: Tensor) -> Tensor:
    made: Tensor = FrozenNorm.apply(x, weight)
    return made


class FrozenBlock:
    """One decoder layer."""

    def __init__(self, block: Block) -> None:
        self.heads, self.kv_heads, self.size = block.shape.heads, block.shape.kv_heads, block.shape.head_dim
        self.attn_norm, self.ffn_norm = (part.weight.data.to(HALF) for part in (block.attn_norm, block.ffn_norm))
        self.qkv = torch.cat([part.weight.data for part in (block.q, block.k, block.v)]).to(HALF).T
        scales = (block.q_norm.weight.data.expand(self.heads, -1), block.k_norm.weight.data.expand(self.kv_heads, -1))
        self.qk_norm = torch.cat(scales).to(HALF)
        self.o, self.gate, self.up, self.down = (
            part.weight.data.to(HALF).T for part in (block.o, block.gate, block.up, block.down)
        )

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, bias: Tensor) -> Tensor:
        tokens, groups = x.shape[1], self.heads // self.kv_heads
        made = (norm(x, self.attn_norm) @ self.qkv).unflatten(-1, (-1, self.size))
        qk = norm(made[:, :, : -self.kv_heads], self.qk_norm)
        qk = qk * cos + qk.roll(self.size // 2, -1) * sin
        q = qk[:, :, : self.heads].transpose(1, 2).unflatten(1, (-1, groups)).flatten(2, 3)
        k, v = qk[:, :, self.heads :].transpose(1, 2), made[:, :, -self.kv_heads :].transpose(1, 2)
        scores = (q @ k.transpose(-1, -2)).mul(self.size**-0.5).unflatten(2, (groups, tokens)) + bias
        mixed = torch.softmax(scores, -1).flatten(2, 3) @ v
        x = x + mixed.unflatten(2, (groups, tokens)).flatten(1, 2).transpose(1, 2).flatten(2) @ self.o
        y = norm(x, self.ffn_norm)
        return x + (functional.silu(y @ self.gate) * (y @ self.up)) @ self.down


class FrozenText:
    """The text model of a GGUF file that models.tiny.export has written."""

    def __init__(self, path: Path) -> None:
        start = start_of(path)
        model = TinyModel(start.shape)
        model.load_state_dict({name: torch.from_numpy(values) for name, values in start.tensors.items()})
        self.tokenizer: Tokenizer = start.tokenizer
        self.speller = Speller(self.tokenizer)
        self.width = start.shape.width
        self.embeddings = model.embed.weight.data
        self._blocks = [FrozenBlock(block) for block in model.blocks if isinstance(block, Block)]
        self._norm = model.norm.weight.data.to(HALF)
        half = start.shape.head_dim // 2
        self._cos = model.cos[:, None].to(HALF)
        self._sin = torch.cat([-model.sin[:, :half], model.sin[:, half:]], dim=1)[:, None].to(HALF)

    def asked_about(self, rows: Sequence[Asked], cells: int) -> PromptBatch:
        """The rows' prompts and answers."""
        return prompts_of(self.tokenizer, self.speller, rows, cells)

    def answer_logits(self, cells: Tensor, batch: PromptBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [n, vocab], targets [n] and weights [n] of the answers' tokens, cells [rows, cells, width] standing
        where the prompts have CELL."""
        ids = torch.from_numpy(batch.ids)
        x = self.embeddings[ids.clamp(min=0)].masked_scatter((ids == CELL)[:, :, None], cells).to(HALF)
        tokens = x.shape[1]
        bias = torch.full((tokens, tokens), float("-inf"), dtype=HALF).triu(1)
        for block in self._blocks:
            x = block(x, self._cos[:tokens], self._sin[:tokens], bias)
        weights = torch.from_numpy(batch.weights).view(-1)
        chosen = weights.nonzero()[:, 0]
        states = norm(x.flatten(0, 1)[chosen], self._norm)
        logits = states @ self.embeddings.to(HALF).T
        return logits.float(), torch.from_numpy(batch.targets).view(-1)[chosen], weights[chosen]

    def answer_loss(self, cells: Tensor, batch: PromptBatch) -> Tensor:
        """How surprised it is by the right answers, in nats."""
        logits, targets, weights = self.answer_logits(cells, batch)
        return (functional.cross_entropy(logits, targets, reduction="none") * weights).sum() / weights.sum()
