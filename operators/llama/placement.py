"""Placing of a model's layers: reads the keys of `model` about it, fits `auto` into free memory, tells llama.cpp."""

from __future__ import annotations

import bisect
import ctypes
import itertools
import logging
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import llama_cpp

from operators.engine.backend.loading import model_key
from operators.engine.backend.placement import HOST, ON_CPU, LayerPlacement
from operators.llama.asked_devices import planned_devices
from operators.llama.devices import Device, describe, devices, ggml, without_devices
from operators.llama.devices.no_room import no_room
from operators.llama.layer_sizes import Layers, bytes_on, context_bytes, layers_of
from operators.llama.library import forget_errors, last_errors
from operators.llama.packed import Packed
from operators.llama.with_images import mmproj_bytes
from operators.settings import ModelSettings
from operators.settings.checks import check
from operators.settings.layers import ALL, AUTO, NO_DEVICE, ONE
from operators.settings.runtime import EngineSettings
from pipeline.api.identity import PLANNED

MARGIN = 1 << 30
"""Bytes that `auto` leaves free on each device, for what drivers and guesses do not tell."""
_EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
"""The matrices of a layer's experts: llama.cpp's LLM_FFN_EXPS_REGEX."""
log = logging.getLogger(__name__)


class _Loaded(NamedTuple):
    """The placement of a model that is loaded, and the bytes that its contexts take or will take on each device."""

    placement: LayerPlacement
    contexts: Mapping[str, int]


_loaded: dict[tuple[str, str], _Loaded] = {}


def check_placement(settings: ModelSettings) -> None:
    """Raise ConfigError if a key of `model` names a device that is not there, or llama.cpp would end the process or
    refuse the model because of it; the message lists the devices. The model's file need not be there."""
    _used(settings)


def placement_of(settings: ModelSettings, path: Path, margin: int = MARGIN) -> LayerPlacement:
    """Return where the layers of the model in `path` are, if it is loaded, or will be.

    Args:
        margin: bytes that model.gpu_layers=auto leaves free on each device.

    Raises:
        ConfigError: see check_placement; or a pattern of model.override_tensor fits no tensor.
    """
    loaded = _loaded.get(model_key(settings))
    if loaded is not None and not PLANNED.gpus:
        return loaded.placement
    used = _used(settings)
    if loaded is not None and {device.name for device in used} >= set(loaded.placement.devices):
        return loaded.placement
    if settings.override_tensor:
        _check_patterns(settings.override_tensor, layers_of(path))
    placement = _Plan(settings, path, used, margin).best() if used else ON_CPU
    refusal = _refusal(path, placement) if settings.override_tensor else None
    check(refusal is None, "model.override_tensor", settings.override_tensor, f"llama.cpp refuses it ({refusal})")
    return placement


def load_placed(
    settings: ModelSettings, path: Path, load: Callable[[LayerPlacement], tuple[Any, Packed]]
) -> tuple[Any, Packed, LayerPlacement]:
    """Load the model in `path` where the keys of `model` have its layers; with auto, where there is less room than it
    was thought, with fewer of them. Raises ConfigError as placement_of does.

    Args:
        load: loads it, and gives None in place of its handle if llama.cpp refuses.

    Returns:
        what `load` gave, and where the layers are.
    """
    is_open, margin = settings.gpu_layers == AUTO, MARGIN
    while True:
        placement = placement_of(settings, path, margin)
        model, packed = load(placement)
        if model or placement.on_cpu or not is_open or no_room() is None:
            break
        log.warning("%s: %s, not loaded (%s); fewer are tried", path.name, placement, last_errors())
        margin *= 2
    if model and not placement.on_cpu:
        plan = _Plan(settings, path, _used(settings), margin)
        _loaded[model_key(settings)] = _Loaded(placement, plan.contexts(placement))
        log.info("%s: %s%s", path.name, "model.gpu_layers=auto: " if is_open else "", placement)
    elif is_open and (found := _used(settings)):
        log.warning("%s: the CPU computes, as no layer fits beside %s", path.name, describe(found))
    elif is_open and settings.device is None and (why := without_devices()):
        log.warning("%s: the CPU computes, as %s; if that is meant, model.gpu_layers=0 says so", path.name, why)
    room = _room(settings)
    idle = [f"model.{key}" for key in ("cpu_moe", "n_cpu_moe", "override_tensor") if getattr(settings, key)]
    idle += [f"runtime.{key}=false" for key in ("kv_offload", "op_offload") if not (_loaded or getattr(room, key))]
    if placement.on_cpu and idle:
        log.warning("%s: no layer is on a device, so that these do nothing: %s", path.name, ", ".join(idle))
    return model, packed, placement


def unloaded(settings: ModelSettings) -> None:
    """Say that the model of `settings` is no longer loaded."""
    _loaded.pop(model_key(settings), None)


