"""Folders of PEFT: the scale of each module, the order of rows, and what is refused by name."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from operators.llama.adapters.targets import read_base
from operators.llama.adapters.tensors import EMBEDDINGS, HEAD
from pipeline.api.errors import InputError
from tests.operators.llama.adapters.adapter_files import (
    FAMILIES,
    LLAMA,
    QWEN3,
    Pair,
    drawn,
    peft_names,
    read,
    write_adapter,
    write_peft,
    write_safe_tensors,
)

Q, DOWN = "blk.1.attn_q.weight", "blk.0.ffn_down.weight"
Q_PROJ, DOWN_PROJ = "model.layers.1.self_attn.q_proj", "model.layers.0.mlp.down_proj"
PHI3 = FAMILIES / "phi3.gguf"


def pair(target: str = Q, base: Path = QWEN3, rank: int = 4) -> Pair:
    return drawn(read_base(base), [target], rank)[target]


@pytest.mark.parametrize(
    ("config", "factor"),
    [
        ({}, 2),
        ({"use_rslora": True}, 4),
        ({"alpha_pattern": {"q_proj": 2}}, 0.5),
        ({"alpha_pattern": {"layers.[12].self_attn.q_proj": 2, "q_proj": 6}}, 0.5),
        ({"alpha_pattern": {"proj": 2, "layers.0.self_attn.q_proj": 6}}, 2),
        ({"alpha_pattern": {"q_proj": 2}, "use_rslora": True}, 1),
        ({"r": 16, "rank_pattern": {"self_attn.q_proj": 4}}, 2),
    ],
)
def test_a_module_has_its_scale(tmp_path, config, factor):
    a, b = pair()
    adapter = read(write_peft(tmp_path / "p", peft_names(Q_PROJ, (a, b)), **config), QWEN3, scale=0.5)
    assert list(adapter.tensors) == [Q]
    np.testing.assert_array_equal(adapter.tensors[Q].a, a)
    np.testing.assert_array_equal(adapter.tensors[Q].b, b * np.float32(0.5 * factor))


@pytest.mark.parametrize("kind", ["F16", "BF16"])
def test_narrow_types_are_read(tmp_path, kind):
    halves = [quants.quantize(half, GGMLQuantizationType[kind]) for half in pair()]
    stored = [half.view(np.uint16) if kind == "BF16" else half for half in halves]
    tensors = dict(zip(peft_names(Q_PROJ, pair()), stored, strict=True))
    found = read(write_peft(tmp_path / "p", tensors, lora_alpha=4), QWEN3).tensors[Q]
    for half, values in zip(halves, (found.a, found.b), strict=True):
        np.testing.assert_array_equal(values, quants.dequantize(half, GGMLQuantizationType[kind]))


@pytest.mark.parametrize(("module", "target", "heads"), [("q_proj", "attn_q", 4), ("k_proj", "attn_k", 2)])
def test_rows_of_queries_and_keys_are_in_the_order_of_llama_cpp(tmp_path, module, target, heads):
    """Of a head of 2n rows transformers turns i and i + n together, llama.cpp 2i and 2i + 1."""
    target = f"blk.0.{target}.weight"
    a, b = pair(target, LLAMA)
    tensors = peft_names(f"model.layers.0.self_attn.{module}", (a, b))
    found = read(write_peft(tmp_path / "p", tensors, lora_alpha=4), LLAMA).tensors[target].b
    size = len(b) // heads
    for head in range(heads):
        for i in range(size // 2):
            for j in range(2):
                np.testing.assert_array_equal(found[head * size + 2 * i + j], b[head * size + j * size // 2 + i])


@pytest.mark.parametrize(
    ("base", "module", "target"),
    [
        (LLAMA, "lm_head", HEAD),
        (QWEN3, "model.language_model.layers.1.self_attn.q_proj", Q),
        (QWEN3, "layers.1.self_attn.q_proj", Q),
        (PHI3, "model.layers.0.self_attn.qkv_proj", "blk.0.attn_qkv.weight"),
        (PHI3, "model.layers.0.mlp.gate_up_proj", "blk.0.ffn_up.weight"),
        (LLAMA, "model.layers.0.mlp.gate_proj", "blk.0.ffn_gate.weight"),
    ],
)
def test_names_are_those_of_the_base(tmp_path, base, module, target):
    tensors = peft_names(module, pair(target, base))
    found = read(write_peft(tmp_path / "p", tensors, alpha_pattern={module: 12}), base).tensors
    assert {name: each.scale for name, each in found.items()} == {target: 3}, "patterns have the names of the module"


def test_embeddings_are_read_and_their_frozen_copies_are_no_part(tmp_path):
    """PEFT saves the base's embeddings beside an adapter for them."""
    a, b = pair(EMBEDDINGS, LLAMA)
    start = "base_model.model.model.embed_tokens"
    tensors = {f"{start}.lora_embedding_A": a.T, f"{start}.lora_embedding_B": b}
    copy = np.zeros(read_base(LLAMA).tensors[EMBEDDINGS], np.float32)
    folder = write_peft(tmp_path / "p", tensors | {f"{start}.base_layer.weight": copy}, lora_alpha=4)
    found = read(folder, LLAMA).tensors
    assert list(found) == [EMBEDDINGS]
    np.testing.assert_array_equal(found[EMBEDDINGS].a, a)
    np.testing.assert_array_equal(found[EMBEDDINGS].b, b)
    write_peft(folder, tensors | {f"{start}.base_layer.weight": copy[:-1]})
    with pytest.raises(InputError, match=r"embed_tokens\.base_layer\.weight, a whole trained weight.*resized"):
        read(folder, LLAMA)


