"""The limit of this machine for a model: what a call of it multiplies and reads, by the model's header, and how much of
that the machine does in a second at most, which is measured once and kept.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import math
import mmap
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from operators.engine.backend.limit import MachineLimit, ModelWork, Peaks
from operators.llama.gguf_check import Contents
from operators.llama.kernels import has_amx
from operators.llama.packed import LOOKED_UP, OUTPUT, TABLE, bytes_of, library
from operators.settings.checks import usable_cores
from operators.settings.long_rows import KV_TYPES
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import PipelineError
from pipeline.system.file_cache import FileCache, cache_folder
from pipeline.system.machine import free_memory, machine

_EXPERTS = b"exps."
_LAYER = re.compile(rb"blk\.(\d+)\.")
_ALONE = 0.8
"""Share of the time of all threads that a measurement must have had of the cores."""
_BUSY = "other work is using the cores; a run that begins without it measures what they can do"
_MOST_BYTES, _FILE_BYTES = 1 << 20, 100
_ROOM_BYTES = 2 << 30
"""Free memory from which a measurement, which reads up to half of that, is no danger to the run."""
_ROUND_S, _LONG_ENOUGH_S = 0.03, 0.25
"""The least time of a round, beside which starting and awaiting all threads is little; and of all rounds."""
_LEAST_BYTES, _CACHES = 128 << 20, 4
"""Of memory that is read: so much, or so many times the last cache, which could hold less."""
_LAST_CACHE = 194
"""sysconf's _SC_LEVEL3_CACHE_SIZE, for which Python has no name."""
log = logging.getLogger(__name__)


class _Disturbed(PipelineError):
    """The machine is busy, or lacks memory or the instructions."""


def work_of(contents: Sequence[Contents], architecture: str | None, kv_values: int | None) -> ModelWork:
    """Return what a model multiplies and reads, by the headers of its files. `kv_values`: see Attention; None: the
    keys and values are left out."""

    def number(key: str) -> int:
        value = contents[0].values.get(f"{architecture}.{key}".encode())
        return max(value.scalar, 0) if value and isinstance(value.scalar, int) else 0

    tensors = {name: tensor for each in contents for name, tensor in each.tensors.items() if len(tensor.lengths) > 1}
    layers = number("block_count") - number("nextn_predict_layers")  # those behind guess tokens for drafts
    sums = {"": [0, 0], "expert_": [0, 0], "output_": [0, 0]}
    last = OUTPUT if OUTPUT in tensors else TABLE
    for name, tensor in tensors.items():
        layer = _LAYER.match(name)
        if (name.startswith(LOOKED_UP) and name != last) or (layer and int(layer[1]) >= layers):
            continue
        of = sums["output_" if name == last else "expert_" if _EXPERTS in name else ""]
        of[:] = of[0] + math.prod(tensor.lengths), of[1] + bytes_of(tensor)
    experts, kv_heads = max(number("expert_count"), 1), number("attention.head_count_kv")
    return ModelWork(
        **{f"{of}{what}": n for of, both in sums.items() for what, n in zip(("macs", "bytes"), both, strict=True)},
        experts=experts,
        experts_used=min(number("expert_used_count") or 1, experts),
        kv_values=kv_values or 0,
        attention_macs=(kv_values or 0) * number("attention.head_count") // kv_heads if kv_heads else 0,
        window=number("attention.sliding_window") or math.inf,
    )


def machine_limit(work: ModelWork, settings: EngineSettings) -> MachineLimit | None:
    """Return the limit of this machine for an engine with `settings`; None if it is not known."""
    rates = peaks(settings.threads or usable_cores())
    value_bytes = sum(map(KV_TYPES.__getitem__, settings.kv_types)) / 2 / 8
    return None if rates is None else MachineLimit(rates, work, value_bytes)