def _used(settings: ModelSettings) -> tuple[Device, ...]:
    """Return the devices that may have layers. Raises ConfigError as check_placement does."""
    named = (settings.device, settings.main_gpu, settings.tensor_split, settings.override_tensor)
    if settings.gpu_layers == 0 and not any(each is not None for each in named):
        return ()  # drivers take memory of a device that is asked for its own
    found = planned_devices()
    there = f"there is {describe(found)}"
    names = [settings.device] if isinstance(settings.device, str) else settings.device
    by_name = {device.name: device for device in found}
    if names is None:
        used = _usual(found)
    else:
        fits = names == [NO_DEVICE] or by_name.keys() >= set(names)
        check(fits, "model.device", settings.device, f"{there}; model.device=none is the CPU")
        used = tuple(by_name[name] for name in names if name != NO_DEVICE)
    if settings.split_mode == ONE:
        number = settings.main_gpu or 0
        fits = number < len(used) or (not used and settings.main_gpu is None)
        check(fits, "model.main_gpu", number, f"it counts the {len(used)} devices from 0; {there}")
        used = used[number : number + 1]
    else:
        one = "it says which device has all layers, for model.split_mode=none"
        check(settings.main_gpu is None, "model.main_gpu", settings.main_gpu, one)
    shares = settings.tensor_split
    fits = shares is None or len(shares) == len(used)
    check(fits, "model.tensor_split", shares, f"it has a share for each device that is used, {len(used)}; {there}")
    build = "" if without_devices() else "; `python -m pipeline build backend=cuda` builds llama.cpp for NVIDIA's"
    needs = f"{there}; use 0 or auto{build}" if not found else "model.device=none leaves no device for them"
    check(bool(used) or settings.gpu_layers in (0, AUTO), "model.gpu_layers", settings.gpu_layers, needs)
    used = () if settings.gpu_layers == 0 else used
    for pattern, to in (settings.override_tensor or {}).items():
        known = [HOST, *(device.name for device in used)]
        allowed = f"it is one of the devices that are used, {', '.join(known)}; {there}"
        check(to in known, f"model.override_tensor.{pattern}", to, allowed)
    return used


def _usual(found: Sequence[Device]) -> tuple[Device, ...]:
    """Return the devices that llama.cpp takes where none are named: GPUs, each once where several backends have it;
    those of servers first; without a GPU what shares the machine's memory, of one backend."""
    once: dict[object, Device] = {}
    for device in found:
        once.setdefault(_hardware(device) or device.name, device)
    gpus = sorted((each for each in once.values() if each.kind == "gpu"), key=lambda each: each.backend != "RPC")
    shared = [device for device in found if device.kind == "igpu"]
    if any(device.backend != "RPC" for device in gpus):
        return tuple(gpus)
    return (*gpus, *(device for device in shared if device.backend == shared[0].backend))


class _Properties(ctypes.Structure):
    """ggml_backend_dev_props, whose capabilities, some booleans, are at the end."""

    _fields_ = (
        *(("name", ctypes.c_char_p), ("description", ctypes.c_char_p)),
        *(("free", ctypes.c_size_t), ("total", ctypes.c_size_t)),
        *(("kind", ctypes.c_int), ("device_id", ctypes.c_char_p), ("capabilities", ctypes.c_bool * 64)),
    )


def _hardware(device: Device) -> bytes | None:
    """Return the address of a device on the bus; None if its backend does not tell, or it is another process's."""
    if not device.handle:
        return None
    properties = _Properties()
    ggml("ggml_backend_dev_get_props", None, ctypes.c_void_p(device.handle), ctypes.byref(properties))
    identity: bytes | None = properties.device_id
    return identity


def _check_patterns(overrides: Mapping[str, str], layers: Layers) -> None:
    for pattern, to in overrides.items():
        fits = any(re.search(pattern, weight.name) for weight in layers.weights)
        allowed = f"no tensor of the model has such a name; they are as {layers.weights[0].name}"
        check(fits, f"model.override_tensor.{pattern}", to, allowed)


def _refusal(path: Path, placement: LayerPlacement) -> str | None:
    """Return why llama.cpp, which loads the model without memory for this, refuses the patterns; None: it does not."""
    if placement.on_cpu or PLANNED.gpus:  # a worker asks
        return None
    params = llama_cpp.llama_model_default_params()
    params.no_alloc, params.load_mode = True, llama_cpp.LLAMA_LOAD_MODE_NONE
    _alive = place(params, placement)
    forget_errors()
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        return last_errors()
    llama_cpp.llama_model_free(model)
    return None


