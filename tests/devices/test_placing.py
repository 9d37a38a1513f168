"""Devices have the layers that the keys of a model give them, and compute the CPU's bits there."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline import PROJECT
from tests.devices import placing

FAMILIES = sorted(str(path) for path in (PROJECT / "tests/families").glob("*.gguf"))
EXPERTS = str(PROJECT / "tests/families/qwen3moe.gguf")
PLACES: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"gpu_layers": 1}, {}),
    ({"gpu_layers": 1}, {"op_offload": False}),
    ({"split_mode": "none", "main_gpu": 1}, {}),
    ({"tensor_split": [0, 1]}, {}),
    ({"override_tensor": {"attn": "Fake1"}}, {}),
    ({"n_cpu_moe": 1}, {}),
    ({}, {"kv_offload": False}),
]


def test_weights_are_on_the_devices_that_have_their_layers(gpus):
    """auto is the default, and takes all that fits."""
    cases = [{"device": "Fake0"}, {"cpu_moe": True, "device": "Fake0"}, {"tensor_split": [0, 1]}, {"gpu_layers": 0}]
    whole, without_experts, second, none = gpus.having(mb=2048).call(placing.weights, EXPERTS, cases)
    assert whole[0] > without_experts[0] > 0 == whole[1] == without_experts[1]
    assert second == [0, whole[0]]
    assert none == [0, 0]


def test_patterns_that_llama_cpp_cannot_read_are_refused(gpus):
    """Python reads them, and C++ does not."""
    case = {"override_tensor": {"(?P<name>attn)": "CPU"}}
    (answer,) = gpus.having(mb=2048).call(placing.placements, EXPERTS, [case])
    assert "ConfigError: model.override_tensor={'(?P<name>attn)': 'CPU'} cannot work: llama.cpp refuses it" in answer
    assert "regex" in answer


@pytest.mark.laws
@pytest.mark.parametrize(("keys", "engine"), PLACES, ids=str)
def test_the_bits_are_those_of_the_cpu(gpus, keys, engine):
    there = gpus.having(mb=2048)
    wanted, given = (there.call(placing.computed, EXPERTS, *case) for case in (({"gpu_layers": 0}, {}), (keys, engine)))
    assert given["bits"] == wanted["bits"]
    assert not sum(each["graphs"] for each in wanted["counts"]), "with 0 layers no device computes"
    assert sum(each["graphs"] for each in given["counts"])


@pytest.mark.laws
@pytest.mark.parametrize("engine", [{"slots": 16}, {"flash_attention": False, "kv_type": "f32"}], ids=str)
def test_auto_thinks_of_no_family_that_it_needs_less_than_it_takes(gpus, engine):
    there = gpus.having(mb=2048, count=1)
    for path, (thought, taken) in zip(FAMILIES, there.call(placing.guessed, FAMILIES, engine), strict=True):
        assert taken <= thought <= 4 * taken, path
