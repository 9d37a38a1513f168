"""`model.weights`: a model file converted to another type, once."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from operators.engine.backend.fake import inspect as inspect_fake
from operators.engine.backend.loading import identity, inspect_model
from operators.generation.memory import model_memory
from operators.llama import convert
from operators.llama.convert import converted, converted_size, type_of
from operators.llama.convert import main as convert_file
from operators.settings import ModelSettings
from operators.settings.model import WEIGHTS
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError, ExitCode, StorageError
from pipeline.cli.main import main
from pipeline.config.fingerprint import flat
from pipeline.run_dir.names import CARD, CONFIG
from pipeline.run_dir.state import STATE_FILE, RunState
from pipeline.system.file_cache import PLACE, weights_cache
from tests.operators.llama.test_metadata import TINY
from tests.pipeline.damage import files, flip
from tests.sets import often
from tools.models.make_model import write_model

pytestmark = pytest.mark.slow("converts models, and runs jobs with them")

AS_IS = ModelSettings(path=str(TINY))
BF16 = replace(AS_IS, weights="bf16")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(PLACE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def generated(folder: Path, *overrides: str) -> list[str]:
    fixed = ("job=quickstart", "data.limit=4", "sampling.max_tokens=6", "runtime.slots=4", "progress=none")
    assert main([*fixed, f"output_dir={folder}", *overrides]) == ExitCode.DONE
    return pq.read_table(folder / "data").column("completion").to_pylist()


def test_it_gives_the_completions_of_the_converted_file(tmp_path):
    texts = generated(tmp_path / "a", "model.weights=bf16", "output.card=true")
    (file,) = weights_cache().files()
    before = file.stat()
    assert before.st_size <= converted_size(TINY, "bf16") < 5 * TINY.stat().st_size + (32 << 20)
    assert generated(tmp_path / "b", f"model.path={file}") == texts
    assert generated(tmp_path / "c", "model.weights=bf16") == texts
    after = file.stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns), "it was converted once"
    assert weights_cache().files() == [file]
    assert "weights as `bf16`" in (tmp_path / "a" / CARD).read_text()
    assert '"nodes.generate.weights": "bf16"' in (tmp_path / "a" / "manifest.json").read_text()


def test_as_is_converts_nothing_and_changes_no_fingerprint():
    assert identity(AS_IS) == {"model": inspect_model(AS_IS).fingerprint}
    assert not [key for key, _ in flat("model", BF16) if "weights" in key]
    assert converted_size(TINY, "bf16") > TINY.stat().st_size, "the size is known before it is made"
    assert weights_cache().files() == []


def test_a_run_whose_auto_chose_a_type_is_repaired_and_resumed_with_it(tmp_path, capsys):
    """`model.weights=auto` of the version before; its fingerprint had what auto chose."""
    out = tmp_path / "out"
    generated(out, "model.weights=bf16")
    config = re.sub(r"( +)weights: bf16", r"\1weights: auto\n\1weights_chosen: bf16", (out / CONFIG).read_text())
    assert "weights: auto" in config
    (out / CONFIG).write_text(config)
    with closing(RunState(out / STATE_FILE)) as state:
        state.note(config=config)
    before = files(out)
    flip(out / "data/part-00000.parquet")
    assert main(["verify", str(out), "repair=true"]) == ExitCode.DONE
    assert files(out) == before
    generated(out, "model.weights=bf16")
    assert "is finished already" in capsys.readouterr().out


@pytest.mark.laws
def test_each_type_has_a_fingerprint_of_its_own_that_of_its_content():
    types = ("bf16", "f16", "f32")
    found = [identity(replace(AS_IS, weights=name)) for name in types]
    assert len({facts["model"] for facts in (identity(AS_IS), *found)}) == 4
    assert [facts["weights"] for facts in found] == list(types)
    files = {type_of(path): path for path in weights_cache().files()}
    assert inspect_model(replace(AS_IS, path=str(files["bf16"]))).fingerprint == found[0]["model"]


def test_a_file_of_the_type_is_taken_as_it_is():
    assert converted(TINY, "q8_0") == TINY


def test_the_memory_of_the_converted_file_is_counted():
    plain, wide = (
        next(iter(model_memory(m, EngineSettings(), "key"))) for m in (replace(AS_IS, kernels="llama.cpp"), BF16)
    )
    assert wide.size_bytes > 1.8 * plain.size_bytes
    assert wide.what.endswith("as bf16")


def test_rows_that_k_quants_cannot_hold_are_refused():
    with pytest.raises(ConfigError, match=r"rows of 6 of 68 tensors are no multiple of 256.*take f32, f16, bf16, q8_0"):
        converted(TINY, "q4_k_m")


def test_rounded_weights_are_made_wider_but_not_rounded_again(tmp_path):
    narrow = write_model(tmp_path / "q4.gguf", shape="tiny-256", file_type="q4_0", seed=0).path
    with pytest.raises(ConfigError, match=r"weights are rounded already \(q4_0\).*convert a file in f32, f16, bf16"):
        converted(narrow, "q8_0")
    assert type_of(converted(narrow, "bf16")) == "bf16"


def test_where_the_cache_cannot_be_the_error_names_it(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(PLACE, str(tmp_path / "file" / "below"))
    with pytest.raises(Exception, match=str(tmp_path / "file")):
        converted(TINY, "bf16")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_a_disk_that_fills_meanwhile_ends_it_with_the_room_that_is_left(tmp_path, monkeypatch):
    begun = convert._child
    free = iter([1 << 40, 0, 0])
    monkeypatch.setattr(
        convert, "_child", lambda path, to, wanted: begun(path, "/dev/full" if to != "-" else to, wanted)
    )
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=next(free)))
    with pytest.raises(StorageError, match=r"No space left on device \(0 bytes are free there\); make room"):
        converted(TINY, "f32")
    assert not list(weights_cache().folder.glob("*f32*"))


def test_what_has_no_file_refuses_it():
    with pytest.raises(ConfigError, match=r"model\.weights=bf16 cannot work: the fake model has no weights"):
        inspect_fake(ModelSettings(weights="bf16"))
    with pytest.raises(ConfigError, match=r"model\.weights='q9' cannot work: it is one of as_is, f32"):
        ModelSettings(weights="q9")


@pytest.mark.parametrize("name", often(WEIGHTS, "q4_k_m"))
def test_every_type_has_a_number_of_llama_cpp(tmp_path, name):
    source = write_model(tmp_path / "f32.gguf", shape="tiny-256", file_type="f32", seed=0).path
    assert convert_file([str(source), str(tmp_path / name), name]) == 0
    assert type_of(tmp_path / name) == name