class _Plan:
    """The placements that settings leave open for a model, and what each takes. `used`: the devices."""

    def __init__(self, settings: ModelSettings, path: Path, used: Sequence[Device], margin: int) -> None:
        self._settings, self._used, self._margin = settings, used, margin
        self._layers = layers_of(path)
        self._context = context_bytes(path, settings, _room(settings))
        here = () if PLANNED.gpus else _loaded.values()  # workers have none of these
        taken = sum((Counter(each.contexts) for each in here), Counter())
        self._free = {device.name: device.free - taken[device.name] for device in used}
        self._free[used[0].name] -= mmproj_bytes(settings)  # it is on the first
        count, wanted = self._layers.n_layers, math.inf if settings.cpu_moe else settings.n_cpu_moe
        self._fewest = int(min(wanted, count)) if self._layers.has_experts else 0
        """Layers whose experts are on the CPU in any case."""

    def best(self) -> LayerPlacement:
        """Return the placement that is asked for; with auto the one with the most on devices that fits, which leaves
        the experts of the first layers to the CPU before any layer."""
        count, given = self._layers.n_layers, self._settings.gpu_layers
        if given != AUTO:
            most = count + 1 if given == ALL else min(given, count + 1)
            return self._fitting(most, self._fewest) or self._split(most, self._fewest, self._rooms(0))
        last = count if self._layers.has_experts else self._fewest
        choices = [(count + 1, experts) for experts in range(self._fewest, last + 1)]
        choices += [(layers, last) for layers in range(count, 0, -1)]
        at = bisect.bisect_left(choices, True, key=lambda each: self._fitting(*each) is not None)
        return (self._fitting(*choices[at]) if at < len(choices) else None) or ON_CPU

    def _fitting(self, gpu_layers: int, experts: int) -> LayerPlacement | None:
        """Return the placement of so many layers, None if it does not fit. Where it does either way, the layers are
        split by what devices have and not by what is free: a run then goes on with the same placement."""
        rooms = self._rooms(self._margin)
        for shares in ([device.total for device in self._used], rooms):
            placement = self._split(gpu_layers, experts, shares)
            sizes = bytes_on(placement, self._layers, self._context)
            if all(sizes[device.name] <= room for device, room in zip(self._used, rooms, strict=True)):
                return placement
        return None

    def _rooms(self, margin: int) -> list[int]:
        """Return the bytes of each device that weights and contexts may take, 1 at least: shares cannot be all 0."""
        return [max(self._free[device.name] - margin, 1) for device in self._used]

    def _split(self, gpu_layers: int, experts: int, shares: Sequence[float]) -> LayerPlacement:
        """Return the placement of so many layers, by `model.tensor_split` or else `shares`, with the experts of the
        first layers on the CPU. As llama.cpp cuts them: a layer is on the first device that it begins before the end
        of."""
        sums = list(itertools.accumulate(self._settings.tensor_split or shares))
        ends = [math.ceil(gpu_layers * part / sums[-1] - 1e-9) for part in sums]
        counts = tuple(end - begin for begin, end in itertools.pairwise([0, *ends]))
        numbers = "|".join(map(str, range(experts)))
        moved = rf"blk\.({numbers}){_EXPERTS}" if experts < self._layers.n_layers else _EXPERTS
        elsewhere = ((self._settings.override_tensor or {}) | ({moved: HOST} if experts else {})).items()
        names = tuple(device.name for device in self._used)
        return LayerPlacement(gpu_layers, self._layers.n_layers + 1, names, counts, tuple(elsewhere))

    def contexts(self, placement: LayerPlacement) -> Counter[str]:
        """Return what contexts take on each device."""
        return bytes_on(placement, self._layers._replace(weights=()), self._context)


def _room(settings: ModelSettings) -> EngineSettings:
    return settings.room if isinstance(settings.room, EngineSettings) else EngineSettings(**(settings.room or {}))


class _Override(ctypes.Structure):
    """llama_model_tensor_buft_override."""

    _fields_ = (("pattern", ctypes.c_char_p), ("place", ctypes.c_void_p))


def place(params: llama_cpp.llama_model_params, placement: LayerPlacement) -> object:
    """Have llama.cpp load a model so. Returns what must live until it is loaded."""
    handles = {} if placement.on_cpu else {device.name: device.handle for device in devices()}
    listed = (ctypes.c_void_p * (len(placement.devices) + 1))(*(handles[name] for name in placement.devices), None)
    params.devices = ctypes.cast(listed, ctypes.c_void_p)  # without one in the list llama.cpp makes no device ready
    params.n_gpu_layers = placement.gpu_layers
    split = (ctypes.c_float * max(len(placement.counts), llama_cpp.llama_max_devices()))(*placement.counts)
    params.tensor_split = split
    params.split_mode = llama_cpp.LLAMA_SPLIT_MODE_LAYER
    moved = []
    for pattern, to in placement.elsewhere:
        name, of = ("cpu", ()) if to == HOST else ("dev", (ctypes.c_void_p(handles[to]),))
        moved.append(_Override(pattern.encode(), ggml(f"ggml_backend_{name}_buffer_type", ctypes.c_void_p, *of)))
    overrides = (_Override * (len(moved) + 1))(*moved)
    if moved:
        params.tensor_buft_overrides = ctypes.cast(overrides, ctypes.c_void_p)
    return listed, split, overrides
