"""llama.cpp's grammars (GBNF) in the notation of llguidance (Lark).

Each character is a terminal of its own, since llguidance takes the longest match of a terminal: `[a-z]+ "x"` as two
terminals would have no text. Rules get names of ours: llguidance's mean something, by their case.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from itertools import pairwise

_RULE = re.compile(r"^[ \t]*([\w-]+)[ \t]*::=", re.MULTILINE)
_TOKEN = re.compile(
    r"""(?P<space> \s+ | \#[^\r\n]* )
      | (?P<head> [\w-]+ ) [ \t]* ::=
      | (?P<name> [\w-]+ )
      | (?P<literal> "(?:\\.|[^"\\])*" )
      | (?P<class> \[(?:\\.|[^\]\\])*\] )
      | (?P<any> \. )
      | (?P<repeat> [*+?] | \{\s*\d+\s*(?:,\s*\d*\s*)?\} )
      | (?P<group> [()|] )""",
    re.VERBOSE | re.DOTALL,
)
_CHAR = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|([^\\])", re.DOTALL)
_ESCAPES = {"t": "\t", "r": "\r", "n": "\n", "\\": "\\", '"': '"', "[": "[", "]": "]"}
_ANY = f"/[\\x00-{chr(sys.maxunicode)}]/"


def is_gbnf(text: str) -> bool:
    """Return whether `text` has a rule as GBNF writes it."""
    return _RULE.search(text) is not None


def lark_of(gbnf: str) -> str:
    """Return the grammar in Lark's notation, with a rule `start` for `root`. Raise ValueError, with the line, for what
    cannot be read."""
    names: dict[str, str] = {"root": "start"}
    rules: dict[str, list[list[str]]] = {}
    used: dict[str, int] = {}
    # The open group comes last: its parts, of which a repetition takes the last one.
    open_: list[list[str]] = []
    at = 0
    while at < len(gbnf):
        line = gbnf.count("\n", 0, at) + 1
        if (token := _TOKEN.match(gbnf, at)) is None:
            raise ValueError(f"line {line} has {gbnf[at:].splitlines()[0][:40]!r}; that is no GBNF, or names a token")
        at = token.end()
        kind, text = token.lastgroup, token[token.lastgroup or 0]
        if kind == "space":
            continue
        if kind == "head":
            if len(open_) > 1:
                raise ValueError(f"line {line} begins a rule within a group that is not closed")
            open_ = [[]]
            rules[names.setdefault(text, f"r{len(names)}")] = open_  # the last one counts, as in llama.cpp
            continue
        if not open_:
            raise ValueError(f"line {line} has {text[:40]!r} before the first rule")
        parts = open_[-1]
        try:
            if kind == "name":
                used.setdefault(text, line)
                parts.append(names.setdefault(text, f"r{len(names)}"))
            elif kind == "literal":
                parts.append(_literal(text[1:-1]))
            elif kind == "class":
                parts.append(_class(text[1:-1]))
            elif kind == "any":
                parts.append(_ANY)
            elif kind == "repeat" and parts[-1] != "|":
                parts.append(f"({parts.pop()}){''.join(text.split())}")
            elif text == "(":
                open_.append([])
            elif text == ")":
                del open_[-1]
                open_[-1].append(f"({_joined(parts)})")
            elif text == "|":
                parts.append(text)
            else:
                raise IndexError
        except IndexError as error:
            raise ValueError(f"line {line} has {text!r} behind nothing that it could belong to") from error
        except ValueError as error:
            raise ValueError(f"line {line} has {text[:40]}: {error}") from error
    if len(open_) > 1:
        raise ValueError("a group is not closed at its end")
    for name, line in {"root": 0, **used}.items():
        if names[name] not in rules:
            raise ValueError(f"Rule '{name}' not found" + (f", of line {line}" if line else ""))
    return "\n".join(f"{name}: {_joined(parts)}" for name, (parts,) in rules.items())


def _joined(parts: Sequence[str]) -> str:
    """Return alternatives as one expression; some may be empty."""
    words: list[str] = []
    for previous, part in pairwise(["|", *parts, "|"]):
        words += ['""', part] if previous == part == "|" else [part]
    return " ".join(words[:-1])


def _literal(text: str) -> str:
    return " ".join(json.dumps(char) for char, _ in _characters(text)) or '""'


def _class(text: str) -> str:
    """Return a regex of one character, in which `-` is a range between two, as in llama.cpp."""
    negated = text.startswith("^")
    characters, items, at = _characters(text[negated:]), "", 0
    while at < len(characters):
        is_range = at + 2 < len(characters) and characters[at + 1][1] == "-"
        items += _escaped(characters[at][0]) + (f"-{_escaped(characters[at + 2][0])}" if is_range else "")
        at += 3 if is_range else 1
    return f"/[{'^' * negated}{items}]/"


def _escaped(char: str) -> str:
    return f"\\x{ord(char):02x}" if char.isascii() and not char.isalnum() else char


def _characters(text: str) -> list[tuple[str, str]]:
    """Return the characters that a literal or class stands for, each with how it is written."""
    characters = []
    for match in _CHAR.finditer(text):
        *codes, escape, plain = match.groups()
        code = next((int(code, 16) for code in codes if code), None)
        if code is None:
            char = plain or _ESCAPES.get(escape)
        else:
            char = None if 0xD800 <= code < 0xE000 or code > sys.maxunicode else chr(code)
        if char is None:
            raise ValueError(f"{match[0]} is no character")
        characters.append((char, match[0]))
    return characters
