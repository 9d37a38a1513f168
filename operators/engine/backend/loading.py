"""Loading of models, shared by all nodes of a process, and facts about models that are not loaded."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import ModuleType
from typing import Any

from operators.engine.backend.attention import Attention
from operators.engine.backend.images import ImageSizes
from operators.engine.backend.interface import Model
from operators.engine.backend.placement import ON_CPU, LayerPlacement
from operators.settings import ModelSettings
from operators.settings.checks import read_text
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError, InputError
from pipeline.api.identity import DeviceMemory, Gpu
from pipeline.api.keys import default_of
from pipeline.api.numbers import MEMORY, Number
from pipeline.api.protocols import Runtime


def load_model(runtime: Runtime, settings: ModelSettings) -> Model:
    """Return the model of `settings`: loaded once per process, shared by all nodes and runs. The run shows what is in
    use of the memory of its devices."""
    model = runtime.shared(model_key(settings), lambda: _loaded(settings), close_model)
    placement: LayerPlacement = getattr(model, "placement", ON_CPU)  # which a loader of the user's may not know
    for name in placement.devices:
        number = Number(f"most memory of {name} in use, by all processes, when a context was made", "MiB", MEMORY)
        of_device = re.sub(r"[^a-z0-9_]", "_", name.lower())
        runtime.number(f"peak_memory_mb_{of_device}", number, partial(_in_use, model, name), of_run=True)
    return model


def _in_use(model: Model, device: str) -> float:
    return model.device_mb[device]


def _loaded(settings: ModelSettings) -> Model:
    """Load a model in a thread of its own, which ends. Where llama.cpp packs weights for AMX with all cores, OpenMP
    keeps its team of threads for the thread that called it, and one team too many slows every step of a run."""
    with ThreadPoolExecutor(1, "load") as thread:
        return thread.submit(loader(settings), settings).result()


def model_key(settings: ModelSettings) -> tuple[str, str]:
    """Return a key that is equal for settings with the same weights."""
    of_texts = [key for key in fields(settings) if key.metadata.get("prompts") or not key.metadata.get("loads", True)]
    usual = {key.name: default_of(key) for key in of_texts}
    return ("model", repr(replace(settings, **usual)))


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a model in memory. `recurrent`: it has recurrent layers, and shares prefixes by snapshots.
    `packed_bytes`: of weights that `model.kernels=auto` packs, which each process has for itself. `tied_bytes`: what of
    these is in memory a second time. `state_bytes`: of the state of a row in recurrent layers."""

    weights_bytes: int
    n_vocab: int
    recurrent: bool = False
    packed_bytes: int = 0
    tied_bytes: int = 0
    state_bytes: int = 0


@dataclass(frozen=True)
class ImageFacts:
    """Facts about the vision encoder of a model that is not loaded. `fingerprint`, `resize`: see Vision. `size_bytes`:
    of its file, which are in memory, too."""

    fingerprint: str
    size_bytes: int
    resize: ImageSizes


@dataclass(frozen=True)
class DeviceSizes:
    """What a model that is not loaded will take of the devices of its placement, in bytes by their names.

    Args:
        memory: that each has.
        weights: that will be there, and under HOST in the memory of the machine.
        computing: with the settings of an engine, the buffers for computing of a context, at most; HOST among them.
    """

    memory: Mapping[str, DeviceMemory]
    weights: Mapping[str, int]
    computing: Callable[[EngineSettings], Mapping[str, int]]


