"""The devices of ggml beside the CPU on which layers can lie: GPUs, and those that share the machine's memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llama_cpp import llama_cpp as binding

from operators.llama.library import initialise

_CPU, _KINDS = 0, {1: "gpu", 2: "igpu"}
_SERVERS = "RPC"
_ACCELERATOR = 3
"""ggml's type of a device that computes in the CPU's memory, such as BLAS."""
_GIB = 1 << 30


@dataclass(frozen=True)
class Device:
    """A device of ggml.

    Args:
        name: as llama.cpp counts them: CUDA0.
        description: what it is, by its driver.
        backend: the part of ggml that computes on it: CUDA.
        kind: "gpu", or "igpu" where it shares the machine's memory.
        free: bytes of memory that nobody holds, as it was asked for.
        total: bytes of memory.
        handle: ggml_backend_dev_t, in this process; 0: it is of another one.
    """

    name: str
    description: str
    backend: str
    kind: str
    free: int
    total: int
    handle: int

    @property
    def shares_memory(self) -> bool:
        """True if it has no memory of its own, but some of the machine's."""
        return self.kind == "igpu"

    def __str__(self) -> str:
        return f"{self.name} ({self.description}, {self.free / _GIB:.1f} of {self.total / _GIB:.1f} GiB free)"


def devices() -> tuple[Device, ...]:
    """Return the GPUs that llama.cpp finds, in its order, with their memory of now.

    `llama_supports_gpu_offload` does not tell: it is true wherever a backend such as RPC is compiled in."""
    return tuple(_device(handle, kind) for handle, kind in _handles() if kind in _KINDS)


def has_accelerator() -> bool:
    """Return whether llama.cpp gives products to a library such as BLAS, which it was built with, before the CPU."""
    return any(kind == _ACCELERATOR for _, kind in _handles())


def without_devices() -> str:
    """Return which parts of this llama.cpp are for GPUs and find none, with what they told and what to look at: "CUDA
    finds none (ggml_cuda_init: ...): see to its driver, ..."; "" if there is no such part, or another finds some."""
    told, found = initialise(), [kind for _, kind in _handles()]
    count: int = ggml("ggml_backend_reg_count", ctypes.c_size_t)
    every = [ctypes.c_void_p(ggml("ggml_backend_reg_get", ctypes.c_void_p, ctypes.c_size_t(i))) for i in range(count)]
    empty = [each for each in every if not ggml("ggml_backend_reg_dev_count", ctypes.c_size_t, each)]
    names = {_text(ggml("ggml_backend_reg_name", ctypes.c_char_p, each)) for each in empty} - {_SERVERS}
    if not names or any(kind in _KINDS for kind in found):
        return ""
    look = "see to its driver, and to what may hide GPUs (a container, CUDA_VISIBLE_DEVICES)"
    return f"{', '.join(sorted(names))} finds none{f' ({told})' if told else ''}: {look}"


def describe(devices: Sequence[Device]) -> str:
    """Return `devices` for a message: "CUDA0 (NVIDIA H100, 78.1 of 79.6 GiB free)", or "no GPU", and who finds none."""
    return ", ".join(map(str, devices)) or "no GPU" + (f": {why}" if (why := without_devices()) else "")


def kinds_of(names: Sequence[str]) -> str:
    """Return what the devices of these names are, without what changes: "CUDA0: NVIDIA H100 (CUDA)"."""
    by_name = {device.name: device for device in devices()}
    return ", ".join(f"{name}: {by_name[name].description} ({by_name[name].backend})" for name in names)


def most_in_use(mb: Mapping[str, float]) -> Mapping[str, float]:
    """Return `mb`, the most MiB of memory that were in use on some devices, with what is in use now. Servers are not
    asked: they may compute for another model, through the same connection."""
    if not mb or any(kind in _KINDS and _name(handle).startswith(_SERVERS) for handle, kind in _handles()):
        return mb
    now = {device.name: (device.total - device.free) / (1 << 20) for device in devices()}
    return {name: max(before, now[name]) for name, before in mb.items()}


def _device(handle: int, kind: int) -> Device:
    free, total = _memory(handle)
    if not total:  # it does not tell; llama.cpp takes the machine's memory, too
        free, total = _memory(ggml("ggml_backend_dev_by_type", ctypes.c_void_p, ctypes.c_int(_CPU)))
    registry = ctypes.c_void_p(_call("backend_reg", ctypes.c_void_p, handle))
    backend: bytes = ggml("ggml_backend_reg_name", ctypes.c_char_p, registry)
    about: bytes = _call("description", ctypes.c_char_p, handle)
    return Device(_name(handle), _text(about), _text(backend), _KINDS[kind], free, total, handle)


def _name(handle: int) -> str:
    return _text(_call("name", ctypes.c_char_p, handle))


def _memory(handle: int) -> tuple[int, int]:
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _call("memory", None, handle, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def _text(text: bytes) -> str:
    return text.decode(errors="replace")


def _handles() -> list[tuple[int, int]]:
    """Return the handles and types of all devices of this process."""
    initialise()
    count: int = ggml("ggml_backend_dev_count", ctypes.c_size_t)
    handles = [ggml("ggml_backend_dev_get", ctypes.c_void_p, ctypes.c_size_t(i)) for i in range(count)]
    return [(handle, _call("type", ctypes.c_int, handle)) for handle in handles]


def _call(what: str, returns: Any, handle: int, *arguments: Any) -> Any:
    return ggml(f"ggml_backend_dev_{what}", returns, ctypes.c_void_p(handle), *arguments)


def ggml(name: str, returns: Any, *arguments: Any) -> Any:
    """Call a function of ggml that llama-cpp-python does not declare. It is asked for through libllama: a wheel has no
    links, so the package's own libggml.so is another copy, with devices of its own."""
    function = getattr(binding._lib, name)
    function.restype = returns
    return function(*arguments)
