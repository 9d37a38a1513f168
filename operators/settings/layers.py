"""The values of the keys of `model` that say where its layers are."""

from __future__ import annotations

import re
from typing import Any

from pipeline.api.keys import Rule, at_least, maps, one_of

ALL, AUTO = "all", "auto"
NO_DEVICE = "none"
ONE, LAYERS = "none", "layer"


def _is_pattern(pair: tuple[Any, Any]) -> bool:
    pattern, device = pair
    try:
        return isinstance(pattern, str) and bool(re.compile(pattern)) and isinstance(device, str) and bool(device)
    except re.error:
        return False


def _are_names(given: Any) -> bool:
    if not isinstance(given, list) or not all(isinstance(name, str) and name for name in given):
        return False
    return 0 < len(given) == len(set(given))


def _are_shares(given: list[float] | None) -> bool:
    return given is None or (all(share >= 0 for share in given) and 0 < sum(given) < float("inf"))


GPU_LAYERS: Rule = (
    f"it is a number of layers (0: the CPU computes), {ALL}, or {AUTO}",
    lambda given: given in (ALL, AUTO) or (type(given) is int and given >= 0),
)
DEVICE: Rule = (
    f"it is the name of a device, as `python -m pipeline doctor` lists them, a list of such, each once, or {NO_DEVICE}"
    " (null: all of them)",
    lambda given: given is None or (isinstance(given, str) and bool(given)) or _are_names(given),
)
_SPLIT, _fits_split = one_of((ONE, LAYERS))
SPLIT_MODE: Rule = (
    f"{_SPLIT}: one device has all layers, or each has some of them. llama.cpp's row is left out, since few backends"
    " have it (CUDA has not), and its tensor, since it ends the process for some models and changes what others write",
    _fits_split,
)
MAIN_GPU: Rule = at_least(0, f"it is the number, from 0, of one of the devices, for model.split_mode={ONE}, or null")
TENSOR_SPLIT: Rule = (
    "it is a list with the share of each device, as [3, 1], of which none is negative and one is above 0, or null",
    _are_shares,
)
N_CPU_MOE: Rule = at_least(0, "it is 0 or more layers")
OVERRIDE_TENSOR: Rule = maps(
    "regular expressions, for names of tensors, to names of devices, as {ffn_down_exps: CPU}",
    _is_pattern,
)
