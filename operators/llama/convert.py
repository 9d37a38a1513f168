"""Converts a model file to another type of weights (`model.weights`), once, into a cache.

llama.cpp converts in a process of its own: it cannot be stopped within a call, and what it refuses may end the process.
`python -m operators.llama.convert SOURCE TARGET TYPE` is that process; with TARGET `-` it computes only the size.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import llama_cpp
from tqdm import tqdm

from operators.llama.header import content_of, read_header
from operators.llama.kernels import system_info
from operators.llama.library import initialise, last_errors, recent_lines
from operators.settings.model import WEIGHTS
from pipeline import PACKAGES
from pipeline.api.errors import ConfigError
from pipeline.system.disk_errors import storage_error
from pipeline.system.file_cache import weights_cache
from pipeline.system.terminal import complain, say

FILE_TYPES = {
    name: llama_cpp.LLAMA_FTYPE_ALL_F32 if name == "f32" else getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{name.upper()}")
    for name in WEIGHTS
}
"""llama.cpp's number of each type."""
WIDE = ("f32", "f16", "bf16")
"""Types that may be made of any: they hold what the source says."""
GOOD_SOURCES = (*WIDE, "q8_0")
"""Types that lose so little that a narrower one may be made of them."""
LONG_BLOCKS = tuple(name for name in WEIGHTS if "_k" in name or name == "iq4_xs")
"""Types that take 256 weights of a row at a time."""
_SIZE = re.compile(r"quant size\s*=\s*([\d.]+) MiB")
_FALLBACK = re.compile(r"(\d+ of \d+) tensor\(s\) required fallback")
_HEADER_BYTES = 32 << 20
"""Bytes that vocabulary and metadata take at most; the rest of a file is tensors."""
_POLL_S = 0.05


def type_of(path: Path) -> str | None:
    """Return the name of a model file's type; None if it is none of WEIGHTS."""
    file_type = read_header(path).file_type
    return next((name for name, number in FILE_TYPES.items() if number == file_type), None)


def converted(path: Path, wanted: str) -> Path:
    """Return the model of `path` with weights of the type `wanted`: `path` itself if it has them, else a file of the
    cache, which is made if it is not there.

    Args:
        path: the file, or the first of its parts; what is made of it is one file.

    Raises:
        ConfigError: llama.cpp cannot make it of this file, it would lose too much, or there is no room.
        StorageError: the cache cannot be written.
    """
    if type_of(path) == wanted:
        return path
    cache, name = weights_cache(), _name(path, wanted)
    if (kept := cache.find(name)) is not None:
        return kept
    size = converted_size(path, wanted)

    def write(target: Path) -> None:
        complain(f"model.weights={wanted}: converting {path}, once, into {cache.folder}")
        _convert(path, target, wanted, size)

    def waits() -> None:
        complain(f"model.weights={wanted}: another process converts weights; waiting for it")

    return cache.make(name, size, write, waits)


@lru_cache(maxsize=64)
def converted_size(path: Path, wanted: str) -> int:
    """Return the bytes, at most, of the model of `path` in the type `wanted`. Raises ConfigError if it cannot be made,
    or would lose too much."""
    have, about = type_of(path), f"model.weights={wanted} cannot work for {path}"
    if have not in GOOD_SOURCES and wanted not in WIDE:
        raise ConfigError(
            f"{about}: its weights are rounded already ({have or 'of another type'}), and rounding them again would"
            f" lose more than a {wanted} made of the original; convert a file in {', '.join(GOOD_SOURCES)}"
        )
    said = _child(path, "-", wanted).communicate()[0]
    if fallback := _FALLBACK.search(said):
        raise ConfigError(
            f"{about}: rows of {fallback[1]} tensors are no multiple of 256, so llama.cpp would store them in other"
            f" types; take {', '.join(name for name in WEIGHTS if name not in LONG_BLOCKS)}"
        )
    size = _SIZE.search(said)
    if size is None:
        raise ConfigError(f"{about}: llama.cpp refuses it: {_reason(said)}")
    return int(float(size[1]) * (1 << 20)) + _HEADER_BYTES


def _convert(path: Path, target: Path, wanted: str, size: int) -> None:
    """Have a child write `target`; shows a bar on a terminal. Ends the child when this process is stopped."""
    child = _child(path, str(target), wanted)
    bar = tqdm(total=size, unit="B", unit_scale=True, desc=f"to {wanted}", leave=False, disable=None)
    try:
        with bar:
            while child.poll() is None:
                bar.update(min(target.stat().st_size if target.exists() else 0, size) - bar.n)
                time.sleep(_POLL_S)
    finally:
        child.kill()
        said = child.communicate()[0]
    if child.returncode:
        missing = size - (target.stat().st_size if target.exists() else 0)
        if shutil.disk_usage(target.parent).free < missing:  # something else has taken the room that was there
            raise storage_error(target, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        raise ConfigError(f"model.weights={wanted}: {path} could not be converted to {target}: {_reason(said)}")


def _child(path: Path, target: str, wanted: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "operators.llama.convert", str(path.absolute()), target, wanted]
    return subprocess.Popen(command, cwd=PACKAGES, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def _reason(said: str) -> str:
    lines = [line for line in said.splitlines() if line.strip()]
    return lines[-1] if lines else "it gave no reason"


def _name(path: Path, wanted: str) -> str:
    """Return the name in the cache: it tells the content of the source and the build that converts it."""
    key = (content_of(path), wanted, llama_cpp.__version__, system_info())
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", path.stem)
    return f"{stem}-{wanted}-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.gguf"


def main(arguments: Sequence[str]) -> int:
    """Convert; print llama.cpp's last lines. Returns 0, or 1 if it fails."""
    source, target, wanted = arguments
    if sys.platform == "linux":  # a parent that is killed cannot end this process
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    initialise()
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[wanted]
    params.allow_requantize = True
    params.dry_run = target == "-"
    failed = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params))
    say(recent_lines())
    if failed:
        say([last_errors()])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
