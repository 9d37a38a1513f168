"""Reads an adapter in a GGUF file, as llama.cpp's convert_lora_to_gguf.py writes it.

llama.cpp ends the process for some of what is refused here, and says nothing of the rest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from operators.llama.adapters.peft_config import CONFIG, scales_beside
from operators.llama.adapters.targets import AdapterBase, check_pair, shape_of
from operators.llama.adapters.tensors import TYPES, AdapterMatrix, AdapterSource, LoraPair
from operators.llama.gguf_check import ADAPTER, ARCHITECTURE, FLOAT32, OTHER_TYPES, STRING, TYPE, Contents, check_gguf
from pipeline.api.errors import InputError

ALPHA = b"adapter.lora.alpha"
INVOCATION = b"adapter.alora.invocation_tokens"
SUFFIXES = (".lora_a", ".lora_b")
_CONVERT = "convert it again with llama.cpp's convert_lora_to_gguf.py"


def read_adapter_file(source: AdapterSource, base: AdapterBase) -> dict[str, LoraPair]:
    """Return the pairs of the adapter in a GGUF file. Raises InputError if it is damaged, no LoRA adapter, or none for
    the base."""
    try:
        contents = check_gguf(source.path, model=False)
    except InputError as error:
        raise InputError(f"model.adapters.{source.name}: {error}") from error
    _check_keys(source, base, contents)
    alpha = _alpha(source, contents)
    found = _matrices(source, contents)
    pairs = {}
    for target, halves in found.items():
        a, b = (halves.get(suffix) for suffix in SUFFIXES)
        if a is None or b is None:
            missing = target + SUFFIXES[a is not None]
            raise source.error(f"lacks {missing}, the other half of what it has for {target}: {_CONVERT}")
        check_pair(source, base, target, a, b)
        factor = alpha / b.shape[-1] if alpha else 1.0
        pairs[target] = LoraPair(target, a, b, source.scale * factor)
    return pairs


def _check_keys(source: AdapterSource, base: AdapterBase, contents: Contents) -> None:
    texts = {}
    for key in (TYPE, ADAPTER, ARCHITECTURE):
        value = contents.values.get(key)
        if value is not None and (value.kind != STRING or value.n_items is not None):
            raise source.error(f"has {key.decode()} of type {value.kind}, and it must be a text: {_CONVERT}")
        texts[key] = value.scalar if value is not None and isinstance(value.scalar, bytes) else b""
    architecture = texts[ARCHITECTURE].decode("utf-8", "replace")
    if architecture == "controlvector":
        raise source.error("is a control vector, which is not supported; adapters are of type lora")
    if texts[TYPE] != b"adapter":
        said = texts[TYPE].decode("utf-8", "replace")
        what = f"general.type is {said!r}" if said else "it has no general.type"
        if texts[TYPE] in (b"", b"model") and not any(name.endswith(b".lora_a") for name in contents.tensors):
            what += "; it is a whole model, for model.path"
        elif texts[TYPE] in OTHER_TYPES:
            what += ", as of a part of a model or what one was made with"
        raise source.error(f"is no adapter ({what}); give an adapter, or {_CONVERT}")
    if texts[ADAPTER] != b"lora":
        said = texts[ADAPTER].decode("utf-8", "replace")
        raise source.error(f"is no LoRA adapter (adapter.type is {said!r}); only lora is supported")
    if architecture != base.architecture:
        raise source.error(
            f"is for the architecture {architecture or 'that it does not name'}, and the base {base.path} is of"
            f" {base.architecture}: take the base that it was trained for; a node or step with another model than the"
            " job's says adapters: null in its model"
        )
    if INVOCATION in contents.values:
        raise source.error(
            f"has {INVOCATION.decode()}: it is an activated LoRA (aLoRA), which acts only behind these tokens, and that"
            " is not supported"
        )


def _alpha(source: AdapterSource, contents: Contents) -> float:
    """Return alpha: 0 if the scale is used as it is."""
    value = contents.values.get(ALPHA)
    if value is None:
        return 0.0
    if value.kind != FLOAT32 or value.n_items is not None or not isinstance(value.scalar, float):
        raise source.error(f"has {ALPHA.decode()} of type {value.kind}, and it must be a float32: {_CONVERT}")
    if not math.isfinite(value.scalar):
        raise source.error(f"has {ALPHA.decode()}={value.scalar}: {_CONVERT}")
    config = source.path.with_name(CONFIG)
    if config.is_file():
        _check_converted(source, config, value.scalar)
    return value.scalar


def _check_converted(source: AdapterSource, config: Path, alpha: float) -> None:
    """Raise InputError if the file was made of a folder of PEFT whose scales the converter does not know."""
    try:
        said = json.loads(config.read_bytes())
    except ValueError:
        return
    if (key := scales_beside(said)) and alpha == said.get("lora_alpha"):
        raise source.error(
            f"lies beside {config.name} with {key}, which convert_lora_to_gguf.py does not know, so its scale is wrong:"
            f" give the folder, {source.path.parent}"
        )


def _matrices(source: AdapterSource, contents: Contents) -> Mapping[str, dict[str, AdapterMatrix]]:
    """Return the matrices by target and suffix, with their places in the file."""
    alignment = contents.values.get(b"general.alignment")
    step = int(alignment.scalar) if alignment and isinstance(alignment.scalar, int) else 32
    start, at = -(-contents.end // step) * step, 0
    size = source.path.stat().st_size
    found: dict[str, dict[str, AdapterMatrix]] = {}
    for key, tensor in contents.tensors.items():
        name = key.decode("utf-8", "replace")
        target, suffix = name[: -len(SUFFIXES[0])], name[-len(SUFFIXES[0]) :]
        if suffix not in SUFFIXES:
            what = "a trained norm, which llama.cpp skips" if name.endswith("_norm.weight") else "no part of a LoRA"
            raise source.error(
                f"has the tensor {name}, {what}: train the adapter without it, or merge it into its base with PEFT's"
                " merge_and_unload and convert the result"
            )
        if tensor.kind not in TYPES:
            said = next((kind.name for kind in GGMLQuantizationType if kind == tensor.kind), tensor.kind)
            raise source.error(f"has {name} in {said}, and {', '.join(TYPES.values())} are read: {_CONVERT}")
        shape = shape_of(tensor.lengths if len(tensor.lengths) > 1 else (*tensor.lengths, 1))
        values, block = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.kind)]
        if shape[-1] % values:
            raise source.error(f"has {name} with rows of {shape[-1]}, no multiple of {values}: {_CONVERT}")
        n_bytes = math.prod(shape) // values * block
        if tensor.offset != at or start + at + n_bytes > size:
            raise source.error(
                f"has {n_bytes:,} bytes of {name} at byte {start + tensor.offset:,}, where they cannot be (it has"
                f" {size:,} in all): it was not copied or fetched whole, or is damaged; copy, fetch or {_CONVERT}"
            )
        at += -(-n_bytes // step) * step
        found.setdefault(target, {})[suffix] = AdapterMatrix(
            name, source.path, tensor.kind, start + tensor.offset, shape
        )
    if not found:
        raise source.error(f"has no tensors, so it would have no effect: {_CONVERT}")
    return found
