"""What computes on devices has the bits of the CPU wherever its layers are, takes of their memory what is said before,
and is refused by name where it does not fit."""

from __future__ import annotations

from dataclasses import replace

import pytest

from operators.engine.backend.placement import HOST
from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from tests.devices import cases

pytestmark = pytest.mark.slow("compiles a backend, and starts processes that have its devices")

MIB = 1 << 20
TINY = str(PROJECT / "models/tiny/tiny-q8_0.gguf")
MMPROJ = str(PROJECT / "models/tiny/vision/mmproj-tiny-f16.gguf")


@pytest.mark.laws
def test_the_devices_of_a_plugin_are_listed(gpus):
    answer = gpus.having(mb="512,1536", description="NVIDIA H100", type="igpu").call(cases.listed)
    first, second = answer["devices"]
    assert first["handle"] != second["handle"]
    same = {"description": "NVIDIA H100", "backend": "Fake", "kind": "igpu"}
    assert first == {**same, "name": "Fake0", "free": 512 * MIB, "total": 512 * MIB, "handle": first["handle"]}
    assert second == {**same, "name": "Fake1", "free": 1536 * MIB, "total": 1536 * MIB, "handle": second["handle"]}
    assert answer["text"] == "Fake0 (NVIDIA H100, 0.5 of 0.5 GiB free), Fake1 (NVIDIA H100, 1.5 of 1.5 GiB free)"


@pytest.mark.laws
def test_a_plugin_that_is_none_is_refused(gpus, tmp_path):
    nothing = tmp_path / "nothing.so"
    answer = replace(gpus, library=nothing).call(cases.listed)
    assert answer["code"] == ExitCode.CONFIG
    assert f"GGML_BACKEND_PATH={nothing} cannot be loaded: " in answer["refused"]


def test_layers_on_devices_have_the_bits_of_the_cpu_and_what_computes_is_told_apart(gpus):
    answers = gpus.call(cases.placed, TINY)
    assert {answer["bits"] for answer in answers.values()} == {answers[HOST]["bits"]}
    assert {name: [count > 0 for count in answer["graphs"]] for name, answer in answers.items()} == {
        HOST: [False, False],
        "two devices": [True, True],
        "one device": [False, True],
        "uneven": [True, True],
        "one layer and what makes logits": [True, True],
    }
    assert len({answer["device"] for answer in answers.values()}) == len(answers)
    assert answers[HOST]["device"] == HOST
    assert all("a GPU for tests (Fake)" in answer["device"] for name, answer in answers.items() if name != HOST)
    whole = ("two devices", "one device", "uneven")
    assert {answers[name]["threads"] for name in whole} == {1}, "the CPU has one operation to compute"
    assert answers["one layer and what makes logits"]["threads"] == answers[HOST]["threads"]


@pytest.mark.laws
@pytest.mark.parametrize("gpu_layers", ["all", 4])
def test_a_model_takes_of_the_memory_of_devices_what_is_said_before(gpus, gpu_layers):
    answer = gpus.call(cases.forecast, TINY, gpu_layers, {"slots": 4, "max_sequence_tokens": 256})
    for number in range(2):
        assert answer["said"][number] == pytest.approx(answer["weights"][number], rel=0.001), "but for padding"
        least = answer["said"][number] + answer["kept"][number]
        assert answer["kept"][number] > 0
        assert 0.999 * least <= answer["taken"][number] <= answer["most"][number]
        assert answer["most"][number] <= 1.001 * (least + answer["computing"][number])


@pytest.mark.laws
def test_the_encoder_of_images_is_on_a_device_of_its_model(gpus):
    first, second = gpus.call(cases.encoder, TINY, MMPROJ)
    assert first["most"] == 0 < second["used"]


def test_what_does_not_fit_is_named_with_what_makes_it_smaller(gpus):
    answers = gpus.having(count=3, mb="1,12,29").call(cases.refused_for_memory, TINY)
    weights, cache, computing = answers
    assert "the weights do not fit: Fake0 (a GPU for tests, 0.0 of 0.0 GiB free) has no " in weights
    assert "use a smaller or more quantised model, or fewer model.gpu_layers" in weights
    assert "the KV cache and recurrent states do not fit: Fake1 (" in cache
    assert "use fewer runtime.slots, shorter runtime.max_sequence_tokens, runtime.kv_type=q8_0, or fewer" in cache
    assert "the buffers for computing do not fit: Fake2 (" in computing
    assert "use a smaller runtime.n_ubatch, fewer runtime.slots (each has logits), or fewer model.gpu_l" in computing


@pytest.mark.laws
def test_a_call_that_fails_can_be_made_again_and_one_that_is_aborted_ends(gpus):
    answer = gpus.having(fail_at=5).call(cases.failing, TINY)
    failed, aborted = answer["failures"][:-1], answer["failures"][-1]
    assert failed
    assert set(failed) == {-3}
    assert aborted == 2
    assert len(set(answer["bits"])) == 1
