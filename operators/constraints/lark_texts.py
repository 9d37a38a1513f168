"""Texts and regexes as llguidance's Lark writes them, for grammars that are made of parts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

_ANY = "(?s:.*)"
_PIECE = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|.", re.DOTALL)
"""Of a regex: an escape, a class or a character."""

_DATE = (
    "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-9]))"
)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]+)?([zZ]|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
_HOST = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_HOST = rf"{_HOST}(\.{_HOST})*"
_LOCAL = "[a-zA-Z0-9!#$%&'*+\\/=?^_`{|}~-]+"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IN_URI = "([a-zA-Z0-9._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[tT]{_TIME}",
    "email": rf"{_LOCAL}(\.{_LOCAL})*@{_HOST}",
    "hostname": _HOST,
    "ipv4": rf"({_BYTE}\.){{3}}{_BYTE}",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "uri": rf"[a-zA-Z][a-zA-Z0-9+.-]*:\/\/{_IN_URI}+(\/{_IN_URI}*)*(\?({_IN_URI}|[\/?])*)?(#({_IN_URI}|[\/?])*)?",
    "unknown": "(?s:.)*",
}
"""As llguidance has them in JSON, for texts without quotes; of URIs those with two slashes."""


def quoted(text: str) -> str:
    """Return a text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def escaped(text: str) -> str:
    return "".join(char if char.isalnum() else f"\\x{{{ord(char):x}}}" for char in text)


def any_of(names: Sequence[str]) -> str:
    """Return a regex of these names, between the slashes of Lark."""
    return f"({'|'.join(map(escaped, names))})" if names else r"[^\s\S]"


def searched(pattern: str) -> str:
    """Return a regex, between the slashes of Lark, of the texts in which a regex of JSON Schema is found. llguidance
    refuses anchors within it."""
    branches: list[list[str]] = [[]]
    depth = 0
    for piece in _PIECE.findall(pattern):
        depth += (piece == "(") - (piece == ")")
        if piece == "|" and depth == 0:
            branches.append([])
        elif len(piece) > 1 and piece[0] == "[":  # in which Rust has operators and classes of classes
            branches[-1].append("[" + re.sub(r"(?<!\\)([\[&~/])", r"\\\1", piece[1:]).replace("\n", r"\n"))
        else:
            branches[-1].append({"/": r"\/", "\n": r"\n"}.get(piece, piece))
    several = []
    for branch in branches:
        begin, end = branch[:1] == ["^"], branch[-1:] == ["$"]
        inner = "".join(branch[begin : len(branch) - end])
        several.append(f"{'' if begin else _ANY}({inner}){'' if end else _ANY}")
    return "|".join(several)
