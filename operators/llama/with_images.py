"""The vision encoder that a job gives to its model (`model.mmproj`): found, checked against the model, and loaded."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from operators.engine.backend.images import ImageSizes, Pixels
from operators.engine.backend.loading import ImageFacts, ModelFacts
from operators.llama.header import content_of
from operators.llama.hub_files import hub_file
from operators.llama.mmproj import Mmproj, read_mmproj
from operators.llama.probe import probe_images
from operators.llama.vision import LlamaVision, libmtmd
from operators.settings import ModelSettings
from operators.settings.checks import check
from pipeline.api.errors import ConfigError, InputError

_MIN, _MAX = "clip.vision.image_min_pixels", "clip.vision.image_max_pixels"


def with_images(facts: ModelFacts, settings: ModelSettings, model: Path) -> ModelFacts:
    """Return `facts` with those of the vision encoder of `settings`; where there is none, why, and what to do.

    Raises:
        InputError: the file is missing, damaged, no mmproj, ends libmtmd, or belongs to another model than `model`.
        ConfigError: this llama.cpp was built without libmtmd, or model.image_tokens has no meaning for it.
    """
    if facts.refusal is not None:
        return facts
    if (mmproj := _declared(settings)) is None:
        return replace(facts, no_images=_no_images(settings, model))
    libmtmd()
    if mmproj.width is not None and facts.n_embd is not None and mmproj.width != facts.n_embd * mmproj.levels:
        raise InputError(
            f"model.mmproj={mmproj.path} makes {mmproj.width // mmproj.levels} numbers of a part of an image, and"
            f" {model} takes {facts.n_embd}: it belongs to another model"
        )
    if settings.probe:
        probe_images(mmproj.path)
    size = mmproj.path.stat().st_size
    return replace(facts, images=ImageFacts(_fingerprint(settings, mmproj), size, _resize(settings, mmproj)))


def vision_of(settings: ModelSettings, model: ctypes.c_void_p, threads: int) -> LlamaVision | None:
    """Load the vision encoder of `settings` for `model`; None if there is none. Raises as `with_images` does."""
    if (mmproj := _declared(settings)) is None:
        return None
    return LlamaVision(
        mmproj,
        model,
        fingerprint=_fingerprint(settings, mmproj),
        resize=_resize(settings, mmproj),
        threads=threads,
        tokens=settings.image_tokens,
        gpu=settings.gpu_layers > 0,
    )


def _declared(settings: ModelSettings) -> Mmproj | None:
    given = settings.mmproj
    if given is None:
        check(settings.image_tokens is None, "model.image_tokens", settings.image_tokens, "there is no model.mmproj")
        return None
    mmproj = read_mmproj(_place(settings))
    kinds = f"images of a {mmproj.projector} have the same number of tokens whatever it is; leave it out"
    check(settings.image_tokens is None or mmproj.has_limits, "model.image_tokens", settings.image_tokens, kinds)
    return mmproj


def _place(settings: ModelSettings) -> Path:
    """Return the file of model.mmproj; of the Hub, it is fetched if it is not in its cache."""
    given = settings.mmproj
    if not isinstance(given, Mapping):
        return Path(given).expanduser()
    if "repo" not in given:
        return Path(given["path"]).expanduser()
    if given.get("revision") is None:
        raise ConfigError("model.mmproj needs a revision beside repo: a commit hash or tag, so that it stays the same")
    return hub_file(given["repo"], given["file"], given["revision"], settings.options, "model.mmproj")


def _fingerprint(settings: ModelSettings, mmproj: Mmproj) -> str:
    limits = settings.image_tokens or {}
    return content_of(mmproj.path) + "".join(f" {name}={limits[name]}" for name in sorted(limits))


def _resize(settings: ModelSettings, mmproj: Mmproj) -> ImageSizes:
    try:  # until it is there
        resize_of = importlib.import_module("operators.images.resize").resize_of
    except ImportError:
        return _AsIs()
    limits = settings.image_tokens or {}
    pixels = {key: limits[name] * mmproj.cell**2 for key, name in ((_MIN, "min"), (_MAX, "max")) if name in limits}
    resize: ImageSizes = resize_of({**mmproj.values, **pixels})
    return resize


class _AsIs:
    def size(self, width: int, height: int) -> tuple[int, int]:
        return width, height

    def apply(self, pixels: Pixels) -> Pixels:
        return pixels


def _no_images(settings: ModelSettings, model: Path) -> str:
    """Return why a model reads no images. A file that lies beside it is named, and not taken: another file would be
    another result."""
    if settings.repo is not None:
        return f"model.mmproj is not set: give the file of {settings.repo} that has the vision encoder (mmproj-*.gguf)"
    beside = sorted(path for path in model.parent.glob("*mmproj*.gguf") if path != model)
    if beside:
        names = " and ".join(path.name for path in beside[:3])
        return f"model.mmproj is not set; beside the model lies {names}: model.mmproj={beside[0]}"
    return "model.mmproj is not set: give the GGUF file of the model's vision encoder (mmproj-*.gguf)"
