"""Where layers lie on a device, it reduces logits before they are copied, and no row gets another token by it."""

from __future__ import annotations

import pytest

from operators.engine.backend.shape import CANDIDATES
from pipeline import PROJECT
from tests.devices.sampling_cases import completed

TINY = str(PROJECT / "models/tiny/tiny-q8_0.gguf")
N_VOCAB = 2048
NUCLEUS = {"top_k": 0}
"""Of these words there may be any number."""


def test_a_call_copies_candidates_and_not_the_vocabulary(gpus):
    """An id and a logit of each. A row that needs all logits has its calls copy them, and the next ones."""
    ways = [{"device_sampling": False}, {}, {"device_sampling": False, "sampling": NUCLEUS}, {"sampling": NUCLEUS}]
    whole, auto, nucleus, mixed = gpus.having(count=1).call(completed, TINY, 99, ways)
    assert auto["tokens"] == whole["tokens"]
    assert not whole["counts"]
    (counts,) = auto["counts"]
    assert counts["calls_reduced"] > 0
    outputs, rest = divmod(whole["copied"], 4 * N_VOCAB)
    assert rest == 0
    assert auto["copied"] == outputs * CANDIDATES * 8
    assert mixed["tokens"] == nucleus["tokens"] != whole["tokens"]
    assert auto["copied"] < mixed["copied"] <= nucleus["copied"]


@pytest.mark.laws
def test_a_device_without_the_operation_keeps_whole_logits(gpus):
    ways = [{"device_sampling": False}, {}, {"device_sampling": True}]
    whole, auto, asked = gpus.having(count=1, no_op="TOP_K").call(completed, TINY, 99, ways)
    assert auto == whole
    assert "runtime.device_sampling=true cannot work: llama.cpp has no top-k on the device" in asked["refused"]


@pytest.mark.laws
def test_layers_on_the_cpu_alone_keep_whole_logits_unless_it_is_asked_for(gpus):
    whole, auto, asked = gpus.call(completed, TINY, 0, [{"device_sampling": False}, {}, {"device_sampling": True}])
    assert auto == whole
    assert asked["tokens"] == whole["tokens"]
    assert asked["counts"][0]["calls_reduced"] > 0
