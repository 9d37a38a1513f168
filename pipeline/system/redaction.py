"""Decide which values are secret, and keep them out of everything that is written, compared or printed.

A value is secret by its place (`is_secret_place`: headers, storage options, an argument that is marked or named so), as
the user or the query of a URL, or because it is written `${secret:NAME}`. `for_keeping` is for what is written,
`comparable` for fingerprints, `hidden` (known_secrets.py) for what is printed or logged, whose text somebody else has
made.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from pipeline.api.errors import ConfigError
from pipeline.system.known_secrets import (
    LEFT_OUT,
    QUERY,
    REFERENCE,
    URL_USER,
    SecretMissing,
    as_typed,
    hidden,
    is_secret_name,
    named_in,
    note_secret,
    note_typed,
    secret,
)

STORAGE_OPTIONS = "storage_options"
SECRET = frozenset({STORAGE_OPTIONS, "headers"})
"""Keys of settings below which strings may be credentials, whatever their own names."""
HARMLESS = frozenset({"account_name", "endpoint", "endpoint_url", "profile", "project", "region", "region_name"})
"""Keys of `storage_options` that hold a location and not a secret."""
OF_USERS = frozenset(
    {"schema", "types", "rename", "columns", "logit_bias", "json_schema", "resources", "price_per_million"}
    | {"numbers", "templates", "template_kwargs", "labels", "fields", "messages"}
)
"""Keys below which keys are columns, tokens or properties of the user's data: their names mark no secret."""
_NO_USER = ("abfs", "abfss", "adl", "wasb", "wasbs", "github", "gitlab")
"""Schemes with a container or a repository before the @."""


def is_secret_place(path: tuple[str, ...], marked: Collection[tuple[str, ...]] = ()) -> bool:
    """Return whether what stands at `path` (keys from the settings' root) is secret. `marked`: places whose operator
    marks the argument as `Secret`."""
    keys = path
    if path[:1] == ("nodes",):
        keys = path[3:] if path[2:3] == ("op",) else ()
    elif path[:1] == ("steps",):
        keys = path[2:]
    if keys[:2] == ("model", "query"):  # of the URL of a server
        return True
    for place, key in enumerate(keys):
        if key in OF_USERS and place + 1 < len(keys):
            return False
        if key in SECRET and place + 1 < len(keys):
            return keys[-1] not in HARMLESS or STORAGE_OPTIONS not in keys
        if key in SECRET or is_secret_name(key):
            return True
    return any(path[: len(place)] == tuple(place) for place in marked)


def for_keeping(value: Any, path: tuple[str, ...] = (), marked: Collection[tuple[str, ...]] = ()) -> Any:
    """Return `value` (mappings, lists and scalars) with `${secret:NAME}` or `${oc.env:NAME}` where a secret is: as it
    was typed, else with a name made of its place. A storage option becomes LEFT_OUT, an argument of on_finish `...`.

    Args:
        path, marked: see is_secret_place.
    """
    if isinstance(value, Mapping):
        return {k: for_keeping(v, (*path, str(k)), marked) for k, v in value.items()}
    if isinstance(value, list | tuple):
        kept = [for_keeping(v, path, marked) for v in value]
        return [*kept[:1], *("..." for _ in kept[1:])] if path == ("on_finish", "command") else kept
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return value
    text, is_text = str(value), isinstance(value, str)
    if not is_secret_place(path, marked):
        if not is_text:
            return value
        # A storage option that is left out needs no name: the file system has variables of its own.
        return clean_url(text) if STORAGE_OPTIONS in path else _urls_hidden(named_in(text), _name_of(path))
    if text == LEFT_OUT or REFERENCE.search(text) or (SECRET & set(path) and not is_text):
        return value  # the last: a port, a number of retries
    note_secret(text)
    return as_typed(text) or (LEFT_OUT if STORAGE_OPTIONS in path else f"${{secret:{_name_of(path)}}}")


def found_again(value: Any, path: tuple[str, ...] = ()) -> Any:
    """Return `value`, read from config.yaml, with its secrets. Raises SecretMissing, which names the key."""
    if isinstance(value, Mapping):
        return {k: found_again(v, (*path, str(k))) for k, v in value.items()}
    if isinstance(value, list):
        return [found_again(v, path) for v in value]
    if not isinstance(value, str) or "${" not in value:
        return value
    is_secret = is_secret_place(path)

    def read(match: re.Match[str]) -> str:
        if match[1]:
            return secret(match[1])
        value_there: str | None = os.environ.get(match[2]) or match[3]
        if value_there is None and is_secret:
            raise SecretMissing(f"there is no environment variable {match[2]}")
        return match[0] if value_there is None else value_there

    try:
        text = REFERENCE.sub(read, value)
    except SecretMissing as error:
        raise SecretMissing(f"{'.'.join(path)} is kept nowhere: {error}") from None
    if is_secret:
        note_secret(text)
    note_typed(text, value)
    return text


def comparable(values: Mapping[str, Any], marked: Collection[tuple[str, ...]] = ()) -> dict[str, Any]:
    """Return a fingerprint without secrets, so that it stays the same when they change. Also of one that a version
    before this has stored."""
    kept = {}
    for key, value in values.items():
        path = tuple(key.removeprefix(".").split("."))
        if is_secret_place(path, marked):
            for_keeping(value, path, marked)  # notes it
        else:
            kept[key] = _each(value, lambda text: _urls_hidden(named_in(text), None))
    return kept