@dataclass(frozen=True)
class ModelFacts:
    """Facts about a model that is not loaded, see `Model`; None: not known yet, or there are no weights.

    Args:
        encoder: why it cannot continue texts, though it reads them; None: it can.
        outputs: of its classifier head; 0: it has none.
        sampling: the values that its file asks for, by llama.cpp's names (general.sampling.*).
        refusal: why it will not load. What an encoder is asked for is told before that, see `check_room`.
        no_rollback: why it cannot drop the tokens of a wrong draft.
        drafts_change_bits: why a text may depend on its drafts.
        attention: what its file says of that; None: there is no file.
        tokens: reads the texts of its tokens.
        adapters: the content of each of its adapters, by name; with their scales.
        adapter_bytes: of all adapters, in memory.
        images: its vision encoder, if it has one.
        no_images: why it reads no images, where it has none, and what to do.
        placement: where its layers will be; with model.gpu_layers=auto by the memory that is free now.
        on_devices: what it will take of them; None: nothing.
    """

    fingerprint: str
    n_ctx_train: int | None
    n_embd: int | None = None
    sizes: ModelSizes | None = None
    encoder: str | None = None
    outputs: int = 0
    chat_template: str | None = None
    tool_template: str | None = None
    sampling: Mapping[str, str] = field(default_factory=dict)
    refusal: str | None = None
    no_rollback: str | None = None
    drafts_change_bits: str | None = None
    attention: Attention | None = None
    tokens: Callable[[], Sequence[bytes]] | None = field(default=None, compare=False)
    adapters: Mapping[str, str] = field(default_factory=dict)
    adapter_bytes: int = 0
    images: ImageFacts | None = None
    no_images: str = "the model reads no images"
    placement: LayerPlacement = ON_CPU
    on_devices: DeviceSizes | None = field(default=None, compare=False)


def identity(settings: ModelSettings) -> dict[str, Any]:
    """Return what a fingerprint has of a model: its content, that of its vision encoder, and the type that its weights
    were converted to. See inspect_model."""
    weights, facts = settings.converts_to, inspect_model(settings)
    images = {} if facts.images is None else {"mmproj": facts.images.fingerprint}
    return {"model": facts.fingerprint} | ({} if weights is None else {"weights": weights}) | images


def identity_with_adapters(settings: ModelSettings) -> dict[str, Any]:
    """Return `identity`, and the content of each adapter, for what computes with the model."""
    adapters = {f"adapter {name}": content for name, content in inspect_model(settings).adapters.items()}
    return identity(settings) | adapters


def inspect_model(settings: ModelSettings) -> ModelFacts:
    """Run the checks that need no loading, with the function `inspect` of the loader's module. Raises ConfigError if
    the loader or the model file cannot work."""
    inspect: Callable[[ModelSettings], ModelFacts] | None = getattr(_module(settings), "inspect", None)
    if not callable(inspect):
        raise ConfigError(
            f"model.loader='{settings.loader}' is no loader: its module has no function inspect(settings)"
        )
    facts = inspect(settings)
    if facts.refusal is not None and facts.encoder is None:
        raise InputError(facts.refusal)
    return facts


def gpus_of(settings: ModelSettings, environment: Mapping[str, str]) -> Iterable[Gpu] | None:
    """Return the GPUs that a process with `environment` finds, by the function `gpus` of the loader's module; None
    where it has no such function. Raises ConfigError if they cannot be asked for."""
    ask: Callable[[Mapping[str, str]], Iterable[Gpu]] | None = getattr(_module(settings), "gpus", None)
    return ask(environment) if callable(ask) else None


def _module(settings: ModelSettings) -> ModuleType | None:
    return sys.modules.get(getattr(loader(settings), "__module__", None) or "")


def template_of(settings: ModelSettings, *, tools: bool = False) -> str | None:
    """Return the chat template of a model that need not be loaded; None if it has none. `tools`: that for conversations
    with tools.

    Raises:
        ConfigError: see inspect_model.
        InputError: the file of `model.chat_template` cannot be read.
    """
    if settings.chat_template is not None:
        return read_text(settings.chat_template, "model.chat_template")
    facts = inspect_model(settings)
    return (tools and facts.tool_template) or facts.chat_template


def check_options(settings: ModelSettings, known: Iterable[str]) -> None:
    """Raise ConfigError if `model.options` has one that is not in `known`."""
    known = sorted(known)
    if unknown := sorted(settings.options.keys() - set(known)):
        raise ConfigError(
            f"model.options has '{unknown[0]}', which the loader {settings.loader} does not know;"
            f" it knows {', '.join(known) or 'none'}"
        )


def loader(settings: ModelSettings) -> Callable[[ModelSettings], Model]:
    """Return the function that `settings.loader` names; raise ConfigError if there is none."""
    module, _, name = settings.loader.partition(":")
    try:
        load: Callable[[ModelSettings], Model] = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError, TypeError) as error:  # the last two: the value is no module name
        raise ConfigError(f"model.loader='{settings.loader}' cannot be imported: {error}") from error
    return load


def close_model(model: Model) -> None:
    """Free the model's resources, if it has any."""
    getattr(model, "close", lambda: None)()
