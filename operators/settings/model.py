"""The config groups `model` and `decode`: a model, and the way to make a completion with it."""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from operators.settings import layers
from pipeline.api.errors import ConfigError
from pipeline.api.keys import (
    Rule,
    check,
    check_values,
    in_data,
    maps,
    not_in_data,
    one_of,
    read_by,
    when_given,
)

GIVEN_TO_TEMPLATES = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
"""What Render gives to every chat template; no argument of `template_kwargs`."""
TOOL_FORMATS = ("hermes", "tags", "llama3", "mistral", "mistral_args", "harmony", "gemma", "function_gemma")
"""Those of operators/prompts/tool_formats.py."""
WEIGHTS = (
    *("f32", "f16", "bf16", "q8_0", "q6_k", "q5_1", "q5_k_m", "q5_k_s", "q5_0", "q4_1", "q4_k_m", "q4_k_s", "q4_0"),
    *("iq4_nl", "iq4_xs", "q3_k_l", "q3_k_m", "q3_k_s", "q2_k"),
)
"""Types of weights that a model file can be converted to, wide ones first: those that llama.cpp makes of a file alone
(others need an importance matrix, or ternary weights)."""
AS_IS = "as_is"
TEXT, PARSE = "text", "parse"
AUTO = layers.AUTO
KERNELS = (AUTO, "llama.cpp")
_WANTED = "an ISO date as 2026-01-31; in a job file ${now:%Y-%m-%d} is the day on which the run began"
_KWARGS = maps(
    "names of the chat template's variables to values, as {enable_thinking: false}",
    lambda pair: isinstance(pair[0], str),
)
MOST_ADAPTERS = 64
BASE = "base"
"""What a node or a row names to have none of `model.adapters`."""
_PLACE_KEYS = {"path", "repo", "file", "revision"}


def _is_place(given: Any) -> bool:
    """Return True if `given` can say where a file beside the model's is: a path, or a mapping."""
    if isinstance(given, str):
        return bool(given)
    if not isinstance(given, Mapping) or not given.keys() <= _PLACE_KEYS:
        return False
    of_hub = [given[key] for key in ("revision", "file") if given.get(key) is not None]
    if of_hub and not ("repo" in given and all(isinstance(value, str) for value in of_hub)):
        return False
    return sum(isinstance(given.get(key), str) for key in ("path", "repo")) == 1


def _is_adapter(pair: tuple[Any, Any]) -> bool:
    """Return True if `pair` can be a name and where its adapter is."""
    name, given = pair
    if not isinstance(name, str) or not re.fullmatch(r"[\w.-]+", name) or name == BASE:
        return False
    scale = given.get("scale", 1.0) if isinstance(given, Mapping) else 1.0
    place = {key: given[key] for key in given if key != "scale"} if isinstance(given, Mapping) else given
    return _is_place(place) and type(scale) in (int, float) and math.isfinite(scale)


_ADAPTER = (
    "its name has letters, digits, _ . - and is not base (in quotes, if YAML reads a number), and it is a GGUF file or"
    " PEFT folder, as a path or {path, scale}, or one on the Hub, {repo, revision, file, scale}; scale is a number"
)
_ADAPTERS: Rule = (
    f"it maps up to {MOST_ADAPTERS} names to files, as {{support: {{path: a.gguf, scale: 1.0}}}}, or is null",
    lambda v: v is None or (isinstance(v, dict) and len(v) <= MOST_ADAPTERS),
)
_MMPROJ: Rule = (
    "it is the path of a GGUF file (with model=hub: the name of a file of the model's repository), {path}, or another"
    " one on the Hub, {repo, revision, file}, or null",
    lambda v: v is None or (_is_place(v) and (isinstance(v, str) or "repo" not in v or bool(v.get("file")))),
)
_IMAGE_TOKENS: Rule = (
    "it is {min, max} or one of them, whole numbers from 1, min not above max, or null",
    lambda v: v is None or (isinstance(v, Mapping) and _are_limits(v)),
)


