"""Layers go where the keys of a model say; auto puts as much on devices as fits; what cannot work is refused first."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
from llama_cpp import llama_cpp as binding

from operators.engine.backend.placement import ON_CPU, LayerPlacement
from operators.llama import library, placement
from operators.llama.contexts.context_params import MOST_AT_ONCE, for_placement
from operators.llama.devices import Device
from operators.llama.layer_sizes import bytes_on, context_bytes, layers_of
from operators.llama.packed import Packed
from operators.settings import ModelSettings
from operators.settings.layers import ALL, AUTO
from operators.settings.runtime import EngineSettings
from pipeline import PROJECT
from pipeline.api.errors import ConfigError
from pipeline.api.identity import PLANNED
from pipeline.config.fingerprint import flat

DENSE, EXPERTS = (PROJECT / "tests/families" / f"{name}.gguf" for name in ("qwen3", "qwen3moe"))
ROOM = EngineSettings(slots=2, max_sequence_tokens=256, n_ubatch=128)
MIB, GIB = 1 << 20, 1 << 30


def machine(monkeypatch, *free: int, total: int = 0, **backends: str) -> None:
    """Have the machine these devices: CUDA0 with so many bytes free, and so on; others by name and kind."""
    found = [Device(f"CUDA{i}", "a GPU", "CUDA", "gpu", n, total or n, i) for i, n in enumerate(free)]
    found += [Device(name, "another", name.rstrip("0123456789"), kind, GIB, GIB, 9) for name, kind in backends.items()]
    monkeypatch.setattr(placement, "planned_devices", lambda: tuple(found))
    monkeypatch.setattr(placement, "_hardware", lambda device: None)
    monkeypatch.setattr(placement, "_refusal", lambda path, given: None)


def placed(path=DENSE, **keys) -> LayerPlacement:
    return placement.placement_of(ModelSettings(path=str(path), **{"room": ROOM, **keys}), path)


PLACES = [
    ({"gpu_layers": ALL}, "3 of 3 layers (2 on CUDA0, 1 on CUDA1)"),
    ({"gpu_layers": 999}, "3 of 3 layers (2 on CUDA0, 1 on CUDA1)"),
    ({"gpu_layers": 2}, "2 of 3 layers (1 on CUDA0, 1 on CUDA1)"),
    ({"gpu_layers": 0}, "CPU"),
    ({"device": "none"}, "CPU"),
    ({"gpu_layers": ALL, "device": ["CUDA1", "CUDA0"]}, "3 of 3 layers (2 on CUDA1, 1 on CUDA0)"),
    ({"gpu_layers": ALL, "split_mode": "none"}, "3 of 3 layers (3 on CUDA0)"),
    ({"gpu_layers": ALL, "split_mode": "none", "main_gpu": 1}, "3 of 3 layers (3 on CUDA1)"),
    ({"gpu_layers": ALL, "tensor_split": [0, 1]}, "3 of 3 layers (0 on CUDA0, 3 on CUDA1)"),
    (
        {"gpu_layers": ALL, "override_tensor": {"attn": "CUDA1"}},
        "3 of 3 layers (2 on CUDA0, 1 on CUDA1, attn on CUDA1)",
    ),
]


@pytest.mark.parametrize(("keys", "where"), PLACES, ids=str)
def test_layers_are_where_the_keys_say(monkeypatch, keys, where):
    machine(monkeypatch, 4 * GIB, 4 * GIB)
    assert str(placed(**keys)) == where


REFUSED = [
    ({"device": ["CUDA7"]}, "model.device=['CUDA7']", True),
    ({"device": "none", "gpu_layers": 3}, "model.device=none leaves no device", False),
    ({"main_gpu": 1}, "model.split_mode=none", False),
    ({"split_mode": "none", "main_gpu": 2}, "it counts the 2 devices from 0", True),
    ({"tensor_split": [1.0]}, "a share for each device that is used, 2", True),
    ({"override_tensor": {"attn": "CUDA7"}}, "model.override_tensor.attn='CUDA7'", True),
    ({"override_tensor": {"attn": "CUDA0"}, "gpu_layers": 0}, "model.override_tensor.attn='CUDA0'", True),
    (
        {"override_tensor": {"attn": "CUDA1"}, "device": "CUDA0"},
        "it is one of the devices that are used, CPU, CUDA0",
        True,
    ),
    ({"override_tensor": {"nothing_such": "CPU"}}, "no tensor of the model has such a name", False),
]


@pytest.mark.parametrize(("keys", "said", "is_told"), REFUSED, ids=str)
def test_what_llama_cpp_would_refuse_or_end_the_process_for_is_refused_first(monkeypatch, keys, said, is_told):
    machine(monkeypatch, 4 * GIB, 4 * GIB)
    with pytest.raises(ConfigError) as raised:
        placed(**keys)
    assert said in str(raised.value)
    assert ("there is CUDA0 (a GPU, 4.0 of 4.0 GiB free), CUDA1" in str(raised.value)) == is_told


def test_without_a_device_the_cpu_computes_and_layers_for_one_are_refused(monkeypatch):
    machine(monkeypatch)
    assert placed() is ON_CPU
    assert placed(EXPERTS, cpu_moe=True, override_tensor={"attn": "CPU"}) is ON_CPU
    with pytest.raises(ConfigError, match=r"model\.gpu_layers='all' cannot work: there is no GPU; use 0 or auto"):
        placed(gpu_layers=ALL)


def test_a_run_that_was_begun_before_auto_goes_on():
    """Its fingerprint has the number that was the default, and where layers are is told by the identity."""
    values = dict(flat("model", ModelSettings()))
    assert values["model.gpu_layers"] == 0
    assert dict(flat("model", ModelSettings(gpu_layers=ALL))) == {**values, "model.gpu_layers": ALL}
    assert dict(flat("model", ModelSettings(device=["CUDA0"], n_cpu_moe=1, tensor_split=[1.0]))) == values


def needed(path, layers: int, experts: int = 0) -> int:
    """Return the bytes that `layers` of the model and its contexts take on the only device."""
    moved = ((rf"blk\.({'|'.join(map(str, range(experts)))})\..*exps", "CPU"),) if experts else ()
    all_layers = layers_of(path).n_layers + 1
    given = LayerPlacement(layers, all_layers, ("CUDA0",), (layers,), moved)
    return bytes_on(given, layers_of(path), context_bytes(path, ModelSettings(), ROOM))["CUDA0"]


def test_auto_takes_as_many_layers_as_fit_beside_the_margin(monkeypatch):
    for layers in (3, 2, 1):
        machine(monkeypatch, GIB + needed(DENSE, layers))
        assert placed().gpu_layers == layers
        machine(monkeypatch, GIB + needed(DENSE, layers) - 1)
        assert placed().gpu_layers == layers - 1
    assert placed() is ON_CPU


def test_auto_leaves_experts_to_the_cpu_before_layers(monkeypatch):
    count = layers_of(EXPERTS).n_layers
    for experts in (0, 1, count):
        machine(monkeypatch, GIB + needed(EXPERTS, count + 1, experts))
        given = placed(EXPERTS)
        assert given.gpu_layers == count + 1
        assert len(given.elsewhere) == (experts > 0)
        assert given.is_whole == (experts == 0)
        assert placed(EXPERTS, n_cpu_moe=count).elsewhere == placed(EXPERTS, cpu_moe=True).elsewhere != ()
    machine(monkeypatch, GIB + needed(EXPERTS, count + 1, count) - 1)
    assert placed(EXPERTS).gpu_layers == count


def test_a_longer_cache_leaves_room_for_fewer_layers(monkeypatch):
    machine(monkeypatch, GIB + needed(DENSE, 3))
    assert placed().gpu_layers == 3
    assert placed(room=EngineSettings(slots=64, max_sequence_tokens=256, n_ubatch=128)).gpu_layers < 3


def test_layers_are_split_by_the_memory_there_is_and_by_what_is_free_only_where_they_fit_only_so(monkeypatch):
    machine(monkeypatch, 3 * GIB, 2 * GIB, total=4 * GIB)
    assert placed().counts == (2, 1)
    machine(monkeypatch, 3 * GIB, GIB, total=4 * GIB)
    assert placed().counts == (3, 0)


def test_what_shares_memory_is_taken_without_a_gpu_alone(monkeypatch):
    keys = {"gpu_layers": ALL}
    machine(monkeypatch, 4 * GIB, Vulkan0="igpu")
    assert placed(**keys).devices == ("CUDA0",)
    machine(monkeypatch, RPC0="gpu", Vulkan0="igpu", Metal0="igpu")
    assert placed(**keys).devices == ("RPC0", "Vulkan0")


def test_a_gpu_that_two_backends_have_is_taken_once(monkeypatch):
    machine(monkeypatch, 4 * GIB, Vulkan0="gpu")
    monkeypatch.setattr(placement, "_hardware", lambda device: b"0000:01:00.0")
    assert placed(gpu_layers=ALL).devices == ("CUDA0",)


def test_fewer_layers_are_tried_where_a_model_cannot_be_loaded_and_what_is_loaded_counts(monkeypatch, caplog):
    """Contexts of a loaded model may be made later, so that another model leaves them their memory."""
    settings, tried = ModelSettings(path=str(DENSE), room=ROOM), []
    machine(monkeypatch, 2 * GIB + needed(DENSE, 2))

    monkeypatch.setattr(placement, "no_room", lambda: "the weights do not fit")

    def load(given: LayerPlacement) -> tuple[str | None, Packed]:
        tried.append(given.gpu_layers)
        return ("model" if given.gpu_layers < 3 else None), Packed()

    with caplog.at_level(logging.INFO):
        model, _, given = placement.load_placed(settings, DENSE, load)
    try:
        assert (model, given.gpu_layers, tried) == ("model", 2, [3, 2])
        assert f"model.gpu_layers={AUTO}: 2 of 3 layers (2 on CUDA0)" in caplog.text
        assert placed(system="another text") == given, "what is loaded stays where it is"
        machine(monkeypatch, GIB + needed(DENSE, 3))
        assert placed(options={"another": 1}).gpu_layers < 3
    finally:
        placement.unloaded(settings)
    assert placed(options={"another": 1}).gpu_layers == 3


def test_a_model_that_another_cause_keeps_from_loading_is_not_tried_again(monkeypatch):
    machine(monkeypatch, 4 * GIB)
    tried: list[LayerPlacement] = []
    monkeypatch.setattr(placement, "no_room", lambda: None)

    def load(given: LayerPlacement) -> tuple[None, Packed]:
        tried.append(given)
        return None, Packed()

    assert placement.load_placed(ModelSettings(path=str(DENSE), room=ROOM), DENSE, load)[0] is None
    assert len(tried) == 1


def test_keys_for_devices_that_do_nothing_on_the_cpu_are_told(monkeypatch, caplog):
    machine(monkeypatch)
    settings = ModelSettings(path=str(EXPERTS), cpu_moe=True, override_tensor={"attn": "CPU"})
    settings.room = replace(ROOM, kv_offload=False)
    placement.load_placed(settings, EXPERTS, lambda given: ("model", Packed()))
    idle = "model.cpu_moe, model.override_tensor, runtime.kv_offload=false"
    (said,) = [record.getMessage() for record in caplog.records]
    assert said == f"{EXPERTS.name}: no layer is on a device, so that these do nothing: {idle}"


def test_calls_that_cannot_be_cut_are_computed_at_once_on_devices_too():
    given, on_device = EngineSettings(n_batch=8192, n_ubatch=8192), LayerPlacement(3, 3, ("CUDA0",), (3,))
    assert for_placement(given, on_device).n_ubatch == MOST_AT_ONCE
    assert for_placement(given, on_device, whole=True) == replace(given, threads=1)
    assert for_placement(given, ON_CPU) == given


@pytest.mark.parametrize("server", ["127.0.0.1:1", "one", "127.0.0.1:99999999", ":"])
def test_servers_that_cannot_be_reached_are_refused_before_ggml_ends_the_process(monkeypatch, server):
    monkeypatch.setenv("LLAMA_ARG_RPC", server)
    with pytest.raises(ConfigError, match=re.escape(f"can be reached at {server!r}, which is to be HOST:PORT")):
        library._reached_servers()


def test_servers_are_refused_where_llama_cpp_has_no_rpc(monkeypatch):
    without = SimpleNamespace(ggml_backend_reg_by_name=lambda name: 0, ggml_backend_reg_get_proc_address=None)
    without.ggml_backend_reg_get_proc_address = lambda registry, name: 0
    monkeypatch.setattr(binding, "_lib", without)
    with pytest.raises(ConfigError, match="has no RPC; `CMAKE_ARGS=-DGGML_RPC=ON"):
        library._add([b"127.0.0.1:50052"])


def test_a_model_that_is_loaded_elsewhere_than_workers_will_is_planned_anew(monkeypatch):
    settings = ModelSettings(path=str(DENSE), room=ROOM)
    machine(monkeypatch, 4 * GIB, 4 * GIB)
    placement.load_placed(settings, DENSE, lambda given: ("model", Packed()))
    try:
        assert placed().devices == ("CUDA0", "CUDA1")
        machine(monkeypatch, 4 * GIB)
        monkeypatch.setattr(PLANNED, "gpus", 1.0)
        assert placed().devices == ("CUDA0",)
    finally:
        placement.unloaded(settings)
