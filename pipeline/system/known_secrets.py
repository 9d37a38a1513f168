"""Tell secrets by their names, read them, remember those of this process, and take them out of texts."""

from __future__ import annotations

import json
import os
import re
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import quote

from pipeline.api.errors import ConfigError

LEFT_OUT = "(left out)"
SHORTEST = 6
"""Characters of the shortest secret that is looked for in other texts: a shorter one is in too many words."""
FOLDER = Path("/run/secrets")
REFERENCE = re.compile(r"\$\{secret:\s*([^}\s]+)\s*\}|\$\{oc\.env:\s*([^},\s]+)\s*(?:,\s*([^}]*?)\s*)?\}")
URL_USER = re.compile(r"([a-z][a-z0-9+.-]*)://([^/\s?#'\"]*)@", re.IGNORECASE)
QUERY = re.compile(r"(https?://[^\s?'\"]+)\?([^\s'\"]+)", re.IGNORECASE)
"""Queries of http(s) URLs; elsewhere `?` is part of a glob."""
_DATA_URL = re.compile(r"(;base64,)([A-Za-z0-9+/=]{65,})")
_SCHEMES = frozenset({"bearer", "basic", "digest", "token", "apikey", "api-key", "key"})
"""Words before the credentials in a header."""
_known: dict[str, tuple[str, ...]] = {}
"""Secrets of this process, each with the forms in which a text may have it."""
_named: dict[str, str] = {}
"""Values of `${secret:NAME}`, each with that."""
_typed: dict[str, str] = {}
"""Values of settings that name their secrets, each with what was typed: `Bearer ${oc.env:KEY}`."""

_STRONG = frozenset(
    {"password", "passwords", "passwd", "passphrase", "passcode", "pwd", "secret", "secrets", "credential"}
    | {"credentials", "apikey", "apikeys", "authorization", "accesskey", "secretkey", "privatekey", "authtoken"}
    | {"accesstoken", "refreshtoken", "cookie", "cookies"}
)
"""Words that mean a secret wherever they stand in a name."""
_WEAK = frozenset({"key", "token"})
"""Words that mean a secret at the end of a name, unless one of _OTHER stands before them."""
_PLURAL = frozenset({"keys", "tokens"})
"""Words that mean secrets behind one of _OF_ACCESS alone: `api_keys`."""
_OF_ACCESS = frozenset({"api", "access", "auth", "bearer", "private", "refresh", "secret", "session", "signing"})
_OTHER = frozenset(
    # keys of rows, mappings and stores
    {"id", "row", "sort", "sorting", "order", "group", "grouping", "join", "primary", "foreign", "partition", "index"}
    | {"column", "col", "json", "dict", "map", "field", "cache", "dedup", "lookup", "merge", "unique", "hash", "public"}
    | {"natural", "object", "item", "record", "doc", "document", "text", "prompt", "answer", "response", "score"}
    | {"label", "content", "result", "value", "config", "by", "on", "input", "output", "shard", "bucket", "count"}
    | {"seed", "question", "message", "messages", "image", "target", "source", "left", "right", "name", "split"}
    # tokens of a model
    | {"eos", "bos", "eot", "eom", "eog", "pad", "padding", "unk", "sep", "cls", "mask", "stop", "end", "start"}
    | {"begin", "special", "first", "last", "next", "new", "max", "min", "per", "a", "one", "each", "forced", "think"}
    | {"thinking", "reasoning", "draft", "prefix", "suffix", "control", "added", "yes", "no", "true", "false", "word"}
    | {"byte", "chat", "tool", "user_turn", "separator", "newline", "blank", "replacement", "vocabulary", "vocab"}
)
"""Words before `key` and `token` that say which: of rows, or of a model."""
_ABOUT = frozenset(
    {"env", "file", "path", "dir", "folder", "name", "names", "id", "ids", "column", "columns", "count", "counts"}
    | {"length", "len", "size", "limit", "max", "min", "url", "type", "kind", "format", "index", "template", "prompt"}
    | {"pattern", "regex", "s", "ms", "per", "policy", "strength", "score", "rate", "field", "fields", "label"}
)
"""Words at the end of a name that say something about a secret, and not the secret: `key_env`, `password_file`."""


