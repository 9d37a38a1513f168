"""The types of weights that `model.weights=auto` may take for a model: as wide as the file's, with memory for them."""

from __future__ import annotations

from operators.engine.backend.loading import inspect_model
from operators.generation.wiring import model_memory
from operators.settings import ModelSettings
from operators.settings.model import WEIGHTS
from operators.settings.runtime import EngineSettings
from pipeline.system.machine import free_memory

WIDE = ("bf16", "f16", "f32")
"""Types that may be taken if they are as wide as the file's or wider; the likeliest first."""
FULL_RANGE = ("bf16", "f32")
"""Types of files that F16 cannot take the place of: it ends at 65,504."""
_BF16_KERNELS = "AVX512_BF16 = 1"
"""In the list of llama.cpp's instructions: without them it computes BF16 number by number."""


def candidates(model: ModelSettings, settings: EngineSettings) -> list[str]:
    """Return the types that hold all that the file's does, and for which there is memory beside the file as it is; the
    likeliest first.

    Args:
        model: with its weights as they are.
    """
    facts = inspect_model(model)
    lost = {"f16"} if facts.weights in FULL_RANGE else set()
    found = [name for name in fitting(model, settings, beside=True) if name not in lost]
    return found if _BF16_KERNELS in facts.kernels else sorted(found, key=lambda name: name == "bf16")


def fitting(model: ModelSettings, settings: EngineSettings, *, beside: bool) -> list[str]:
    """Return the types of WIDE, but the file's, that are as wide as it, and for which there is memory.

    Args:
        beside: with the file as it is in memory, too.
    """
    facts = inspect_model(model)
    if facts.sizes is None:
        return []
    bits = WEIGHTS.get(facts.weights or "", 0.0)
    room = settings.memory_limit_bytes or free_memory()
    taken = sum(need.size_bytes for need in model_memory(model, settings, "weighing"))
    taken -= 0 if beside else facts.sizes.weights_bytes
    wide = [name for name in WIDE if WEIGHTS[name] >= bits and name != facts.weights]
    return [name for name in wide if taken + facts.sizes.weights_bytes * WEIGHTS[name] / (bits or 4.0) <= room]
