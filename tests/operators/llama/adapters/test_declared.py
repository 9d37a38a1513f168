"""What a job says of its adapters before it runs, which contexts mix them, and what nodes compute with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from operators.choose import Choose
from operators.embed import Embed
from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.loading import inspect_model
from operators.generation.memory import model_memory
from operators.llama.adapters import declared, loaded
from operators.llama.adapters.prepared import PreparedAdapters
from operators.llama.adapters.targets import read_base
from operators.llama.contexts import context
from operators.llama.model import LlamaModel
from operators.llama.packed import library
from operators.score import Score
from operators.settings import ModelSettings, StoreSettings
from operators.settings.runtime import EngineSettings
from pipeline import PROJECT
from pipeline.api.errors import ConfigError, InputError
from pipeline.api.protocols import Operator
from tests.operators.flow import Flow, Rows, chain
from tests.operators.llama.adapters.adapter_files import (
    FAMILIES,
    QWEN3,
    drawn,
    merged,
    peft_names,
    tensors_of,
    write_adapter,
    write_peft,
)
from tests.operators.llama.test_decoding import compute

TINY = PROJECT / "models/tiny/tiny-q8_0.gguf"
Q, UP = "blk.0.attn_q.weight", "blk.1.ffn_up.weight"
BASE = ModelSettings(path=str(QWEN3))
PAIRS = drawn(read_base(QWEN3), [Q, UP], 8)
OTHER = drawn(read_base(QWEN3), [Q], 4, seed=3)
AUTO, LLAMA_CPP = "auto", "llama.cpp"


def with_adapter(folder: Path, scale: float = 0.75) -> ModelSettings:
    """The model with one adapter, beside another."""
    one = write_adapter(folder / "one.gguf", PAIRS, "qwen3")
    other = write_adapter(folder / "other.gguf", OTHER, "qwen3")
    return replace(BASE, adapters={"other": str(other), "one": {"path": str(one), "scale": scale}})


def test_a_plan_has_the_content_of_each_adapter_with_its_scale_and_counts_the_memory_of_all(tmp_path):
    model, runtime = with_adapter(tmp_path), EngineSettings(max_sequence_tokens=128)
    facts, again, plain = (inspect_model(each) for each in (model, with_adapter(tmp_path, 0.5), BASE))
    assert [*facts.adapters] == ["one", "other"]  # by name, since an order of their own would be in the bits of sums
    assert facts.adapters["other"] == again.adapters["other"]
    assert facts.adapters["one"] != again.adapters["one"]
    assert replace(facts, adapters={}, adapter_bytes=0) == plain
    bank = declared.prepared_for(model, QWEN3)
    assert bank is not None
    size = sum(values.nbytes for values in tensors_of(bank.bank()).values())
    needs, usual = ([*model_memory(each, runtime, "key")] for each in (model, BASE))
    assert [need.size_bytes for need in needs if need.what.startswith("the adapters of ")] == [size]
    assert len(needs) == len(usual) + 1
    opened = LlamaModel(model)
    assert dict(zip(opened.adapters, opened.adapter_contents, strict=True)) == facts.adapters
    opened.close()


def test_one_on_the_hub_is_fetched_at_its_revision_whole_and_without_one_it_is_refused(tmp_path, monkeypatch):
    gguf, folder = tmp_path / "own.gguf", tmp_path / "peft"
    write_adapter(gguf, {Q: PAIRS[Q]}, "qwen3")
    write_peft(folder, peft_names("model.layers.0.self_attn.q_proj", PAIRS[Q]), r=8)
    asked: list[Any] = []

    def fetched(repo: str, name: str, revision: str, options: Any, key: str) -> Path:
        asked.append((repo, name, revision, options))
        return gguf if name == gguf.name else folder / name

    monkeypatch.setattr(declared, "hub_file", fetched)
    given = {"a": {"repo": "o/a", "revision": "v1", "file": gguf.name}, "b": {"repo": "o/b", "revision": "v2"}}
    assert declared.prepared_for(replace(BASE, adapters=given, options={"token": "t"}), QWEN3) is not None
    files = ("o/a", gguf.name, "v1"), ("o/b", "adapter_config.json", "v2"), ("o/b", "adapter_model.safetensors", "v2")
    assert asked == [(*file, {"token": "t"}) for file in files]
    with pytest.raises(ConfigError, match=r"model\.adapters\.a needs a revision beside repo"):
        declared.prepared_for(replace(BASE, adapters={"a": {"repo": "o/a"}}), QWEN3)


@pytest.mark.parametrize(
    ("family", "kernels", "runtime", "mixes"),
    [
        ("tiny", AUTO, {}, True),
        ("tiny", AUTO, {"kv": "unified", "deterministic": False}, False),
        ("tiny", LLAMA_CPP, {}, False),
        ("mamba", AUTO, {}, False),
    ],
)
def test_rows_of_several_share_calls_where_our_kernels_know_whose_each_token_is(
    tmp_path, family, kernels, runtime, mixes
):
    """Elsewhere the bits of a row with an adapter depend on how many tokens a call has. Rows of the model as it is have
    the same bits in any case."""
    path = TINY if family == "tiny" else FAMILIES / f"{family}.gguf"
    base, shapes = replace(BASE, path=str(path), kernels=kernels), read_base(path)
    pairs = drawn(shapes, ["blk.0.ssm_in.weight" if family == "mamba" else Q])
    own = {name: str(write_adapter(tmp_path / name, pairs, shapes.architecture)) for name in ("one", "two")}
    models = [LlamaModel(replace(base, adapters=adapters)) for adapters in (own, None)]
    engine = EngineSettings(slots=2, max_sequence_tokens=128, threads=1, **runtime)
    decoder, plain = (model.lease(engine)[0] for model in models)
    assert (decoder.mixes_adapters, plain.mixes_adapters) == (mixes, True)
    exact = (plain.shape.exact, plain.lone_tokens) if mixes else (False, 0)
    assert (decoder.shape.exact, decoder.lone_tokens) == exact
    ids = np.arange(5, 20, dtype=np.int32)
    found, expected = (compute(each, ids).copy() for each in (decoder, plain))
    np.testing.assert_array_equal(found, expected)
    decoder.batch.clear()
    decoder.batch.adapters[1] = 2
    decoder.batch.add_spans([ids], [0], [1], [1])
    assert 1e-3 < np.abs(decoder.decode() - expected).max() < np.inf
    for model in models:
        model.close()


def small(model: LlamaModel, **runtime: Any) -> Any:
    return model.lease(EngineSettings(slots=2, max_sequence_tokens=128, threads=1, **runtime))[0]


def test_beside_blas_nothing_is_mixed_or_exact(tmp_path, monkeypatch):
    """It takes products of many tokens from our kernels, which alone can read a bank."""
    monkeypatch.setattr(context, "has_accelerator", lambda: True)
    model = LlamaModel(with_adapter(tmp_path))
    decoder = small(model)
    assert (decoder.mixes_adapters, decoder.shape.exact) == (False, False)
    model.close()


def test_a_call_that_cannot_tell_its_rows_apart_is_refused(tmp_path, monkeypatch):
    model = LlamaModel(with_adapter(tmp_path))
    decoder = small(model)
    decoder.batch.add_spans([np.arange(5, 9, dtype=np.int32)], [0], [0], [1])
    monkeypatch.setattr(library(), "kernels_unmixed", lambda: 1)
    with pytest.raises(DecodeFailed, match="could not tell which adapters its rows have"):
        decoder.decode()
    model.close()


def test_a_context_whose_bank_cannot_be_made_is_freed(tmp_path, monkeypatch):
    freed: list[Any] = []

    def fails(self: PreparedAdapters) -> Path:
        raise InputError("no room")

    monkeypatch.setattr(PreparedAdapters, "bank", fails)
    monkeypatch.setattr(context.LlamaContext, "close", lambda self: freed.append(self))
    model = LlamaModel(with_adapter(tmp_path))
    with pytest.raises(InputError, match="no room"):
        small(model)
    assert len(freed) == 1
    monkeypatch.undo()
    freed[0].close()
    model.close()


def test_where_rows_are_drained_so_many_sets_are_in_memory_and_no_more(tmp_path, monkeypatch):
    monkeypatch.setattr(loaded, "MOST_SETS", 1)
    model = LlamaModel(replace(with_adapter(tmp_path), kernels=LLAMA_CPP))
    decoder = small(model)
    for mask in (1, 0, 1, 2):
        decoder.batch.clear()
        decoder.batch.adapters[:] = mask
        decoder.batch.add_spans([np.arange(5, 9, dtype=np.int32)], [0], [0], [1])
        if mask == 2:
            with pytest.raises(DecodeFailed, match="set number 2"):
                decoder.decode()
        else:
            decoder.decode()
        decoder.clear()
    model.close()


def test_the_order_in_which_they_are_declared_says_nothing(tmp_path):
    given = with_adapter(tmp_path)
    turned = replace(given, adapters=dict(reversed(given.adapters.items())))
    one, other = (declared.prepared_for(each, QWEN3) for each in (given, turned))
    assert one is not None
    assert one == other


def test_an_encoder_has_no_adapters(tmp_path):
    base = FAMILIES / "encoders/bert.gguf"
    pairs = drawn(read_base(base), [Q])
    own = {"one": str(write_adapter(tmp_path / "a.gguf", pairs, read_base(base).architecture))}
    op = Embed(ModelSettings(path=str(base), adapters=own), EngineSettings(), adapter="one")
    with pytest.raises(ConfigError, match="adapter=one: adapters of encoders are not supported"):
        op.plan(pa.schema([("text", pa.string())]))


READERS: dict[str, Any] = {
    "score": lambda *given, **more: Score(*given, **more),
    "choose": lambda model, runtime, **more: Choose(model, runtime, ["a lamp", "no"], **more),
    "embed": lambda *given, **more: Embed(*given, **more),
}
COLUMNS = {"score": "logprobs", "choose": "choice_logprobs", "embed": "embedding"}


@pytest.mark.parametrize("kernels", [AUTO, LLAMA_CPP])
def test_score_choose_and_embed_have_the_numbers_of_merged_weights(tmp_path, kernels):
    def numbers(name: str, model: ModelSettings, **more: Any) -> np.ndarray:
        runtime = EngineSettings(slots=2, max_sequence_tokens=128, kv_type="f32", flash_attention=False)
        op: Operator = READERS[name](model, runtime, store=StoreSettings(enabled=False), **more)
        given = [{"text": f"the river and the stone {'again ' * i}", "prompt_text": f"say {i}"} for i in range(3)]
        schema = pa.schema([("text", pa.string()), ("prompt_text", pa.string())])
        rows = Flow(tmp_path / "flow", chain(Rows(given, schema), node=op)).run()
        return np.concatenate([row[COLUMNS[name]] for row in rows])

    own, base = replace(with_adapter(tmp_path), kernels=kernels), replace(BASE, kernels=kernels)
    weights = replace(base, path=str(merged(QWEN3, tmp_path / "merged.gguf", PAIRS, 0.75)))
    both = replace(base, path=str(merged(Path(weights.path or ""), tmp_path / "both.gguf", OTHER, 1.0)))
    for name in READERS:
        found, expected, plain = numbers(name, own, adapter="one"), numbers(name, weights), numbers(name, base)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
        assert np.abs(found - plain).max() > 1e-2
        several = numbers(name, own, adapter=["one", "other"])
        np.testing.assert_allclose(several, numbers(name, both), rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(numbers(name, own), plain)
