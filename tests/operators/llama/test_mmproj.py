"""What is no vision encoder of the model is refused when the job is composed, before libmtmd ends the process."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFValueType

from operators.engine.backend.images import ImageCells
from operators.engine.backend.loading import identity, inspect_model
from operators.generation.memory import model_memory
from operators.llama import hub
from operators.llama import with_images as with_images_module
from operators.llama.model import inspect, load
from operators.llama.probing.probe import _probe_images
from operators.llama.with_images import with_images
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from pipeline import PROJECT
from pipeline.api.errors import ConfigError, InputError, PipelineError
from pipeline.system.file_cache import PLACE
from tests.operators.llama.gguf_files import copied
from tools.models.vocabularies import MetaValue

IMAGES = PROJECT / "tests/families/images"
QWEN = ModelSettings(path=str(IMAGES / "qwen2vl.gguf"), mmproj=str(IMAGES / "mmproj-qwen2vl.gguf"))
SMOL = ModelSettings(path=str(IMAGES / "smolvlm.gguf"), mmproj=str(IMAGES / "mmproj-smolvlm.gguf"))
NO_VISION = MetaValue("clip.has_vision_encoder", False, GGUFValueType.BOOL)
SOUNDS = MetaValue("clip.has_audio_encoder", True, GGUFValueType.BOOL)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv(PLACE, str(tmp_path / "cache"))
    _probe_images.cache_clear()


def changed(*keys: MetaValue, **options: Any) -> Callable[[Path], str]:
    return lambda folder: str(copied(Path(str(QWEN.mmproj)), folder / "mmproj.gguf", keys, **options))


def written(content: bytes) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        (folder / "mmproj.gguf").write_bytes(content)
        return str(folder / "mmproj.gguf")

    return write


def kind(projector: str) -> MetaValue:
    return MetaValue("clip.projector_type", projector, GGUFValueType.STRING)


REFUSED: dict[str, tuple[Callable[[Path], str], str]] = {
    "no file": (lambda folder: str(folder / "none"), "model.mmproj=.*none does not exist; give the GGUF file"),
    "a folder": (str, "is a directory"),
    "no GGUF": (written(b"PK\3\4"), "is no GGUF file"),
    "cut off": (lambda folder: written(Path(str(QWEN.mmproj)).read_bytes()[:900])(folder), "copied or fetched whole"),
    "a model": (lambda _: str(QWEN.path), "is no mmproj, but a file of the kind model, qwen2vl; give .* --mmproj"),
    "sounds": (changed(NO_VISION, SOUNDS), "reads sounds, and no images"),
    "nothing": (changed(NO_VISION), "reads no images"),
    "an unknown kind": (changed(kind("telescope")), "could not be loaded: .*unknown projector type: telescope"),
    "places": (changed(kind("deepseek4v")), "deepseek4v aligns images to their place in the prompt; it is refused"),
    "no tensor": (changed(tensors=slice(0, 20)), "has no tensor mm.2.bias, which a qwen2vl_merger needs"),
    "a size": (
        changed(MetaValue("clip.vision.embedding_length", 48, GGUFValueType.UINT32)),
        "ends llama.cpp .SIGABRT: .*GGML_ASSERT|could not be loaded",
    ),
    "a type": (
        changed(MetaValue("clip.vision.embedding_length", 32.0, GGUFValueType.FLOAT32)),
        "ends llama.cpp .SIGABRT: .*GGML_ASSERT",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_with_the_reason_when_the_job_is_composed(name, tmp_path):
    make, says = REFUSED[name]
    with pytest.raises(InputError, match=says):
        inspect(replace(QWEN, mmproj=make(tmp_path)))


def test_what_only_an_image_shows_is_refused_too(tmp_path):
    """It loads, and ends the process when it encodes."""
    layers = MetaValue("clip.vision.n_wa_pattern", 1, GGUFValueType.UINT32)
    path = copied(IMAGES / "mmproj-qwen2.5vl.gguf", tmp_path / "mmproj.gguf", [layers])
    with pytest.raises(InputError, match=r"ends llama.cpp \(SIG"):
        inspect(ModelSettings(path=str(IMAGES / "qwen2.5vl.gguf"), mmproj=str(path)))


def test_an_encoder_of_another_model_is_refused(tmp_path):
    facts, path = inspect(QWEN), Path(str(QWEN.path))
    assert facts.n_embd
    with pytest.raises(InputError, match=rf"makes {facts.n_embd} numbers of a part of an image, and .* takes 99"):
        with_images(replace(facts, n_embd=99), QWEN, path)
    names = {"<|vision_start|>": "<start_of_image>", "<|vision_end|>": "<end_of_image>"}
    settings = replace(QWEN, path=renamed(QWEN, names, tmp_path), mmproj=str(IMAGES / "mmproj-gemma3.gguf"))
    model = load(settings)
    with pytest.raises(InputError, match="gemma3, which does not go with a model with M-RoPE"):
        assert model.vision
    model.close()


def test_a_vocabulary_that_lacks_a_token_of_an_image_is_refused(tmp_path):
    """libmtmd would spell the name of the first, and take -1 for an empty line, which llama_decode takes for other
    content."""
    qwen = replace(QWEN, path=renamed(QWEN, {"<|vision_end|>": "<|another|>"}, tmp_path))
    with pytest.raises(InputError, match=r"has no token <\|vision_end\|>"):
        inspect(qwen)
    model = load(replace(SMOL, path=renamed(SMOL, {"ĊĊ": "ĊĊĊ"}, tmp_path)))
    with pytest.raises(InputError, match="lacks a token that stands between"):
        assert model.vision
    model.close()


def renamed(settings: ModelSettings, names: Mapping[str, str], folder: Path) -> str:
    def change(key: MetaValue) -> MetaValue:
        if not isinstance(key.value, list) or key.key != "tokenizer.ggml.tokens":
            return key
        return key._replace(value=[names.get(token, token) for token in key.value])

    return str(copied(Path(str(settings.path)), folder / Path(str(settings.path)).name, changed=change))


def test_a_file_beside_the_model_is_named_and_not_taken(tmp_path):
    for source in (QWEN.path, QWEN.mmproj):
        shutil.copy(str(source), tmp_path)
    facts = inspect_model(ModelSettings(path=str(tmp_path / "qwen2vl.gguf")))
    assert facts.images is None
    assert facts.no_images.endswith(f"there is mmproj-qwen2vl.gguf: model.mmproj={tmp_path / 'mmproj-qwen2vl.gguf'}")
    (tmp_path / "mmproj-qwen2vl.gguf").unlink()
    assert "give the GGUF file" in inspect_model(ModelSettings(path=str(tmp_path / "qwen2vl.gguf"))).no_images


def test_its_content_and_limits_count_where_they_are_given(tmp_path):
    plain, own = identity(replace(QWEN, mmproj=None)), identity(QWEN)
    assert plain == {"model": own["model"]}
    elsewhere = str(shutil.copy(str(QWEN.mmproj), tmp_path / "other.gguf"))
    assert identity(replace(QWEN, mmproj={"path": elsewhere})) == own
    other = copied(Path(str(QWEN.mmproj)), tmp_path / "new.gguf", rows=lambda tensor: tensor.data * np.float32(1.5))
    found = {identity(replace(QWEN, mmproj=str(other)))["mmproj"]}
    found |= {identity(replace(QWEN, image_tokens=limits))["mmproj"] for limits in ({"min": 9}, {"max": 99}, None)}
    assert len(found) == 4
    model = load(QWEN)
    assert model.vision
    assert model.vision.fingerprint == own["mmproj"]
    model.close()


def test_a_photo_of_a_phone_has_as_many_tokens_as_rows_have_room_for():
    """Where nobody says more; all families with limits, by the sizes alone."""
    for name in ("qwen2vl", "qwen2.5vl", "qwen3vl"):
        settings = ModelSettings(path=str(IMAGES / f"{name}.gguf"), mmproj=str(IMAGES / f"mmproj-{name}.gguf"))
        model = load(settings)
        assert model.vision
        cells = [
            part for part in model.vision.layout(*model.vision.resize.size(4032, 3024)) if isinstance(part, ImageCells)
        ]
        assert 1000 < sum(part.tokens for part in cells) <= 1280
        model.close()


def test_limits_bound_the_tokens_of_an_image():
    """Also below those of llama.cpp, which libmtmd would resize to."""
    model = load(replace(QWEN, image_tokens={"min": 2, "max": 6}))
    assert model.vision
    for size in ((16, 16), (400, 300)):
        _, cells, _ = model.vision.layout(*model.vision.resize.size(*size))
        assert isinstance(cells, ImageCells)
        assert 2 <= cells.tokens <= 6
    model.close()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (replace(SMOL, image_tokens={"max": 9}), "have the sizes that it was trained with"),
        (replace(QWEN, mmproj=None, image_tokens={"max": 9}), "there is no model.mmproj"),
        (replace(QWEN, mmproj={"repo": "some/model", "file": "mmproj.gguf"}), "needs a revision beside repo"),
    ],
)
def test_what_has_no_meaning_is_refused(settings, says):
    with pytest.raises(PipelineError, match=says):
        inspect(settings)


@pytest.mark.parametrize(
    "values",
    [
        *(
            {"mmproj": given}
            for given in (5, "", {}, {"repo": "a", "revision": "b"}, {"path": "a", "repo": "b"}, ["a"])
        ),
        *({"image_tokens": given} for given in (5, {}, {"min": 5, "max": 4}, {"least": 4}, {"min": 0}, {"max": 1.5})),
    ],
    ids=str,
)
def test_values_that_say_nothing_are_refused(values):
    with pytest.raises(ConfigError, match=f"model.{next(iter(values))}=.* cannot work"):
        replace(QWEN, **values)


def test_its_memory_is_counted():
    needs = {need.what: need.size_bytes for need in model_memory(QWEN, EngineSettings(max_sequence_tokens=64), "key")}
    size = Path(str(QWEN.mmproj)).stat().st_size
    assert needs[f"the vision encoder of {QWEN.path}"] == size


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("mmproj-f16.gguf", ("some/model", "mmproj-f16.gguf", "v1")),
        ({"repo": "other/model", "file": "eyes.gguf", "revision": "v2"}, ("other/model", "eyes.gguf", "v2")),
    ],
    ids=["of the model", "of another"],
)
def test_it_is_fetched_from_the_hub(given, asked, monkeypatch):
    files: list[tuple[str, str, str]] = []

    def fetched(repo: str, name: str, revision: str, *_: object) -> Path:
        files.append((repo, name, revision))
        return Path(str(QWEN.path if name == "model.gguf" else QWEN.mmproj))

    for module in (hub, with_images_module):
        monkeypatch.setattr(module, "hub_file", fetched)
    own = replace(QWEN, path=None, repo="some/model", file="model.gguf", revision="v1", mmproj=given)
    assert hub.inspect(own).images == inspect(QWEN).images
    assert asked in files
    model = hub.load(own)
    assert model.vision
    model.close()
    missing = hub.inspect(replace(own, mmproj=None)).no_images
    assert "give the file of some/model that has the vision encoder" in missing