@functools.cache
def peaks(threads: int) -> Peaks | None:
    """Return what this machine does at most with so many threads: as it was kept in the cache folder, or measured, in
    half a second. None where that cannot be: without the library, on a busy machine, and with AMX, which multiplies
    more than any instruction that is measured."""
    native = library()
    if native is None or has_amx() or not hasattr(native, "kernels_products"):
        return None
    key = repr((machine()["cpu"], usable_cores(), threads, native.kernels_sources()))
    name, files = hashlib.sha256(key.encode()).hexdigest()[:16], FileCache(cache_folder() / "peaks", _MOST_BYTES)
    try:
        kept = files.find(name)
        if kept is not None and (found := _read(kept)) is not None:
            return found
        if kept is not None:  # damaged
            kept.unlink(missing_ok=True)
        return _read(files.make(name, _FILE_BYTES, functools.partial(_measure, native, threads), lambda: None))
    except (PipelineError, OSError) as error:
        log.info("how near the run comes to this machine's limit is not told: %s", error)
        return None


def _read(file: Path) -> Peaks | None:
    with suppress(ValueError, TypeError):
        peaks = Peaks(*map(float, file.read_text(encoding="ascii").split()))
        return peaks if min(peaks) > 0 and max(peaks) < math.inf else None
    return None


def _measure(native: ctypes.CDLL, threads: int, file: Path) -> None:
    """Measure, and write the peaks to `file`. Raises _Disturbed."""
    if os.getloadavg()[0] > (os.cpu_count() or 1) / 2:
        raise _Disturbed(_BUSY)
    if free_memory() < _ROOM_BYTES:
        raise _Disturbed("memory is too short to measure how fast it is read")
    began, used = time.perf_counter(), time.process_time()
    peaks = peak_products(native, threads), peak_bytes(native, threads)
    if min(peaks) <= 0:
        raise _Disturbed("it has no AVX2")
    if time.process_time() - used < _ALONE * threads * (time.perf_counter() - began):
        raise _Disturbed(_BUSY)
    file.write_text(f"{peaks[0]} {peaks[1]}\n", encoding="ascii")
    log.info("measured: this machine does %.3g GMAC/s and reads %.3g GB/s at most", peaks[0] / 1e9, peaks[1] / 1e9)


def peak_products(native: ctypes.CDLL, threads: int) -> float:
    """Return products of two bytes that are added to 32 bits, a second, by the best instruction of this CPU; 0 without
    AVX2."""
    native.kernels_products.restype, native.kernels_products.argtypes = ctypes.c_int64, (ctypes.c_int64,)
    return _most_a_second(threads, lambda thread, times: native.kernels_products(times))


def peak_bytes(native: ctypes.CDLL, threads: int) -> float:
    """Return bytes that all threads together read a second from memory that no cache can hold."""
    most = min(max(_CACHES * os.sysconf(_LAST_CACHE), _LEAST_BYTES), _ROOM_BYTES // 2)
    part = most // threads // mmap.PAGESIZE * mmap.PAGESIZE
    native.kernels_read.restype = ctypes.c_int64
    native.kernels_read.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
    with mmap.mmap(-1, part * threads, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        view = ctypes.c_char.from_buffer(memory)
        start = ctypes.addressof(view)

        try:
            ctypes.memset(start, 1, len(memory))  # what was never written to is one page of zeros
            return _most_a_second(
                threads, lambda thread, times: native.kernels_read(start + thread * part, part, times)
            )
        finally:
            del view


def _most_a_second(threads: int, work: Callable[[int, int], int]) -> float:
    """Return the most that `work(thread, times)`, which says how much it did, does a second on all threads together, of
    some rounds. A round has so many times that it takes _ROUND_S."""
    most, times, began = 0.0, 1, time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        while not most or time.perf_counter() - began < _LONG_ENOUGH_S:
            start = time.perf_counter()
            amount = sum(pool.map(work, range(threads), [times] * threads))
            took_s = time.perf_counter() - start
            if not amount:
                break
            if took_s < _ROUND_S:
                times *= 2
            else:
                most = max(most, amount / took_s)
    return most
