"""Messages on what did not fit into the memory of a device, with remedies: by the lines that llama.cpp logs of it."""

from __future__ import annotations

import re

from operators.llama.devices import describe, devices
from operators.llama.library import recent_lines

_BUFFER = re.compile(r"failed to allocate (\S+) buffer of size (\d+)")
_FEWER = "fewer model.gpu_layers"
_CALLS = "a smaller runtime.n_ubatch, fewer runtime.slots (each has logits)"
_WHAT = {
    "weights": ("the weights", "a smaller or more quantised model"),
    "cache": (
        "the KV cache and recurrent states",
        "fewer runtime.slots, shorter runtime.max_sequence_tokens, runtime.kv_type=q8_0",
    ),
    "compute": ("the buffers for computing", ""),
}
_ENDS_WITH = re.compile(r"failed to allocate (?:buffer for \w+ )?(cache|compute)")
"""llama.cpp's last line about a context; a model has another one."""


def no_room(calls: str = _CALLS) -> str | None:
    """Return what the memory of a device could not hold in the call that failed, and the remedies; None if it failed
    for another reason. `forget_errors` comes before the call.

    Args:
        calls: what makes the calls of a context smaller."""
    lines = recent_lines()
    asked = [match for line in lines if (match := _BUFFER.search(line))]
    full = [device for device in devices() if asked and device.name == asked[-1][1]]
    if not full:
        return None
    ends = [match[1] for line in lines if (match := _ENDS_WITH.search(line))]
    what, remedy = _WHAT[ends[-1] if ends else "weights"]
    size = int(asked[-1][2]) / (1 << 20)
    return f"{what} do not fit: {describe(full)} has no {size:,.1f} MiB more; use {remedy or calls}, or {_FEWER}"
