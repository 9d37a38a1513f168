"""The file of a model: found, tried, and converted to the type that a job asks for."""

from __future__ import annotations

from pathlib import Path

from operators.llama.convert import converted
from operators.llama.header import parts_of
from operators.llama.probing.probe import probe
from operators.settings import ModelSettings
from pipeline.api.errors import ConfigError, InputError

_MAGIC = b"GGUF"


def gguf_path(settings: ModelSettings) -> Path:
    """Return the model file or the first of its parts, after a check of the first bytes of each, and a trial, see
    `probe`."""
    if not settings.path:
        raise ConfigError("model.path is not set; give the path of a GGUF file (model.path=/models/my.gguf)")
    path = Path(settings.path).expanduser()
    if not path.is_file():
        what = "is a directory" if path.is_dir() else "is no regular file" if path.exists() else "does not exist"
        raise InputError(f"model.path={settings.path} {what}; give the path of a GGUF file")
    for part in parts_of(path):
        named = f"model.path={settings.path}" if part == path else str(part)
        try:
            with part.open("rb") as file:
                head = file.read(4)
        except OSError as error:
            raise InputError(f"{named} cannot be read: {error.strerror}") from error
        if head != _MAGIC:
            found = "an empty file" if not head else f"a file that begins with {head!r}"
            raise InputError(f"{named} is {found}, not a GGUF model; convert it with llama.cpp's tools")
    if settings.probe:
        probe(path)
    return path


def weights_path(settings: ModelSettings) -> Path:
    """Return the file to load: the model file, or what `model.weights` has made of it. See `gguf_path`, `converted`."""
    path, wanted = gguf_path(settings), settings.converts_to
    return path if wanted is None else converted(path, wanted)


def refusal_of(settings: ModelSettings) -> str | None:
    """Return why llama.cpp does not load the model file, as its trial tells; None if it does, or was not tried."""
    refusal = probe(path := gguf_path(settings)) if settings.probe else None
    return None if refusal is None else f"{path} could not be loaded: {refusal}"
