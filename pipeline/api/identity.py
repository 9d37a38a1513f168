"""Identity: what computes the rows of a node, in one value. Content keys, engines that nodes share, what a run keeps
for its later attempts, and the comparison of workers are made of it, so that they cannot differ in what they cover. And
the GPUs that may compute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple, Protocol, TypeVar

_GIB = 1 << 30


class _Planned:
    """For whom models of this process are planned. `gpus`: that each worker of this machine has for itself
    (cluster.gpus); 0: they are for this process, which takes all."""

    gpus: float = 0.0


PLANNED = _Planned()
"""Set by each job that is built, of which one runs at a time."""


@dataclass(frozen=True)
class Identity:
    """All that can change a bit of a row, besides the row itself and what is asked of it. `words` name a field in
    messages, in content keys and in state.sqlite, so they stay.

    Args:
        model: its content.
        build: of llama.cpp, the instructions that it uses, and kernels of our own.
        device: the CPU, or the layers on a GPU and the GPUs.
        doubt: why bits are not proven to depend on the row alone; None where they are, or need not.
        threads: that compute; "any" where their number changes no bit.
        settings: those of the engine that can change a bit.
        adapters: the content of those that rows may have; None without any.
        bits: a hash of what the model computes for fixed texts; None where that says nothing.
    """

    model: str = field(metadata={"words": "the model"})
    build: str = field(metadata={"words": "llama.cpp"})
    device: str = field(metadata={"words": "the device"})
    doubt: str | None = field(metadata={"words": "what is not proven"})
    threads: int | str = field(metadata={"words": "runtime.threads"})
    settings: str = field(metadata={"words": "runtime"})
    adapters: str | None = field(default=None, metadata={"words": "the adapters"})
    bits: str | None = field(default=None, metadata={"words": "the bits of fixed texts"})

    def in_words(self) -> dict[str, str]:
        """Return the fields as texts, by what they are; without one that is left out."""
        each = ((f, getattr(self, f.name)) for f in fields(self))
        return {f.metadata["words"]: str(value) for f, value in each if value != f.default}


@dataclass(frozen=True)
class DeviceMemory:
    """The memory of a device such as a GPU: the device's name, and the bytes that are free and that it has."""

    name: str
    free_bytes: int
    total_bytes: int


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


class _OfBackend(Protocol):
    @property
    def backend(self) -> str: ...
    @property
    def shares_memory(self) -> bool: ...


G = TypeVar("G", bound=_OfBackend)


def for_workers(found: Sequence[G]) -> list[G]:
    """Return the GPUs that are shared out to workers: of the first backend, as others may have the same cards, and one
    that shares the machine's memory only where there is no other."""
    apart = [gpu for gpu in found if not gpu.shares_memory] or found
    return [gpu for gpu in apart if gpu.backend == apart[0].backend]


def listed(gpus: Iterable[Gpu]) -> str:
    """Return `gpus` for a message."""
    return ", ".join(map(str, gpus)) or "none"
