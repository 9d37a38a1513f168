"""The list of devices is what ggml has, and a backend that cannot be loaded is refused."""

from __future__ import annotations

from dataclasses import replace

from pipeline.api.errors import ExitCode
from tests.devices import cases

MIB = 1 << 20


def test_the_devices_of_a_plugin_are_listed(gpus):
    answer = gpus.having(mb="512,1536", description="NVIDIA H100", type="igpu").call(cases.listed)
    first, second = answer["devices"]
    assert first["handle"] != second["handle"]
    same = {"description": "NVIDIA H100", "backend": "Fake", "kind": "igpu"}
    assert first == {**same, "name": "Fake0", "free": 512 * MIB, "total": 512 * MIB, "handle": first["handle"]}
    assert second == {**same, "name": "Fake1", "free": 1536 * MIB, "total": 1536 * MIB, "handle": second["handle"]}
    assert answer["text"] == ("Fake0 (NVIDIA H100, 0.5 of 0.5 GiB free), Fake1 (NVIDIA H100, 1.5 of 1.5 GiB free)")


def test_a_plugin_that_is_none_is_refused(gpus, tmp_path):
    nothing = tmp_path / "nothing.so"
    answer = replace(gpus, library=nothing).call(cases.listed)
    assert answer["code"] == ExitCode.CONFIG
    assert f"GGML_BACKEND_PATH={nothing} cannot be loaded: " in answer["refused"]
    assert "No such file" not in answer["refused"] or "nothing.so" in answer["refused"]
