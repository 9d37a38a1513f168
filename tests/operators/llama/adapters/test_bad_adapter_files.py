"""GGUF files that are no adapters for their base are refused by name; llama.cpp ends the process for some of them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from gguf import GGUFValueType

from operators.llama.adapters.targets import read_base
from operators.llama.adapters.tensors import EMBEDDINGS, HEAD
from pipeline import PROJECT
from pipeline.api.errors import InputError
from tests.operators.llama.adapters.adapter_files import (
    FAMILIES,
    LLAMA,
    MOE,
    QWEN3,
    STANDARD,
    Pair,
    architecture_of,
    drawn,
    read,
    write_adapter,
)
from tests.operators.llama.gguf_files import copied
from tools.models.vocabularies import MetaValue

Q, UP = "blk.0.attn_q.weight", "blk.0.ffn_up_exps.weight"
DEEPSEEK, GPT_OSS, MAMBA, QWEN2 = (FAMILIES / f"{name}.gguf" for name in ("deepseek2", "gpt-oss", "mamba", "qwen2"))


def one(base: Path = QWEN3, target: str = Q, **change: Callable[[np.ndarray], np.ndarray]) -> dict[str, Pair]:
    """An adapter for one tensor, with its halves changed."""
    ((_, (a, b)),) = drawn(read_base(base), [target]).items()
    as_is: Callable[[np.ndarray], np.ndarray] = np.asarray
    return {target: (change.get("a", as_is)(a), change.get("b", as_is)(b))}


def ones(*shape: int) -> np.ndarray:
    return np.ones(shape, np.float32)


class Bad(NamedTuple):
    """How a bad file is written, and the reason that is given."""

    reason: str
    pairs: Mapping[str, Pair] | None = None
    base: Path = QWEN3
    write: Mapping[str, Any] = {}
    bytes: Callable[[bytes], bytes] | None = None


def number(key: str, add: str = "add_uint32", value: float = 1) -> dict[str, Any]:
    return STANDARD | {key: lambda writer: getattr(writer, add)(key, value)}


def keys(**values: str | None) -> dict[str, Any]:
    given = STANDARD | {key.replace("_", "."): value for key, value in values.items()}
    return {"keys": {key: value for key, value in given.items() if value is not None}}


def alora(writer: Any) -> None:
    writer.add_array("adapter.alora.invocation_tokens", [1, 2])


BAD = {
    "general.type of another type": Bad(r"general\.type of type 4.*a text", write={"keys": number("general.type")}),
    "adapter.type of another type": Bad(r"adapter\.type of type 4.*a text", write={"keys": number("adapter.type")}),
    "alpha u32": Bad(r"adapter\.lora\.alpha of type 4.*float32", write={"keys": number("adapter.lora.alpha")}),
    "alpha f64": Bad("alpha of type 12", write={"keys": number("adapter.lora.alpha", "add_float64", 16.0)}),
    "alpha NaN": Bad(r"adapter\.lora\.alpha=nan", write={"alpha": float("nan")}),
    "alpha infinite": Bad(r"adapter\.lora\.alpha=inf", write={"alpha": float("inf")}),
    "no general.type": Bad("it has no general.type", write=keys(general_type=None)),
    "imatrix": Bad("general.type is 'imatrix', as of a part", write=keys(general_type="imatrix")),
    "no adapter.type": Bad("no LoRA adapter", write=keys(adapter_type=None)),
    "adapter.type": Bad("adapter.type is 'ia3'", write=keys(adapter_type="ia3")),
    "aLoRA": Bad("activated LoRA", write={"keys": STANDARD | {"alora": alora}}),
    "other architecture": Bad(
        "is for the architecture llama, and the base .* is of qwen3", write={"architecture": "llama"}
    ),
    "control vector": Bad("is a control vector", {}, write={"architecture": "controlvector"}),
    "no half a": Bad(f"lacks {Q}.lora_a", {}, write={"more": {f"{Q}.lora_b": ones(128, 4)}}),
    "no half b": Bad(f"lacks {Q}.lora_b", {}, write={"more": {f"{Q}.lora_a": ones(4, 64)}}),
    "no tensors": Bad("has no tensors", {}),
    "no such layer": Bad("no tensor blk.99.attn_q", {"blk.99.attn_q.weight": (ones(4, 64), ones(128, 4))}),
    "other sizes": Bad("shapes 4 x 63 and 128 x 4, which do not fit .* 128 x 64 of", one(a=lambda a: a[:, :63])),
    "other outputs": Bad("shapes 4 x 64 and 96 x 4", one(b=lambda b: b[:96])),
    "ranks differ": Bad("of rank 4 and .* of rank 3", one(b=lambda b: b[:, :3])),
    "ranks of tokens differ": Bad("of rank 4 and .* of rank 3", one(LLAMA, EMBEDDINGS, b=lambda b: b[:, :3]), LLAMA),
    "not flipped for tokens": Bad("do not fit token_embd", one(LLAMA, EMBEDDINGS, a=np.transpose), LLAMA),
    "three dimensions": Bad("2 x 4 x 64", one(a=lambda a: np.stack([a] * 2), b=lambda b: np.stack([b] * 2))),
    "two dimensions of experts": Bad("64 of 4 experts", one(MOE, UP, a=lambda a: a[0], b=lambda b: b[0]), MOE),
    "fewer experts": Bad("64 of 4 experts", one(MOE, UP, a=lambda a: a[:3], b=lambda b: b[:3]), MOE),
    "tied table of tokens": Bad("embeddings are tied.*train without embed_tokens", one(target=EMBEDDINGS)),
    "tied head": Bad("whose last matrix is token_embd", {HEAD: (ones(4, 64), ones(300, 4))}),
    "I8": Bad("in I8, and F32, F16, BF16, Q8_0 are read", one(a=lambda a: a.astype(np.int8))),
    "F64": Bad("in F64", one(a=lambda a: a.astype(np.float64))),
    "Q4_0": Bad("in Q4_0", one(b=lambda b: np.repeat(b, 8, 1), a=lambda a: np.repeat(a, 8, 0)), write={"kind": "Q4_0"}),
    "NaN in a": Bad(f"NaN or infinite in {Q}.lora_a", one(a=lambda a: a * np.float32("nan"))),
    "untrained": Bad("was not trained: all its B are zeros", one(b=np.zeros_like)),
    "infinite b": Bad("NaN or infinite in .*lora_b", one(b=lambda b: b + np.float32("inf"))),
    "too large with its scale": Bad("2.5e\\+29 times, that are", one(b=lambda b: b * 1e20), write={"alpha": 1e30}),
    "trained norm": Bad("blk.0.attn_norm.weight, a trained norm", write={"more": {"blk.0.attn_norm.weight": ones(64)}}),
    "other suffix": Bad("the tensor foo.weight, no part", write={"more": {"foo.weight": ones(4, 4)}}),
    "bias": Bad("is no matrix", {"blk.0.attn_q.bias": (ones(4, 1), ones(64, 4))}, QWEN2),
    "latent attention": Bad(
        "attn_q_a.weight of the architecture deepseek2", one(DEEPSEEK, "blk.0.attn_q_a.weight"), DEEPSEEK
    ),
    "experts' biases": Bad("without adapters", one(GPT_OSS, "blk.0.ffn_up_exps.bias"), GPT_OSS),
    "convolution": Bad("which would have no effect", one(MAMBA, "blk.0.ssm_conv1d.weight"), MAMBA),
    "last byte missing": Bad("not copied or fetched whole", bytes=lambda data: data[:-33]),
    "half a header": Bad("not copied or fetched whole", bytes=lambda data: data[:100]),
    "four bytes": Bad("ends inside its header", bytes=lambda data: data[:4]),
    "empty": Bad("an empty file", bytes=lambda data: b""),
    "no GGUF": Bad("begins with b'PK", bytes=lambda data: b"PK\3\4" + data),
    "a tensor twice": Bad("has the tensor .*lora_a twice", bytes=lambda data: data.replace(b".lora_b", b".lora_a")),
    "a key twice": Bad(
        "has the key general.type twice", bytes=lambda data: data.replace(b"adapter.type", b"general.type")
    ),
    "places that overlap": Bad("where they cannot be", bytes=lambda data: moved(data)),
}


def moved(data: bytes) -> bytes:
    """Let the second tensor begin where the first does."""
    at = data.index(b".lora_b") + len(b".lora_b") + 4 + 2 * 8 + 4
    return data[:at] + bytes(8) + data[at + 8 :]


def bad_file(path: Path, bad: Bad) -> Path:
    write = dict(bad.write)
    architecture = write.pop("architecture", architecture_of(bad.base))
    write_adapter(path, one(bad.base) if bad.pairs is None else bad.pairs, architecture, **write)
    if bad.bytes is not None:
        path.write_bytes(bad.bytes(path.read_bytes()))
    return path


@pytest.mark.parametrize("name", BAD)
def test_it_is_refused_by_name(tmp_path, name):
    path = bad_file(tmp_path / "a.gguf", BAD[name])
    with pytest.raises(InputError, match=rf"model\.adapters\.support: {path}.*({BAD[name].reason})"):
        read(path, BAD[name].base)


def test_a_model_and_a_missing_file_are_refused(tmp_path):
    with pytest.raises(InputError, match=r"qwen3\.gguf is no adapter \(.*it is a whole model, for model\.path\)"):
        read(QWEN3, QWEN3)
    with pytest.raises(InputError, match=r"model\.adapters\.support: .*/none does not exist"):
        read(tmp_path / "none", QWEN3)
    path = write_adapter(tmp_path / "a.gguf", one(), "qwen3")
    with pytest.raises(InputError, match="cannot be added nan times"):
        read(path, QWEN3, scale=float("nan"))


@pytest.mark.parametrize(
    ("number", "target", "reason"),
    [
        (("nextn_predict_layers", 1), "blk.1.attn_q.weight", "layer 1 only guesses further tokens"),
        (("attention.shared_kv_layers", 1), "blk.1.attn_k.weight", "layer 1 takes the keys and values of another"),
    ],
)
def test_layers_that_are_not_computed_are_refused(tmp_path, number, target, reason):
    key, value = number
    base = copied(QWEN3, tmp_path / "base.gguf", [MetaValue(f"qwen3.{key}", value, GGUFValueType.UINT32, None)])
    path = write_adapter(tmp_path / "a.gguf", one(target=target), "qwen3")
    with pytest.raises(InputError, match=f"would have no effect: {reason}"):
        read(path, base)
    assert read(write_adapter(tmp_path / "b.gguf", one(), "qwen3"), base).tensors, "of another layer"


@pytest.mark.parametrize("name", ["alpha u32", "tied table of tokens"])
def test_llama_cpp_still_ends_the_process(tmp_path, name):
    """So that what is checked here has to be."""
    path = bad_file(tmp_path / "a.gguf", BAD[name])
    script = (
        "from pathlib import Path; from tests.operators.llama.adapters.adapter_files import TinyModel;"
        f" TinyModel(Path({str(BAD[name].base)!r})).logits(Path({str(path)!r}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=PROJECT, env={"GGML_NO_BACKTRACE": "1"}, capture_output=True
    )
    assert ended.returncode < 0, ended.stderr
