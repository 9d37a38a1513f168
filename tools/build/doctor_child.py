"""The child process of `tools.build.doctor`, which may crash: loads llama.cpp, and decodes a tiny model that it writes.

    python -m tools.build.doctor_child info
    python -m tools.build.doctor_child decode q8_0 FOLDER [gpu]

Prints one JSON object. Several prompts of several tokens go through our binding in one call, and then a token of each,
because the kernels for batches are others than those for a single token; then one prompt goes through token by token,
and both ways must agree.
"""

import ctypes
import json
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import _ggml

from operators.llama.devices import describe, devices
from operators.llama.library import initialise
from operators.llama.model import LlamaModel
from operators.llama.packed import state
from operators.llama.vision import libmtmd
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError, install

ROWS = range(4)
PROMPT_TOKENS = 12
ALL_LAYERS = 999
# Cosine of the logits. Activations are rounded differently in the two ways; for garbage it is near 0.
MIN_AGREEMENT = 0.98


def info() -> dict[str, Any]:
    """Return versions, the CPU features that were compiled in, and the GPUs."""
    initialise()
    answer: dict[str, Any] = {"kernels": state()[1]}
    answer["system_info"] = llama_cpp.llama_print_system_info().decode().strip()
    answer["devices"] = [f"{device}, {device.kind} of {device.backend}" for device in devices()]
    answer["no devices"] = describe(())
    answer["images"] = images()
    for name in ("ggml_version", "ggml_commit"):
        function = getattr(_ggml.libggml, name, None)
        if function is not None:
            function.restype = ctypes.c_char_p
            answer[name] = function().decode()
    return answer


def images() -> str:
    """Return what reads images, or why none can be read, and what to do."""
    try:
        libmtmd()
        return f"libmtmd computes them, pillow {metadata.version('pillow')} decodes them"
    except ConfigError as error:
        return f"NOT READ: {error}"
    except metadata.PackageNotFoundError:
        return f"NOT READ: pillow, which decodes them, is not installed; {install('images')}"


def decode(file_type: str, folder: Path, device: str = "cpu") -> dict[str, Any]:
    """Write a tiny model and decode with it, batched and token by token. Raises RuntimeError if the results are no
    numbers or differ, or there is no GPU and `device` is gpu. Frees nothing, as the process ends soon."""
    from tools.models.make_model import write_model  # which `info` does without

    path = write_model(folder / "tiny.gguf", file_type=file_type).path
    if device == "gpu" and not devices():
        raise RuntimeError("llama.cpp finds no GPU that it was built for")
    model = LlamaModel(ModelSettings(path=str(path), gpu_layers=ALL_LAYERS if device == "gpu" else 0))
    context, _ = model.lease(EngineSettings(slots=len(ROWS), max_sequence_tokens=64))
    batch = context.batch
    prompts = [(37 * row + 11 * np.arange(PROMPT_TOKENS, dtype=np.int32) + 5) % model.n_vocab for row in ROWS]
    batch.add_spans(prompts, [0 for _ in ROWS], ROWS, [1 for _ in ROWS])
    batched = context.decode().copy()  # the view is only valid until the next call
    batch.clear()
    batch.add_rows(batched.argmax(axis=1).tolist(), [PROMPT_TOKENS for _ in ROWS], ROWS)
    next_tokens = context.decode().copy()
    context.clear()
    for position, token in enumerate(prompts[0].tolist()):
        batch.clear()
        batch.add_rows([token], [position], [0])
        single = context.decode()
    a, b = batched[0], single[0]
    with np.errstate(all="ignore"):
        agreement = float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))  # nan if one is zero or not finite
    if not np.isfinite([*batched, *next_tokens]).all() or not agreement >= MIN_AGREEMENT:
        raise RuntimeError(
            f"wrong results: logits of a batch and of single tokens agree to {agreement:.3f}, not {MIN_AGREEMENT}"
        )
    return {"agreement": agreement}


if __name__ == "__main__":
    print(json.dumps(info() if sys.argv[1] == "info" else decode(sys.argv[2], Path(sys.argv[3]), *sys.argv[4:])))