def _are_limits(given: Mapping[str, Any]) -> bool:
    """Return True if `given` can be the fewest and the most tokens of an image."""
    named = bool(given) and given.keys() <= {"min", "max"}
    whole = all(type(value) is int and value > 0 for value in given.values())
    return named and whole and given.get("min", 1) <= given.get("max", math.inf)


_TAGS: Rule = (
    "two strings, [] for none, or null to read them off the chat template",
    lambda tags: not tags or (len(tags) == 2 and bool(tags[1])),
)


@dataclass
class ModelSettings:
    """The model (`model`).

    Args:
        loader: `module:function` that makes the Model from these settings.
        path: the GGUF file; of a split model (NAME-00001-of-00003.gguf) the first, the others beside it.
        repo, file, revision: with model=hub, the GGUF file of a repository on the Hugging Face Hub at a commit or tag.
        chat_template: a Jinja template file instead of the one in the GGUF.
        system: system prompt that is put before every conversation that has none.
        template_kwargs: arguments of the chat template, as {enable_thinking: false}.
        reasoning_tags: the two tags between which the model writes its reasoning; null: read off the chat template,
            [] for none. With ["", TAG] all that comes before TAG is reasoning.
        tool_format: how the model writes tool calls (docs/chat.md has the names); null: read off the chat template.
        special_tokens_in_text: how the name of a control token (`<|im_end|>`) in the text of a row is read: text, as
            any other text; parse, as that token. What a chat template or a template of the job writes itself is always
            parsed.
        date: ISO date that a chat template gets when it asks for today's; null: it is told that there is none.
        weights: the type that the weights are converted to, once, into a cache (f32, f16, bf16, q8_0, q6_k, q5_1,
            q5_k_m, q5_k_s, q5_0, q4_1, q4_k_m, q4_k_s, q4_0, iq4_nl, iq4_xs, q3_k_l, q3_k_m, q3_k_s, q2_k); as_is:
            none. See docs/weights.md.
        adapters: LoRA adapters of the model, by name: a GGUF file or PEFT folder each, as {support: {path: a.gguf,
            scale: 1.0}}, or {repo, revision, file} on the Hub. `adapter` of a node or step, or `data.adapter_column`,
            says who gets which; all others get the model as it is. See docs/adapters.md.
        mmproj: the GGUF file of the model's vision encoder, for images: a path; with model=hub the name of a file of
            the model's repository; or {repo, revision, file} of another. See docs/models.md.
        image_tokens: fewest and most tokens of an image, {min, max}, for models of which an image has as many as its
            size asks for (Qwen); null: those of llama.cpp.
        gpu_layers: layers to compute on devices (GPUs): a number, from the last one on (0: the CPU computes), all, or
            auto: as many as fit into the memory that is free there; without a device the CPU. docs/devices.md has this
            and the keys below.
        device: the devices to use, by name, as [CUDA0, CUDA1] (`python -m pipeline doctor` lists them); null: all GPUs;
            none: the CPU.
        split_mode: layer (each device has layers of the model) or none (one of them has all: `main_gpu`).
        main_gpu: the number, from 0, of the device that split_mode=none takes.
        tensor_split: what share of the layers each device has, as [3, 1]; null: by their memory.
        cpu_moe: leave the experts of all layers to the CPU, and only the rest to devices.
        n_cpu_moe: the same for the experts of so many layers, from the first one on.
        override_tensor: tensors that are to be elsewhere than their layer, as {REGEX: DEVICE}, CPU among the devices.
        kernels: see runtime.kernels, whose value it takes in a job.
        room: for what model.gpu_layers=auto leaves memory, besides the weights: the values of `runtime`, which it takes
            in a job.
        probe: try the file, once, in a process of its own that may die, while the run is planned. See docs/models.md.
        options: further keyword arguments for the loader; one that it does not know is an error.
    """

    loader: str = in_data("operators.llama.model:load", local=False)
    path: str | None = in_data(None, local=True)
    repo: str | None = in_data(None, local=True)
    file: str | None = in_data(None, local=True)
    revision: str | None = in_data(None, local=True)
    chat_template: str | None = in_data(None, local=True, prompts=True)
    system: str | None = in_data(None, local=False, prompts=True)
    template_kwargs: Any = when_given(None, *_KWARGS, local=False, prompts=True)
    reasoning_tags: list[str] | None = when_given(None, *_TAGS, local=True, prompts=True)
    tool_format: str | None = when_given(None, *one_of(TOOL_FORMATS, None), local=True, prompts=True)
    special_tokens_in_text: str = in_data(TEXT, *one_of((TEXT, PARSE)), local=False, prompts=True)
    date: str | None = when_given(None, *read_by(datetime.date.fromisoformat, _WANTED), local=True, prompts=True)
    weights: str = not_in_data(
        AS_IS, *one_of((AS_IS, *WEIGHTS)), local=True
    )  # the content of the converted file counts
    adapters: Any = not_in_data(None, *_ADAPTERS, local=True)  # the content counts
    mmproj: Any = not_in_data(None, *_MMPROJ, local=True)  # the content counts
    image_tokens: Any = when_given(None, *_IMAGE_TOKENS, local=True)
    # Where layers are is told by what computes (Identity.device), and only where it is not the CPU.
    gpu_layers: Any = in_data(layers.AUTO, *layers.GPU_LAYERS, local=True, told={layers.AUTO: 0})
    device: Any = not_in_data(None, *layers.DEVICE, local=True)
    split_mode: str = not_in_data(layers.LAYERS, *layers.SPLIT_MODE, local=True)
    main_gpu: int | None = not_in_data(None, *layers.MAIN_GPU, local=True)
    tensor_split: list[float] | None = not_in_data(None, *layers.TENSOR_SPLIT, local=True)
    cpu_moe: bool = not_in_data(False, local=True)
    n_cpu_moe: int = not_in_data(0, *layers.N_CPU_MOE, local=True)
    override_tensor: Any = not_in_data(None, *layers.OVERRIDE_TENSOR, local=True)
    kernels: str = not_in_data(AUTO, *one_of(KERNELS), local=False)  # what computes is told apart by its identity
    room: Any = not_in_data(None, local=False, loads=False)
    probe: bool = not_in_data(True, local=True)
    options: dict[str, Any] = in_data(dict, local=True)

    def __post_init__(self) -> None:
        check_values(self, "model")
        for name, given in (self.adapters or {}).items():
            check(_is_adapter((name, given)), f"model.adapters.{name}", given, _ADAPTER)
        if taken := sorted((self.template_kwargs or {}).keys() & GIVEN_TO_TEMPLATES):
            instead = "write data.tools" if taken[0] == "tools" else "leave it out"
            raise ConfigError(f"model.template_kwargs has '{taken[0]}', which Render gives to the template; {instead}")

    @classmethod
    def kind_of(cls, values: Mapping[str, Any]) -> type[ModelSettings]:
        """Return the class that has the keys of `values`: a model with a `url` is a server's."""
        from operators.settings.endpoint import EndpointSettings  # it is made of this class

        if "url" in values:
            return EndpointSettings
        return ModelSettings if "path" in values or "repo" in values else cls

    @property
    def converts_to(self) -> str | None:
        """The type to convert the weights to; None for none."""
        return None if self.weights == AS_IS else self.weights

    @property
    def date_given(self) -> datetime.date | None:
        """`date` as a date."""
        return None if self.date is None else datetime.date.fromisoformat(self.date)


@dataclass
class DecodeSettings:
    """The way to make a completion (`decode`). `strategy` is a class, as `module:Class`."""

    strategy: str = "operators.engine.strategies.autoregressive:Autoregressive"

    @property
    def draft_model(self) -> ModelSettings | None:
        """The model that makes drafts; None for none."""
        return None

    def identity(self, *, exact: bool) -> dict[str, Any]:
        """Return everything in it that can change a text, for content keys. `exact`: bits of a row's logits do not
        depend on what else a call computes."""
        return asdict(self)