class BadFolder(NamedTuple):
    """How a bad folder is written, and the reason that is given."""

    reason: str
    config: Mapping[str, Any] = {}
    more: Mapping[str, np.ndarray] = {}
    tensors: Mapping[str, np.ndarray] | None = None
    base: Path = QWEN3
    spoil: Callable[[Path], object] | None = None


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


def header(edit: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Write the weights with a header that `edit` changes."""
    return lambda folder: write_safe_tensors(folder / WEIGHTS, peft_names(Q_PROJ, pair()), edit)


def cut(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def pickled(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "adapter_model.bin")


WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
LORA_B = f"base_model.model.{Q_PROJ}.lora_B.weight"
BAD = {
    "no configuration": BadFolder("a folder without adapter_config.json", spoil=lambda f: (f / CONFIG).unlink()),
    "no JSON": BadFolder("cannot be read", spoil=cut(CONFIG, lambda text: text[:-1])),
    "a list": BadFolder("it is no JSON object", spoil=cut(CONFIG, lambda text: b"[]")),
    "no r": BadFolder("without 'r'", spoil=cut(CONFIG, lambda text: text.replace(b'"r"', b'"R"'))),
    "r 0": BadFolder("a rank is below 1", {"r": 0}),
    "alpha infinite": BadFolder("alpha is NaN or infinite", {"lora_alpha": math.inf}),
    "r infinite": BadFolder("cannot be read", {"r": math.inf}),
    "a pattern that is no table": BadFolder("cannot be read", {"rank_pattern": [4]}),
    "no pattern": BadFolder("cannot be read", {"alpha_pattern": {"(": 3}}),
    "another type": BadFolder("peft_type=IA3, and only LORA", {"peft_type": "IA3"}),
    "DoRA": BadFolder("use_dora=True: it is a DoRA", {"use_dora": True}),
    "DoRA in the file": BadFolder(
        "lora_magnitude_vector.*magnitude of a DoRA", more={f"base_model.model.{Q_PROJ}.lora_magnitude_vector": ones(4)}
    ),
    "biases": BadFolder("q_proj.bias, a trained bias", {"bias": "all"}, {f"base_model.model.{Q_PROJ}.bias": ones(128)}),
    "lora_bias": BadFolder("lora_bias=True", {"lora_bias": True}),
    "saved modules": BadFolder(r"modules_to_save=\['lm_head'\]: .*merge_and_unload", {"modules_to_save": ["lm_head"]}),
    "a trained head": BadFolder("a whole trained weight", more={"base_model.model.lm_head.weight": ones(4, 4)}),
    "a trained norm": BadFolder("a whole trained weight", more={"base_model.model.model.norm.weight": ones(4)}),
    "tokens": BadFolder("trainable_token_indices=", {"trainable_token_indices": [1]}),
    "experts": BadFolder("target_parameters=", {"target_parameters": ["mlp.experts.down_proj"]}),
    "repeated layers": BadFolder("layer_replication=", {"layer_replication": [[0, 1]]}),
    "blocks": BadFolder("use_bdlora=.*merge_and_unload", {"use_bdlora": {"nblocks": 2}}),
    "Conv1D": BadFolder("fan_in_fan_out=True", {"fan_in_fan_out": True}),
    "aLoRA": BadFolder("activated LoRA", {"alora_invocation_tokens": [1]}),
    "PiSSA": BadFolder(
        "init_lora_weights=pissa_niter_4, which changed the base", {"init_lora_weights": "pissa_niter_4"}
    ),
    "pickled": BadFolder(r"without adapter_model\.safetensors; .*python -c .*weights_only=True", spoil=pickled),
    "no weights": BadFolder(r"without adapter_model\.safetensors", spoil=lambda folder: (folder / WEIGHTS).unlink()),
    "another family": BadFolder("architecture mamba, .*convert_lora_to_gguf", base=FAMILIES / "mamba.gguf"),
    "no counterpart": BadFolder(
        "vision_tower.q_proj, which has no counterpart", more=peft_names("vision_tower.q_proj", pair())
    ),
    "other sizes": BadFolder("which do not fit blk.1.attn_q", tensors=peft_names(Q_PROJ, (ones(4, 32), ones(128, 4)))),
    "fused": BadFolder(
        "no tensor blk.0.attn_q.weight", base=PHI3, tensors=peft_names("model.layers.0.self_attn.q_proj", pair())
    ),
    "another rank": BadFolder("of rank 4, and adapter_config.json says 8", {"r": 8}),
    "half": BadFolder("without its other half", tensors={LORA_B: ones(128, 4)}),
    "nothing": BadFolder("has no tensors of a LoRA", tensors={}),
    "twice": BadFolder("both for blk.1.attn_q", more=peft_names("layers.1.self_attn.q_proj", pair())),
    "tied": BadFolder("embeddings are tied", tensors=peft_names("lm_head", pair())),
    "NaN": BadFolder(
        "NaN or infinite in .*lora_B", tensors=peft_names(Q_PROJ, (ones(4, 64), ones(128, 4) * np.float32("nan")))
    ),
    "I8": BadFolder("in I8, and F32", tensors=peft_names(Q_PROJ, (ones(4, 64).astype(np.int8), ones(128, 4)))),
    "cut": BadFolder("not copied or fetched whole", spoil=cut(WEIGHTS, lambda data: data[:-4])),
    "cut header": BadFolder("ends inside its header", spoil=cut(WEIGHTS, lambda data: data[:90])),
    "longer": BadFolder("has 4 bytes behind", spoil=cut(WEIGHTS, lambda data: data + bytes(4))),
    "no header": BadFolder("no header of safetensors", spoil=cut(WEIGHTS, lambda data: data[:9] + b"}" + data[10:])),
    "no offsets": BadFolder("no header", spoil=header(lambda said: said[LORA_B].pop("data_offsets"))),
    "bytes for another shape": BadFolder(
        "2048 bytes for the shape", spoil=header(lambda said: said[LORA_B].update(shape=[128, 5]))
    ),
    "offsets that overlap": BadFolder(
        "from byte", spoil=header(lambda said: said[LORA_B].update(data_offsets=[0, 2048]))
    ),
    "negative offsets": BadFolder(
        "has no place", spoil=header(lambda said: said[LORA_B].update(data_offsets=[-2048, 0]))
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_it_is_refused_by_name(tmp_path, name):
    bad = BAD[name]
    tensors = peft_names(Q_PROJ, pair()) if bad.tensors is None else bad.tensors
    folder = write_peft(tmp_path / "p", {**tensors, **bad.more}, **bad.config)
    if bad.spoil is not None:
        bad.spoil(folder)
    with pytest.raises(InputError, match=rf"model\.adapters\.support: {folder}.*({bad.reason})"):
        read(folder, bad.base)


def test_a_gguf_beside_a_configuration_whose_scales_its_converter_does_not_know_is_refused(tmp_path):
    folder = write_peft(tmp_path / "p", peft_names(Q_PROJ, pair()), use_rslora=True)
    path = write_adapter(folder / "a.gguf", {Q: pair()}, "qwen3", alpha=8.0)
    with pytest.raises(
        InputError, match=rf"with use_rslora, which convert_lora_to_gguf.py .*give the folder, {folder}"
    ):
        read(path, QWEN3)
    (folder / CONFIG).write_text(json.dumps({"r": 4, "lora_alpha": 8}))
    assert read(path, QWEN3).content == read(folder, QWEN3).content
