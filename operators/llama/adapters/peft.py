"""Reads an adapter in a folder of PEFT: names and orders of rows as llama.cpp's converter of models makes them."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import gguf

from operators.llama.adapters.peft_config import CONFIG, MERGE, read_peft_config
from operators.llama.adapters.safe_tensors import read_safe_tensors
from operators.llama.adapters.targets import AdapterBase, check_pair
from operators.llama.adapters.tensors import EMBEDDINGS, AdapterMatrix, AdapterSource, LoraPair

WEIGHTS, PICKLED = "adapter_model.safetensors", "adapter_model.bin"
PLAIN = ("qwen2", "qwen2moe", "qwen3", "qwen3moe", "gemma", "gemma2", "gemma3", "phi3", "olmo2", "gpt-oss")
"""Architectures whose matrices llama.cpp has as transformers does."""
INTERLEAVED = ("llama", "granite", "mistral3", "smollm3")
"""Those whose rows of queries and keys it has in another order. Mistral and Mixtral are llama, too."""
_HALF = re.compile(r"(.+)\.lora_(?:([AB])(?:\.default)?\.weight|embedding_([AB])(?:\.default)?)")
_CONVERTER = "convert the folder with llama.cpp's convert_lora_to_gguf.py, and give that file"
_UNPICKLE = (
    'python -c "import torch, safetensors.torch as s;'
    f" s.save_file(torch.load('{PICKLED}', weights_only=True, map_location='cpu'), '{WEIGHTS}')\""
)


def read_peft(source: AdapterSource, base: AdapterBase) -> dict[str, LoraPair]:
    """Return the pairs of the adapter in a folder. Raises InputError if it is damaged, no plain LoRA, or none for the
    base."""
    config = read_peft_config(source)
    known = {*PLAIN, *INTERLEAVED} & set(gguf.MODEL_ARCH_NAMES.values())
    if base.architecture not in known:
        raise source.error(
            f"is a folder of PEFT for a base of the architecture {base.architecture}, whose names are not known here:"
            f" {_CONVERTER}"
        )
    path = source.path / WEIGHTS
    if not path.is_file():
        pickled = f"; {PICKLED} becomes it with: {_UNPICKLE}" if (source.path / PICKLED).is_file() else ""
        raise source.error(f"is a folder of PEFT without {WEIGHTS}{pickled}")
    pairs: dict[str, LoraPair] = {}
    for module, halves in _modules(source, base, read_safe_tensors(source, path)).items():
        target = _target(source, base, module)
        a, b = (halves.get(half) for half in "AB")
        if a is None or b is None:
            there = next(iter(halves.values()))
            raise source.error(f"has {there.label} without its other half: save the adapter again", path)
        if target in pairs:
            raise source.error(f"has {a.label} and {pairs[target].stored_a.label}, both for {target}", path)
        a = replace(a, transposed=target == EMBEDDINGS)
        check_pair(source, base, target, a, b)
        if b.shape[-1] != config.rank_of(module):
            raise source.error(
                f"has {b.label} of rank {b.shape[-1]}, and {CONFIG} says {config.rank_of(module)}: take the"
                " configuration that was saved with it",
                path,
            )
        b = replace(b, heads=_heads(source, base, module))
        pairs[target] = LoraPair(target, a, b, source.scale * config.factor(module))
    if not pairs:
        raise source.error("has no tensors of a LoRA, so it would have no effect: save the adapter again", path)
    return pairs


def _modules(
    source: AdapterSource, base: AdapterBase, tensors: Mapping[str, AdapterMatrix]
) -> Mapping[str, dict[str, AdapterMatrix]]:
    """Return the two matrices of each module, by its name in the base."""
    found: dict[str, dict[str, AdapterMatrix]] = {}
    for name, tensor in tensors.items():
        half = _HALF.fullmatch(name)
        if half is not None:
            module = half[1].removeprefix("base_model.model.")
            found.setdefault(module, {})[half[2] or half[3]] = tensor
        elif not _is_frozen(base, name, tensor):
            if "lora_magnitude_vector" in name:
                what = "a magnitude of a DoRA"
            elif name.endswith("bias"):
                what = "a trained bias (bias is not none)"
            else:
                what = "a whole trained weight (modules_to_save, or embeddings that were resized)"
            raise source.error(
                f"has {name}, {what}: train without it, or merge the adapter{MERGE}", source.path / WEIGHTS
            )
    return found


def _is_frozen(base: AdapterBase, name: str, tensor: AdapterMatrix) -> bool:
    """Whether it is a copy of the base's embeddings, which PEFT saves beside an adapter for them."""
    module = name.removeprefix("base_model.model.").removesuffix(".base_layer.weight")
    target = _names(base).get_name(module.replace("language_model.", ""))
    return name.endswith(".base_layer.weight") and tensor.shape == base.tensors.get(f"{target}.weight")


def _target(source: AdapterSource, base: AdapterBase, module: str) -> str:
    """Return the name of the base's tensor for a module of transformers."""
    names, usual = _names(base), module.replace("language_model.", "")
    name = names.get_name(usual) or names.get_name(f"model.{usual}")
    if name is None:
        raise source.error(
            f"has an adapter for {module}, which has no counterpart in a GGUF of the architecture {base.architecture}:"
            f" {_CONVERTER}, or train without this module",
            source.path / WEIGHTS,
        )
    return f"{name}.weight"


def _heads(source: AdapterSource, base: AdapterBase, module: str) -> int:
    """Return the number of heads whose rows are put in another order; 0 if none are."""
    if base.architecture not in INTERLEAVED or not module.endswith((".q_proj", ".k_proj")):
        return 0
    heads = base.numbers.get("attention.head_count", 0)
    if module.endswith(".k_proj"):
        heads = base.numbers.get("attention.head_count_kv", heads)
    if not heads:
        raise source.error(f"is a folder of PEFT for a base whose layers have different heads: {_CONVERTER}")
    return int(heads)


def _names(base: AdapterBase) -> Any:
    return _names_of(base.architecture, int(base.numbers.get("block_count", 0)))


@functools.cache
def _names_of(architecture: str, layers: int) -> Any:
    """Return gguf's map from names of transformers to those of GGUF files."""
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    return gguf.get_tensor_name_map(kind, layers)
