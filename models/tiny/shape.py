"""The sizes of the network."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Shape:
    """Sizes of the network. Every matrix row is a multiple of 32 long, the block length of Q8_0."""

    vocab: int = 2048
    width: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    feed_forward: int = 640
    context: int = 512
    rope_base: float = 10000.0
    norm_eps: float = 1e-6