def secret_places(value: Any, path: tuple[str, ...] = (), marked: Collection[tuple[str, ...]] = ()) -> Iterator[str]:
    """Yield the keys of secrets in `value` that are written as they are, and note these."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from secret_places(inner, (*path, *str(key).split(".")), marked)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from secret_places(inner, path, marked)
    elif for_keeping(value, path, marked) != value:
        yield ".".join(path)


def note_secret_places(value: Any, path: tuple[str, ...] = ()) -> None:
    """Note the secrets in `value` that are written as they are."""
    for _ in secret_places(value, path):
        pass


def clean_url(text: str) -> str:
    """Return `text` with user, password and query removed from the URLs in it."""
    if "://" not in text:
        return text
    return QUERY.sub(r"\1?" + LEFT_OUT, URL_USER.sub(lambda m: f"{m[1]}://" if _is_user(m) else m[0], text))


def shown_argument(argument: str) -> str:
    """Return an argument of the command line for a message that Hydra cannot read it: without its value if that may
    have a secret, which is noted."""
    key, equals, value = argument.partition("=")
    typed = key if equals else argument
    path = tuple(typed.lstrip("+~-").split("."))
    words = re.findall(r"[\w-]+(?=['\"]?\s*[:=])", value if equals else argument)
    of_users = path[0] in ("nodes", "steps", "on_finish")
    if of_users or is_secret_place(path) or any(word in SECRET or is_secret_name(word) for word in words):
        for each in re.findall(r"[^\s{}\[\],:'\"]+", value if equals else argument):
            note_secret(each)
        return f"{key}=..." if equals else "..."
    return clean_url(argument)


def refuse_noted_credentials(overrides: Mapping[str, Any]) -> None:
    """Refuse credentials on the command line of a sweep, which Hydra writes to a file. `overrides`: values by key."""
    for key, value in overrides.items():
        if next(secret_places(value, tuple(key.split("."))), None):
            raise ConfigError(
                f"{key}: in a sweep the command line is written to outputs/.hydra; name secrets there"
                f" ('{key}=${{secret:NAME}}' or ${{oc.env:NAME}}), or leave it out where the file system has variables"
                " of its own"
            )


def has_password(url: str) -> bool:
    """Return True if the URL has user and password, or is of the web and has a token in their place."""
    users = URL_USER.finditer(url)
    return any(_is_user(user) and (":" in user[2] or user[1].lower()[:4] == "http") for user in users)


def without_secrets(text: str, options: Mapping[str, Any]) -> str:
    """Return a library's message without the secrets in `options` (`storage_options`) and in URLs."""
    for each in sorted(_secrets(options), key=len, reverse=True):
        text = text.replace(each, LEFT_OUT)
    return hidden(clean_url(text))


def without_redacted(options: Any) -> Any:
    """Return `options` read from config.yaml without the entries that were redacted there."""
    if isinstance(options, Mapping):
        return {k: without_redacted(v) for k, v in options.items() if v != LEFT_OUT}
    return options


def shown_url(url: str) -> str:
    """Return scheme, host and port of a URL; user, path and query may be secret."""
    parts = urlsplit(url)
    port = f":{parts.port}" if parts.port else ""
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    return f"{parts.scheme}://{host}{port}/..."


def _secrets(options: Any, key: object = None) -> Iterator[str]:
    if isinstance(options, Mapping):
        for name, value in options.items():
            yield from _secrets(value, name)
    elif isinstance(options, list | tuple):
        for value in options:
            yield from _secrets(value, key)
    elif isinstance(options, str) and len(options) > 2 and key not in HARMLESS:
        yield options


def _each(value: Any, change: Callable[[str], str]) -> Any:
    """Return `value` with `change` applied to every string in it."""
    if isinstance(value, Mapping):
        return {key: _each(inner, change) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_each(inner, change) for inner in value]
    return change(value) if isinstance(value, str) else value


def _urls_hidden(text: str, name: str | None) -> str:
    """Return `text` without users and queries of URLs. `name`: of the secrets in their place; None for a fingerprint,
    where a hash stands for what is in the middle of a text: another prompt is another job."""
    if "://" not in text:
        return text
    is_url = len(text.split()) == 1

    def instead(secret_part: str, suffix: str) -> str:
        if REFERENCE.search(secret_part) or secret_part == LEFT_OUT:
            return secret_part
        note_secret(secret_part)
        if name is not None:
            return f"${{secret:{name}_{suffix}}}"
        return LEFT_OUT if is_url else hashlib.sha256(secret_part.encode()).hexdigest()[:16]

    hidden_text = QUERY.sub(lambda m: f"{m[1]}?{instead(m[2], 'QUERY')}", text)  # first: LEFT_OUT has a space
    hidden_text = URL_USER.sub(lambda m: f"{m[1]}://{instead(m[2], 'USER')}@" if _is_user(m) else m[0], hidden_text)
    return (as_typed(text) or hidden_text) if name is not None and hidden_text != text else hidden_text


def _is_user(match: re.Match[str]) -> bool:
    scheme, user = match[1].lower().rpartition("+")[2], match[2]
    return bool(user) and (scheme not in _NO_USER or (":" in user and scheme not in ("github", "gitlab")))


def _name_of(path: tuple[str, ...]) -> str:
    """Return the name of the secret at `path`: MODEL_HEADERS_AUTHORIZATION, CALL_API_KEY of `nodes.call.op.api_key`."""
    keys = path
    if path[:1] == ("nodes",) and path[2:3] == ("op",):
        keys = path[3:] if len(path) > 4 and path[3] in ("data", "model", "output") else (path[1], *path[3:])
    return re.sub(r"\W+", "_", "_".join(keys)).upper() or "SECRET"
