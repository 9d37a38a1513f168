"""What computes, in one value: content keys have all of it, and nodes share an engine only where it is equal."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from operators.engine.backend.fake import FakeModel
from operators.generation.store_lookup import CompletionKeys
from operators.generation.wiring import identity_of, shared_engine
from operators.settings import DecodeSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.identity import Identity
from pipeline.api.meter import StageMeter
from pipeline.api.runtime import Resources, RunContext, Runtime
from pipeline.cluster.identity import identities_of
from pipeline.run_dir.metrics_table import MetricsTables

HERE = Identity("sha256 1", "llama-cpp-python 0.3", "CPU", None, "any", "{'kv_type': 'f16'}")


def graph_of(identity: Identity) -> Any:
    """A graph of one node that computes so."""
    return SimpleNamespace(with_role=lambda role: {"reply": SimpleNamespace(identity=lambda: identity)})


def test_what_runs_and_stores_of_before_have_of_it_stays():
    """The words and their order: content keys are hashes of them, and a run keeps them in state.sqlite."""
    words = {
        "the model": "sha256 1",
        "llama.cpp": "llama-cpp-python 0.3",
        "the device": "CPU",
        "what is not proven": "None",
        "runtime.threads": "any",
        "runtime": "{'kv_type': 'f16'}",
    }
    assert list(HERE.in_words().items()) == list(words.items())
    kept = {f"{what} of node 'reply'": text for what, text in words.items()}
    assert identities_of(graph_of(HERE)) == kept
    with_bits = kept | {"the bits of fixed texts of node 'reply'": "00"}
    assert identities_of(graph_of(replace(HERE, bits="00"))) == with_bits


@pytest.mark.parametrize("part", [f.name for f in fields(Identity)])
def test_each_part_of_it_is_in_a_content_key(part):
    keys = (CompletionKeys(one.in_words()).settings(b"") for one in (HERE, replace(HERE, **{part: "another"})))
    assert len(set(keys)) == 2


PARTS = {
    "model": ("fingerprint", lambda self: "another"),
    "build": ("kernels", "another"),
    "device": ("device", "another"),
    "doubt": ("doubt", lambda self, settings: "another"),
}


@pytest.mark.parametrize("part", PARTS)
def test_a_model_says_what_it_is_and_where_it_runs(part, monkeypatch):
    before = identity_of(FakeModel(), settings := EngineSettings(threads=1))
    monkeypatch.setattr(FakeModel, *PARTS[part])
    threads = 1 if part == "doubt" else "any"
    assert identity_of(FakeModel(), settings) == replace(before, threads=threads, **{part: "another"})


def test_nodes_share_an_engine_only_where_the_same_computes(tmp_path: Path):
    """Equal content and build do not suffice: one of them may be on a GPU."""
    context = RunContext(tmp_path, Resources(), MetricsTables(tmp_path).get)
    runtime = Runtime(context, "generate", 1, StageMeter("generate"))
    models = FakeModel(), FakeModel(), FakeModel()
    models[2].device = "3 layers on a GPU"
    try:
        one, same, other = (shared_engine(runtime, model, EngineSettings(), DecodeSettings()) for model in models)
        assert one is same
        assert other is not one
    finally:
        context.resources.close()
