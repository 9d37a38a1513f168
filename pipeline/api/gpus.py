"""A GPU of this machine, as the engine hears of it from operators."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

_GIB = 1 << 30


class Gpu(NamedTuple):
    """A GPU.

    Args:
        name: its number among those of its backend: CUDA0.
        description: what it is, by its driver.
        backend: what computes on it: CUDA.
        shares_memory: it has none of its own, but some of the machine's.
        total: bytes of its memory.
    """

    name: str
    description: str
    backend: str
    shares_memory: bool
    total: int

    def __str__(self) -> str:
        return f"{self.name} ({self.description}, {self.total / _GIB:.1f} GiB)"


def listed(gpus: Iterable[Gpu]) -> str:
    """Return `gpus` for a message."""
    return ", ".join(map(str, gpus)) or "none"