class SecretMissing(ConfigError):
    """A secret is nowhere where it is looked for."""


def secret(name: str) -> str:
    """Return the secret `name`: of the environment variable, else of the file that NAME_FILE names, else of
    /run/secrets/NAME. Raises SecretMissing."""
    value, named = os.environ.get(name), os.environ.get(f"{name}_FILE")
    if value is None:
        try:
            value = Path(named or FOLDER / name).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, ValueError):
            value = None
    if not value:
        raise SecretMissing(
            f"there is no secret {name}: set the environment variable {name}, or {name}_FILE to the path of a file that"
            f" has it, or put it into {FOLDER / name}"
        )
    note_secret(value)
    _named[value] = f"${{secret:{name}}}"
    return value


def note_secret(value: str) -> None:
    """Have `hidden` take `value` out of texts, and the words of it that are secret by themselves."""
    words = value.split()
    secrets = {value, *(words[1:] if words and words[0].lower() in _SCHEMES else ())}
    for each in secrets | set(re.findall(r"(?<==)[^\s;,&]+", value) if ";" in value or "&" in value else ()):
        if len(each) >= SHORTEST and each not in _known:
            forms = {each, json.dumps(each)[1:-1], json.dumps(each, ensure_ascii=False)[1:-1], repr(each)[1:-1]}
            _known[each] = tuple(forms | {quote(each), quote(each, safe="")})


def note_typed(value: str, typed: str) -> None:
    """Note that the setting `value` was written `typed`, if that names all of its secrets."""
    rest = REFERENCE.sub("", typed)
    words = re.split(r"[\s=&;,:@]", rest)
    if "://" in rest:  # of a URL the user and the values of the query
        words = [word for _, user in URL_USER.findall(rest) for word in user.split(":")]
        words += [word for _, query in QUERY.findall(rest) for word in re.findall(r"(?<==)[^&;]+", query)]
    if rest != typed and all(len(word) < SHORTEST or word.lower() in _SCHEMES for word in words):
        _typed[value] = typed


def hidden(text: str) -> str:
    """Return a text that is to be printed, logged or kept as a reason, without the secrets of this process and without
    what `data:` URLs hold."""
    text = without_data_urls(text)
    for value in sorted(_known, key=len, reverse=True):
        for form in _known[value]:
            if form in text:
                text = text.replace(form, LEFT_OUT)
    return text


def without_data_urls(text: str) -> str:
    """Return `text` with the length of what long `data:` URLs hold in its place."""
    return _DATA_URL.sub(lambda match: f"{match[1]}({len(match[2]):,} characters)", text)


def as_typed(value: str) -> str | None:
    """Return how the setting `value` was written, with names for its secrets; None if it was not so."""
    return _typed.get(value)


def named_in(text: str) -> str:
    """Return `text` with `${secret:NAME}` in place of the values of such."""
    for value in sorted(_named, key=len, reverse=True):
        if text == value or len(value) >= SHORTEST:
            text = text.replace(value, _named[value])
    return text


@lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Return whether a value under this name is a secret: whole words of it count, in snake_case, kebab-case and
    camelCase; a number at its end does not."""
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name)
    words = [word for word in re.split(r"[^A-Za-z0-9]+", spaced.lower()) if word and not word.isdigit()]
    words = [word.rstrip("0123456789") or word for word in words]
    if not words or words[-1] in _ABOUT:
        return False
    pairs = set(pairwise(words))
    if _STRONG & set(words) or any(a in _OF_ACCESS and b in _WEAK | _PLURAL for a, b in pairs):
        return True
    return words[-1] in _WEAK and (len(words) == 1 or words[-2] not in _OTHER)
