"""The network: a vision transformer in PyTorch, and the adapter that makes cells for the text model (train extra only).

As llama.cpp's projector type `adapter` (GLM-Edge-V) has it: square patches with learnt places, pre-norm blocks, then a
convolution that joins 2 times 2 patches, a gated layer, and a learnt vector before and behind the cells.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class VisionShape:
    """Sizes of the network. `cells` of a picture go to the text model, whose width is `text_width`."""

    side: int = 64
    patch: int = 8
    width: int = 96
    layers: int = 4
    heads: int = 3
    feed_forward: int = 192
    joined: int = 128
    gated: int = 160
    text_width: int = 256
    norm_eps: float = 1e-6
    mean: float = 0.5
    deviation: float = 0.25

    @property
    def cells(self) -> int:
        """With the vectors before and behind."""
        return (self.side // self.patch // 2) ** 2 + 2


class VisionBlock(nn.Module):
    """One encoder layer: every patch sees every other."""

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.ln1 = nn.LayerNorm(shape.width, shape.norm_eps)
        self.attn_q, self.attn_k, self.attn_v, self.attn_out = (nn.Linear(shape.width, shape.width) for _ in range(4))
        self.ln2 = nn.LayerNorm(shape.width, shape.norm_eps)
        self.ffn_up = nn.Linear(shape.width, shape.feed_forward)
        self.ffn_down = nn.Linear(shape.feed_forward, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.ln1(x)
        q, k, v = (
            part(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.attn_q, self.attn_k, self.attn_v)
        )
        scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
        mixed = torch.softmax(scores, dim=-1).to(v.dtype) @ v
        x = x + self.attn_out(mixed.transpose(1, 2).flatten(2))
        return x + self.ffn_down(functional.silu(self.ffn_up(self.ln2(x))))


class Encoder(nn.Module):
    """Pictures in, cells for the text model out."""

    def __init__(self, shape: VisionShape, cell_size: float = 0.02) -> None:
        """Args: cell_size: standard deviation that the numbers of a cell shall have at first."""
        super().__init__()
        self.shape = shape
        self.patch_embd = nn.Conv2d(3, shape.width, shape.patch, shape.patch)
        self.position_embd = nn.Parameter(torch.randn((shape.side // shape.patch) ** 2, shape.width) * 0.3)
        self.blk = nn.ModuleList(VisionBlock(shape) for _ in range(shape.layers))
        self.post_ln = nn.LayerNorm(shape.width, shape.norm_eps)
        self.conv = nn.Conv2d(shape.width, shape.joined, 2, 2)
        self.linear = nn.Linear(shape.joined, shape.joined, bias=False)
        self.norm1 = nn.LayerNorm(shape.joined, shape.norm_eps)
        self.gate, self.dense_h_to_4h = (nn.Linear(shape.joined, shape.gated, bias=False) for _ in range(2))
        self.dense_4h_to_h = nn.Linear(shape.gated, shape.text_width, bias=False)
        self.boi, self.eoi = (nn.Parameter(torch.randn(shape.text_width) * cell_size) for _ in range(2))
        nn.init.normal_(self.dense_4h_to_h.weight, std=cell_size)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Cells, float32 [pictures, cells, text_width], of pixels, uint8 [pictures, side, side, 3]; and the states of
        their patches before the last block, [pictures, patches, width]."""
        x = (pixels.permute(0, 3, 1, 2).float() / 255 - self.shape.mean) / self.shape.deviation
        x = self.patch_embd(x)
        grid = x.shape[-2:]
        x = x.flatten(2).transpose(1, 2) + self.position_embd
        for block in self.blk:
            patches, x = x, block(x)
        x = self.post_ln(x).transpose(1, 2).unflatten(2, grid)
        x = self.norm1(self.linear(self.conv(x).flatten(2).transpose(1, 2)))
        x = functional.gelu(x, approximate="tanh")
        x = self.dense_4h_to_h(functional.silu(self.gate(x)) * self.dense_h_to_4h(x)).float()
        before, behind = (vector.expand(len(x), 1, -1) for vector in (self.boi, self.eoi))
        return torch.cat([before, x, behind], dim=1), patches
