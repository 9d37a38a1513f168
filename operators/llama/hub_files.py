"""Files of the Hugging Face Hub, fetched once into the Hub's own cache."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from pipeline.api.errors import ConfigError, InputError, install


def hub_options() -> set[str]:
    """Return the names of the options that `hub_file` takes. Raises ConfigError if huggingface_hub is not installed."""
    return set(signature(_download()).parameters) - {"repo_id", "filename", "revision"}


def hub_file(repo: str, name: str, revision: str, options: Mapping[str, Any], key: str) -> Path:
    """Return the file `name` of `repo` in the Hub's cache; downloads it, with a progress bar, if it is not there.

    Args:
        options: for hf_hub_download: cache_dir, endpoint, token, local_files_only ...
        key: the one below which repo and file are given, for messages.

    Raises:
        ConfigError: no repository can have that name, or huggingface_hub is not installed.
        InputError: there is no such file, or no network.
    """
    download = _download()
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    what = f"{name} of {repo} at {revision}"
    file = "model=gguf model.path=" if key == "model" else f"{key}.path="
    try:
        return Path(download(repo, name, revision=revision, **options))
    except LocalEntryNotFoundError as error:
        raise InputError(
            f"{what} is not in the cache and the Hub cannot be reached; fetch it where there is a network,"
            f" or give a file: {file}"
        ) from error
    except HFValidationError as error:
        raise ConfigError(f"{key}.repo={repo}: {error}") from error
    except HfHubHTTPError as error:
        raise InputError(f"{what} could not be fetched: {str(error).splitlines()[0]}") from error


def _download() -> Callable[..., str]:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError as error:
        raise ConfigError(f"files of the Hub need huggingface_hub ({error}); {install('hub')}") from error
    return hf_hub_download
