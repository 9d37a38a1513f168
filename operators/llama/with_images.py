"""The vision encoder that a job gives to its model (`model.mmproj`): found, checked against the model, and loaded."""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from operators.engine.backend.loading import ImageFacts, ModelFacts
from operators.images.resize import resize_of
from operators.llama.devices import devices
from operators.llama.gguf_check import tokens_of
from operators.llama.header import content_of
from operators.llama.hub_files import hub_file
from operators.llama.mmproj import TOKENS, Mmproj, read_mmproj
from operators.llama.probing.probe import probe_images
from operators.llama.vision import LlamaVision, libmtmd
from operators.settings import ModelSettings
from operators.settings.checks import check
from pipeline.api.errors import ConfigError, InputError

USUAL_MOST = 1280
"""Tokens of an image at most where a model would take any number, and nobody says (model.image_tokens): a photo of a
phone would be 4,096, more than a row has room for."""
log = logging.getLogger(__name__)


def with_images(facts: ModelFacts, settings: ModelSettings, model: Path) -> ModelFacts:
    """Return `facts` with those of the vision encoder of `settings`; where there is none, why, and what to do.

    Raises:
        InputError: the file is missing, damaged, no mmproj, ends libmtmd, or belongs to another model than `model`.
        ConfigError: this llama.cpp was built without libmtmd, or model.image_tokens has no meaning for it.
    """
    if facts.refusal is not None:
        return facts
    if (mmproj := _declared(settings, model)) is None:
        return replace(facts, no_images=_no_images(settings, model))
    libmtmd()
    if mmproj.width is not None and facts.n_embd is not None and mmproj.width != facts.n_embd * mmproj.levels:
        raise InputError(
            f"model.mmproj={mmproj.path} makes {mmproj.width // mmproj.levels} numbers of a part of an image, and"
            f" {model} takes {facts.n_embd}: it belongs to another model"
        )
    if settings.probe:
        probe_images(mmproj.path, model)
    size = mmproj.path.stat().st_size
    resize = resize_of(mmproj.values, _limits(settings, mmproj))
    return replace(facts, images=ImageFacts(_fingerprint(settings, mmproj), size, resize))


def mmproj_bytes(settings: ModelSettings) -> int:
    """Return the bytes of the vision encoder of `settings`; 0 if there is none. Raises as `with_images` does."""
    return 0 if settings.mmproj is None else _place(settings).stat().st_size


def vision_of(
    settings: ModelSettings, path: Path, model: ctypes.c_void_p, threads: int, device: str | None
) -> LlamaVision | None:
    """Load the vision encoder of `settings` for `model`, which was loaded from `path`, on the device of that name
    (None: the CPU); None if there is none. Raises as `with_images` does."""
    if (mmproj := _declared(settings, path)) is None:
        return None
    limits = _limits(settings, mmproj)
    if limits and not settings.image_tokens:
        log.info("%s: images get %d tokens at most (model.image_tokens)", mmproj.path.name, USUAL_MOST)
    resize = resize_of(mmproj.values, limits)
    if resize.doubt or not mmproj.is_tested:
        log.warning("%s: %s", mmproj.path.name, resize.doubt or "no test knows this kind of vision encoder")
    return LlamaVision(
        mmproj,
        model,
        fingerprint=_fingerprint(settings, mmproj),
        resize=resize,
        threads=threads,
        tokens=limits,
        device=None if device is None else next(each.handle for each in devices() if each.name == device),
    )


def _declared(settings: ModelSettings, model: Path) -> Mmproj | None:
    given = settings.mmproj
    if given is None:
        check(settings.image_tokens is None, "model.image_tokens", settings.image_tokens, "there is no model.mmproj")
        return None
    mmproj = read_mmproj(_place(settings))
    has = settings.image_tokens is None or mmproj.has_limits
    check(has, "model.image_tokens", settings.image_tokens, "its images have the sizes that it was trained with")
    status = model.stat()
    if missing := TOKENS.get(mmproj.projector, frozenset()) - _tokens(model, status.st_size, status.st_mtime_ns):
        raise InputError(
            f"model.mmproj={mmproj.path}: the vocabulary of {model} has no token {min(missing).decode()}, which images"
            f" of a {mmproj.projector} need: it belongs to another model"
        )
    return mmproj


@functools.lru_cache(maxsize=4)
def _tokens(model: Path, size: int, changed: int) -> frozenset[bytes]:
    """Return those of TOKENS that the vocabulary of `model` has."""
    return frozenset().union(*TOKENS.values()).intersection(tokens_of(model))


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


def _limits(settings: ModelSettings, mmproj: Mmproj) -> Mapping[str, int] | None:
    """Return the fewest and most tokens of an image: as settings say, else USUAL_MOST for encoders with limits."""
    return settings.image_tokens or ({"max": USUAL_MOST} if mmproj.has_limits else None)


def _fingerprint(settings: ModelSettings, mmproj: Mmproj) -> str:
    limits = _limits(settings, mmproj) or {}
    return content_of(mmproj.path) + "".join(f" {name}={limits[name]}" for name in sorted(limits))


def _no_images(settings: ModelSettings, model: Path) -> str:
    """Return why a model reads no images. A file that lies beside it is named, and not taken: another file would be
    another result."""
    if settings.repo is not None:
        return f"model.mmproj is not set: give the file of {settings.repo} that has the vision encoder (mmproj-*.gguf)"
    beside = sorted(path for path in model.parent.glob("*mmproj*.gguf") if path != model)
    if beside:
        names = ", ".join(path.name for path in beside[:3])
        return f"model.mmproj is not set; beside the model there is {names}: model.mmproj={beside[0]}"
    return "model.mmproj is not set: give the GGUF file of the model's vision encoder (mmproj-*.gguf)"
