"""No model file ends the process: values are checked, and a file is tried once in a process that may die."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from operators.llama.gguf_check import check_gguf
from operators.llama.model import inspect, load
from operators.llama.probing import probe as probes
from operators.settings import ModelSettings
from pipeline.api.errors import InputError
from pipeline.system.file_cache import PLACE
from tests.faults.mutants import FAMILIES, File
from tools.models.make_model import write_model
from tools.models.shapes import named_shape


@pytest.fixture(autouse=True)
def started(tmp_path, monkeypatch) -> list[Path]:
    """The files for which a process was started; the cache is empty."""
    monkeypatch.setenv(PLACE, str(tmp_path / "cache"))
    files: list[Path] = []
    tried = probes._tried

    def counted(model: Path, path: Path) -> str | None:
        files.append(path)
        return tried(model, path)

    monkeypatch.setattr(probes, "_tried", counted)
    probes._probe.cache_clear()
    return files


def changed(folder: Path, family: str, change: Callable[[File], None]) -> ModelSettings:
    file, path = File.read(FAMILIES / f"{family}.gguf"), folder / "model.gguf"
    change(file)
    path.write_bytes(file.written())
    return ModelSettings(path=str(path))


def set_to(key: str, form: str, value: float) -> Callable[[File], None]:
    """Give a key another value; one that is not there is added, by the form "I"."""

    def change(file: File) -> None:
        name = key.encode()
        at = next((i for i, found in enumerate(file.keys) if found[0] == name), len(file.keys))
        kind = {"I": 4, "f": 6}[form]
        file.keys[at : at + 1] = [(name, kind, None, [struct.pack("<" + form, value)])]

    return change


def same_token(file: File) -> None:
    tokens = next(items for name, _, _, items in file.keys if name == b"tokenizer.ggml.tokens")
    tokens[77] = tokens[5]


KNOWN = {
    "a token twice": ("qwen3", same_token, "tokenizer.ggml.tokens has the same text, .* for 5 and 77"),
    "layers": ("qwen3", set_to("qwen3.block_count", "I", 1023), "qwen3.block_count is 1023, .* from 1 to 512"),
    "no layers": ("qwen3", set_to("qwen3.block_count", "I", 0), "qwen3.block_count is 0"),
    "experts used": (
        "qwen3moe",
        set_to("qwen3moe.expert_used_count", "I", 99),
        "expert_used_count is 99, .* from 1 to",
    ),
    "experts": ("qwen3moe", set_to("qwen3moe.expert_count", "I", 0), "expert_used_count is .* from 0 to 0"),
    "an epsilon": ("llama", set_to("llama.attention.layer_norm_rms_epsilon", "f", -1e-5), "epsilon is -"),
    "no epsilon": ("llama", set_to("llama.attention.layer_norm_rms_epsilon", "f", float("nan")), "epsilon is nan"),
    "a size": ("jamba", set_to("jamba.ssm.inner_size", "I", 64), "ends llama.cpp .SIGABRT: .*GGML_ASSERT"),
    "a head": ("rwkv7", set_to("rwkv7.wkv.head_size", "I", 128), "ends llama.cpp .SIGABRT: .*GGML_ASSERT"),
}


@pytest.mark.parametrize("name", KNOWN)
def test_values_for_which_llama_cpp_ends_the_process_are_refused(name, tmp_path):
    family, change, says = KNOWN[name]
    with pytest.raises(InputError, match=says):
        inspect(changed(tmp_path, family, change))


def test_a_file_is_tried_once_and_no_more_by_the_workers_of_its_machine(tmp_path, started):
    settings = changed(tmp_path, "llama", lambda file: None)
    inspect(settings)
    probes._probe.cache_clear()  # another process
    load(settings).close()
    assert started == [Path(str(settings.path))]
    bad = changed(tmp_path, "jamba", KNOWN["a size"][1])
    for _ in range(2):
        with pytest.raises(InputError):
            inspect(bad)
    bad.probe = False
    inspect(bad)
    assert len(started) == 3


def test_a_process_that_hangs_is_ended(tmp_path, monkeypatch):
    hangs = tmp_path / "hangs.py"
    hangs.write_text("import time\ntime.sleep(999)")
    monkeypatch.setattr(probes, "_CHILD", hangs)
    monkeypatch.setattr(probes, "TIMEOUT_S", 0.1)
    with pytest.raises(InputError, match=r"model.gguf ends llama.cpp \(it was not done after 0.1 s\)"):
        inspect(changed(tmp_path, "llama", lambda file: None))


def test_a_large_model_has_a_stand_in_of_a_layer_of_each_kind(tmp_path, started, monkeypatch):
    shape = replace(named_shape("tiny-lfm2"), n_layer=12, attention_every=3)
    whole = write_model(tmp_path / "whole.gguf", shape=shape, file_type="f32").path
    monkeypatch.setattr(probes, "WHOLE_BYTES", 0)
    assert probes.write_stand_in([whole], tmp_path / "few.gguf")
    few = check_gguf(tmp_path / "few.gguf")
    assert few.values[b"lfm2.block_count"].scalar == 3
    assert {name[:6] for name in few.tensors if name.startswith(b"blk.")} == {b"blk.0.", b"blk.1.", b"blk.2."}
    assert (tmp_path / "few.gguf").stat().st_blocks * 512 < whole.stat().st_size / 10
    inspect(ModelSettings(path=str(whole)))
    assert [path.name for path in started] == ["model.gguf"]  # the stand-in's


def test_what_ends_the_stand_in_and_not_the_model_runs(tmp_path, started, monkeypatch):
    shape = replace(named_shape("tiny"), n_layer=6)
    whole = write_model(tmp_path / "whole.gguf", shape=shape, file_type="f32").path
    monkeypatch.setattr(probes, "WHOLE_BYTES", 0)

    def broken(parts: list[Path], target: Path) -> bool:
        file = File.read(FAMILIES / "jamba.gguf")
        KNOWN["a size"][1](file)
        target.write_bytes(file.written())
        return True

    monkeypatch.setattr(probes, "write_stand_in", broken)
    inspect(ModelSettings(path=str(whole)))
    assert [path.name for path in started] == ["model.gguf", "whole.gguf"]
