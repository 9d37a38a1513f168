"""Credentials are used and never kept: settings and messages as they may stand in config.yaml, state.sqlite and logs.

Options of file systems stand under the key `storage_options`, wherever a job has it. Of these a text is kept only
where its key is known to hold no secret; the others become LEFT_OUT. Of a URL anywhere, what stands before the host
or behind `?` (a signature) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from pipeline.api.errors import ConfigError

STORAGE_OPTIONS = "storage_options"
LEFT_OUT = "(left out)"
HARMLESS = frozenset({"account_name", "endpoint", "endpoint_url", "profile", "project", "region", "region_name"})
"""Keys whose text tells where something lies and not who may have it."""
_USER = re.compile(r"(?<=://)(?<!github://)[^/@:\s]*:[^/@\s]*@")
"""name:password@. Without a colon it is no secret (abfs://container@account), and github:// spells org:repo@commit."""
_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]+")
"""Elsewhere `?` belongs to a glob."""


def for_keeping(value: Any) -> Any:
    """Return `value` (mappings, lists and scalars) as it may be written down."""
    if isinstance(value, Mapping):
        return {k: _options(v) if k == STORAGE_OPTIONS else for_keeping(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [for_keeping(v) for v in value]
    return clean_url(value) if isinstance(value, str) else value


def clean_url(text: str) -> str:
    """Return `text`, which may hold URLs, without what stands in them before the host and behind `?`."""
    return _QUERY.sub(r"\1?" + LEFT_OUT, _USER.sub("", text)) if "://" in text else text


def refuse_noted_credentials(arguments: Sequence[str]) -> None:
    """Refuse credentials in the command line of a sweep, which Hydra writes into a file.

    Raises:
        ConfigError: credentials stand in it as they are.
    """
    if {"-m", "--multirun"} & set(arguments):
        for key, _, value in (argument.partition("=") for argument in arguments):
            if STORAGE_OPTIONS in key.lstrip("+").split(".") and "${oc.env:" not in value:
                raise ConfigError(
                    f"{key}: in a sweep the command line is written to outputs/.hydra; name environment variables there"
                    f" ('{key}={{key: ${{oc.env:MY_KEY}}}}'), or leave it out where the file system has variables of"
                    " its own"
                )


def has_password(url: str) -> bool:
    """Return True if a name and a password stand before the host."""
    return _USER.search(url) is not None


def without_secrets(text: str, options: Mapping[str, Any]) -> str:
    """Return a message of a library, without the secrets among `options` (`storage_options`) and in URLs."""
    for secret in sorted(_secrets(options), key=len, reverse=True):
        text = text.replace(secret, LEFT_OUT)
    return clean_url(text)


def usable(options: Any) -> Any:
    """Return `options`, as they came back from config.yaml, without what was left out there."""
    if isinstance(options, Mapping):
        return {k: usable(v) for k, v in options.items() if v != LEFT_OUT}
    return options


def _options(value: Any, key: object = None) -> Any:
    if isinstance(value, Mapping):
        return {k: _options(v, k) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_options(v, key) for v in value]
    if not isinstance(value, str):
        return value
    return clean_url(value) if key in HARMLESS else LEFT_OUT


def _secrets(options: Any, key: object = None) -> Iterator[str]:
    if isinstance(options, Mapping):
        for name, value in options.items():
            yield from _secrets(value, name)
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _secrets(value, key)
    elif isinstance(options, str) and len(options) > 2 and key not in HARMLESS:
        yield options


def shown_url(url: str) -> str:
    """Return a URL without what may be secret in it: user, path and query."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}/..."
