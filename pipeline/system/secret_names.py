"""Tell by the name of a key or of an argument whether its value is a secret: `api_key` is, `max_tokens` is not."""

from __future__ import annotations

import re
from itertools import pairwise

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
    | {
        "eos",
        "bos",
        "eot",
        "eom",
        "eog",
        "pad",
        "padding",
        "unk",
        "sep",
        "cls",
        "mask",
        "stop",
        "end",
        "start",
        "begin",
    }
    | {
        "special",
        "first",
        "last",
        "next",
        "new",
        "max",
        "min",
        "per",
        "a",
        "one",
        "each",
        "forced",
        "think",
        "thinking",
    }
    | {"reasoning", "draft", "prefix", "suffix", "control", "added", "yes", "no", "true", "false", "word", "byte"}
    | {"chat", "tool", "user_turn", "separator", "newline", "blank", "replacement", "vocabulary", "vocab"}
)
"""Words before `key` and `token` that say which: of rows, or of a model."""
_ABOUT = frozenset(
    {"env", "file", "path", "dir", "folder", "name", "names", "id", "ids", "column", "columns", "count", "counts"}
    | {"length", "len", "size", "limit", "max", "min", "url", "type", "kind", "format", "index", "template", "prompt"}
    | {"pattern", "regex", "s", "ms", "per", "policy", "strength", "score", "rate", "field", "fields", "label"}
)
"""Words at the end of a name that say something about a secret, and not the secret: `key_env`, `password_file`."""


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
