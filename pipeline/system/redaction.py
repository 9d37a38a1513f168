"""Remove credentials from settings and messages before they are written to config.yaml, state.sqlite or logs.

Strings below the keys `storage_options` and `headers` become LEFT_OUT, except under the keys in HARMLESS. URLs anywhere
lose user and password before the host, and the query (it may be a signature).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from pipeline.api.errors import ConfigError

STORAGE_OPTIONS = "storage_options"
SECRET = frozenset({STORAGE_OPTIONS, "headers"})
"""Keys of settings below which strings may be credentials."""
LEFT_OUT = "(left out)"
HARMLESS = frozenset({"account_name", "endpoint", "endpoint_url", "profile", "project", "region", "region_name"})
"""Keys of `storage_options` that hold a location and not a secret."""
_USER = re.compile(r"(?<=://)(?<!github://)[^/@:\s]*:[^/@\s]*@")
"""user:password@. Without a colon it is not a secret (abfs://container@account); github:// has org:repo@commit."""
_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]+")
"""Queries of http(s) URLs; elsewhere `?` is part of a glob."""


def for_keeping(value: Any, key: object = None, *, is_option: bool = False) -> Any:
    """Return `value` (mappings, lists and scalars) without credentials. `key`: of the value. `is_option`: it is below
    one of SECRET."""
    if isinstance(value, Mapping):
        return {k: for_keeping(v, k, is_option=is_option or k in SECRET) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [for_keeping(v, key, is_option=is_option) for v in value]
    if not isinstance(value, str):
        return value
    return LEFT_OUT if is_option and key not in HARMLESS else clean_url(value)


def clean_url(text: str) -> str:
    """Return `text` with user, password and query removed from the URLs in it."""
    return _QUERY.sub(r"\1?" + LEFT_OUT, _USER.sub("", text)) if "://" in text else text


def refuse_noted_credentials(arguments: Sequence[str]) -> None:
    """Refuse credentials on the command line of a sweep, which Hydra writes to a file: an argument for one of
    SECRET there names an environment variable."""
    if {"-m", "--multirun"} & set(arguments):
        for key, _, value in (argument.partition("=") for argument in arguments):
            if SECRET & set(key.lstrip("+").split(".")) and "${oc.env:" not in value:
                raise ConfigError(
                    f"{key}: in a sweep the command line is written to outputs/.hydra; name environment variables there"
                    f" ('{key}={{key: ${{oc.env:MY_KEY}}}}'), or leave it out where the file system has variables of"
                    " its own"
                )


def has_password(url: str) -> bool:
    """Return True if the URL has user and password."""
    return _USER.search(url) is not None


def without_secrets(text: str, options: Mapping[str, Any]) -> str:
    """Return a library's message without the secrets in `options` (`storage_options`) and in URLs."""
    for secret in sorted(_secrets(options), key=len, reverse=True):
        text = text.replace(secret, LEFT_OUT)
    return clean_url(text)


def without_redacted(options: Any) -> Any:
    """Return `options` read from config.yaml without the entries that were redacted there."""
    if isinstance(options, Mapping):
        return {k: without_redacted(v) for k, v in options.items() if v != LEFT_OUT}
    return options


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
    """Return scheme, host and port of a URL; user, path and query may be secret."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    return f"{parts.scheme}://{parts.hostname}{port}/..."
