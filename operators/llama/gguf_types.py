"""The file types (weight formats) a model file can be written in, and llama.cpp's quantiser for the K-quants."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType

from operators.llama.gguf_shapes import Shape

_K_BLOCK = 256  # weights in a super-block of every K-quant
_LOG_LINES_IN_ERROR = 5


@dataclass(frozen=True)
class FileType:
    """One value of `general.file_type`.

    `matrices` is the type that every matrix gets, or None where llama.cpp decides tensor by tensor (K-quants);
    `block` is the number of weights quantised together, which must divide every row.
    """

    name: str
    code: LlamaFileType
    matrices: GGMLQuantizationType | None
    block: int

    def check_fits(self, shape: Shape) -> None:
        """Raises ValueError if a row of a matrix in `shape` is no whole number of blocks."""
        for name, size in shape.row_sizes.items():
            if size % self.block:
                raise ValueError(
                    f"{self.name} packs {self.block} weights at a time and {name}={size} is no multiple of that; "
                    f"use another type, or a shape such as tiny-256"
                )


def _uniform(name: str, code: LlamaFileType) -> FileType:
    matrices = GGMLQuantizationType[name.upper()]
    return FileType(name, code, matrices, GGML_QUANT_SIZES[matrices][0])


def _k_quant(name: str) -> FileType:
    return FileType(name, LlamaFileType[f"MOSTLY_{name.upper()}"], None, _K_BLOCK)


FILE_TYPES = {
    kind.name: kind
    for kind in (
        _uniform("f32", LlamaFileType.ALL_F32),
        *(
            _uniform(name, LlamaFileType[f"MOSTLY_{name.upper()}"])
            for name in ("f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1")
        ),
        *(
            _k_quant(name)
            for name in ("q2_k", "q3_k_s", "q3_k_m", "q3_k_l", "q4_k_s", "q4_k_m", "q5_k_s", "q5_k_m", "q6_k")
        ),
    )
}


def named_file_type(name: str) -> FileType:
    """The file type called `name`, in any case. Raises ValueError with the known names for any other."""
    if name.lower() not in FILE_TYPES:
        raise ValueError(f"no file type is called {name!r}; allowed: {', '.join(FILE_TYPES)}")
    return FILE_TYPES[name.lower()]


def quantize_file(source: Path, target: Path, file_type: FileType) -> None:
    """Write the F16 or F32 model at `source` to `target` in `file_type`, with llama.cpp's own quantiser.

    Like a K-quant from any other tool, the file mixes types: llama.cpp keeps some tensors finer. llama.cpp has one log
    callback a process; it is replaced while this runs and put back after.

    Raises RuntimeError with llama.cpp's last log lines if it fails.
    """
    import llama_cpp  # it loads llama.cpp's libraries, which nothing else here needs

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = int(file_type.code)
    with _captured_log() as lines:
        code = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), ctypes.byref(params))
    if code != 0:
        told = "".join(lines[-_LOG_LINES_IN_ERROR:]).strip()
        raise RuntimeError(f"llama.cpp could not quantise {source} to {file_type.name} (code {code}): {told}")


@contextmanager
def _captured_log() -> Iterator[list[str]]:
    """llama.cpp's log goes into the yielded list instead of where it went before."""
    import llama_cpp

    lines: list[str] = []
    previous, user_data = llama_cpp.llama_log_callback(), ctypes.c_void_p()
    llama_cpp.llama_log_get(ctypes.byref(previous), ctypes.byref(user_data))
    # The name keeps the callback alive until another one is set: llama.cpp holds only its address.
    callback = llama_cpp.llama_log_callback(lambda _level, text, _data: lines.append(text.decode(errors="replace")))
    llama_cpp.llama_log_set(callback, ctypes.c_void_p())
    try:
        yield lines
    finally:
        llama_cpp.llama_log_set(previous, user_data)
