"""`model=hub`: a GGUF model from the Hugging Face Hub, fetched once into the Hub's own cache, pinned and hashed."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from pathlib import Path

from operators.engine.backend.loading import ModelFacts, check_options
from operators.llama.adapters.declared import with_adapters
from operators.llama.header import facts_of, part_names, parts_of
from operators.llama.hub_files import hub_file, hub_options
from operators.llama.model import LlamaModel, placed
from operators.llama.model import load as load_file
from operators.llama.model_file import refusal_of, weights_path
from operators.llama.placement import check_placement
from operators.settings import ModelSettings
from pipeline.api.errors import ConfigError, InputError
from pipeline.system.atomic_files import sha256_of

_SHA256 = re.compile(r"[0-9a-f]{64}")


def load(settings: ModelSettings) -> LlamaModel:
    """Load the model of `model=hub`."""
    return load_file(_as_file(settings))


def inspect(settings: ModelSettings) -> ModelFacts:
    """Read the facts of the file. Its fingerprint, which the manifest has, is its SHA-256 or those of its parts.

    Raises:
        ConfigError, InputError: see `fetch`.
        ConfigError: layers cannot be where `settings` have them.
        InputError: a file in the cache is not the one that the Hub announced.
    """
    check_placement(settings)
    settings = _as_file(settings)
    path = Path(settings.path or "")
    fetched = " ".join(["sha256", *map(_verified, parts_of(path))])
    used = weights_path(settings)
    facts = facts_of(used, fetched if used == path else None, refusal_of(settings))
    return placed(with_adapters(facts, settings, used), settings, used)


def fetch(settings: ModelSettings) -> Path:
    """Return the file in the Hub's cache, or the first of its parts; downloads, with a progress bar, what is not there.

    `settings.options` go to hf_hub_download: cache_dir, endpoint, token, local_files_only ...

    Raises:
        ConfigError: repo, file or revision is missing, there is no such option, or huggingface_hub is not installed.
        InputError: there is no such file, or no network.
    """
    repo, file, revision = (_required(settings, key) for key in ("repo", "file", "revision"))
    check_options(settings, hub_options())
    paths = [hub_file(repo, name, revision, settings.options, "model") for name in part_names(file)]
    return paths[0]


def _as_file(settings: ModelSettings) -> ModelSettings:
    """Return `settings` with the path of the fetched model. A vision encoder is a file of the same repository if its
    name alone is given."""
    path, given = fetch(settings), settings.mmproj
    own = {"repo": settings.repo, "revision": settings.revision, "file": given}
    return replace(settings, path=str(path), mmproj=own if isinstance(given, str) else given)


def _required(settings: ModelSettings, key: str) -> str:
    value: str | None = getattr(settings, key)
    if not value:
        raise ConfigError(f"model.{key} is not set; model=hub needs model.repo, model.file and model.revision")
    return value


def _verified(path: Path) -> str:
    digest = _digest(path.resolve(), path.stat().st_mtime_ns)
    announced = path.resolve().name  # the cache names a large file by the hash that the Hub announced for it
    if _SHA256.fullmatch(announced) and announced != digest:
        raise InputError(f"{path} is damaged: its SHA-256 is {digest}; delete it, and it is fetched again")
    return digest


@functools.lru_cache(maxsize=16)
def _digest(path: Path, changed: int) -> str:
    """Hash a file; cached until its modification time changes."""
    return sha256_of(path)
