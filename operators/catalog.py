"""The operators that jobs are made of, from their docstrings: `python -m pipeline operators` and docs/operators.md."""

from __future__ import annotations

import difflib
import importlib
import inspect
import keyword
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pipeline.errors import ConfigError, ExitCode

CATALOG = {
    "Sources": ("sources.read_prompts.ReadPrompts",),
    "From rows to token ids": ("render.Render", "tokens.Tokenize", "batch_by_length.BatchByLength"),
    "With the model": ("generate.Generate", "score.Score", "embed.Embed"),
    "Columns": ("map.Map", "columns.Select", "columns.Rename", "parse_json.ParseJson"),
    "Rows": (
        "filter.Filter",
        "dedup.Dedup",
        "sample_rows.Sample",
        "limit.Limit",
        "best_of.BestOf",
        "explode.Explode",
        "union.Union",
    ),
    "Your own": ("call.Call",),
    "Sinks": ("sinks.write_rows.WriteRows",),
}
"""Paths below `operators.`, under what they are for."""

_SECTION = re.compile(r"^(Args|Raises|Example|Returns):$", re.MULTILINE)
_ARGUMENT = re.compile(r"^(\w+(?:, \w+)*): ", re.MULTILINE)
_WIDTH = 120


@dataclass(frozen=True)
class Argument:
    """One line of `Args`: names that are explained together.

    Args:
        names: as a job writes them.
        defaults: of each, as in YAML; None where one must be given.
        text: what they are.
    """

    names: tuple[str, ...]
    defaults: tuple[str | None, ...]
    text: str


class Entry:
    """What an operator says of itself.

    Args:
        path: of the class, below `operators.`.
    """

    def __init__(self, path: str) -> None:
        self.target = f"operators.{path}"
        self.name = path.rpartition(".")[2]

    @cached_property
    def operator(self) -> Any:
        """The class."""
        module, _, name = self.target.rpartition(".")
        return getattr(importlib.import_module(module), name)

    @cached_property
    def _sections(self) -> dict[str, str]:
        parts = _SECTION.split(inspect.getdoc(self.operator) or "")
        named = {name: textwrap.dedent(body.strip("\n")) for name, body in zip(parts[1::2], parts[2::2], strict=True)}
        return {"": parts[0].strip(), **named}

    @property
    def text(self) -> str:
        """What it does, in paragraphs."""
        return self._sections[""]

    @property
    def summary(self) -> str:
        """The first sentence."""
        first = " ".join(self.text.split("\n\n", 1)[0].split())
        return first.split(". ", 1)[0].rstrip(".") + "."

    @property
    def example(self) -> str:
        """A node of a job, as YAML."""
        return self._sections.get("Example", "").strip("\n")

    @property
    def arguments(self) -> list[Argument]:
        """What a job may give, in the order of the docstring."""
        parts = _ARGUMENT.split(self._sections.get("Args", ""))
        defaults = self._defaults()
        found = []
        for names, body in zip(parts[1::2], parts[2::2], strict=True):
            each = tuple(_as_written(name) for name in names.split(", "))
            found.append(Argument(each, tuple(defaults.get(name) for name in each), " ".join(body.split())))
        return found

    def _defaults(self) -> dict[str, str | None]:
        parameters = inspect.signature(self.operator).parameters.values()
        return {_as_written(p.name): None if p.default is p.empty else _in_yaml(p.default) for p in parameters}


def entries() -> dict[str, list[Entry]]:
    """All operators, under what they are for."""
    return {title: [Entry(path) for path in paths] for title, paths in CATALOG.items()}


def targets() -> list[str]:
    """What a job can write as `_target_`."""
    return [entry.target for members in entries().values() for entry in members]


def listing() -> str:
    """A line for each operator."""
    lines = ["operators (python -m pipeline operators NAME tells more):"]
    for title, members in entries().items():
        lines += ["", f"{title}:"]
        lines += [f"  {e.name:14} {textwrap.shorten(e.summary, _WIDTH - 17, placeholder=' ...')}" for e in members]
    return "\n".join(lines)


def described(name: str) -> str:
    """All that the operator `name` says of itself.

    Raises:
        ConfigError: there is none.
    """
    known = {entry.name: entry for members in entries().values() for entry in members}
    entry = next((e for n, e in known.items() if n.lower() == name.lower()), None)
    if entry is None:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]}?" if near else f"the operators are {', '.join(known)}"
        raise ConfigError(f"there is no operator '{name}'; {hint}")
    lines = [f"{entry.name}   (_target_: {entry.target})", "", entry.text]
    if entry.arguments:
        lines += ["", "arguments:"]
        for argument in entry.arguments:
            given = ", ".join(
                n if d is None else f"{n} (default {d})" for n, d in zip(argument.names, argument.defaults, strict=True)
            )
            lines += [f"  {given}", textwrap.indent(textwrap.fill(argument.text, _WIDTH - 6), "      ")]
    return "\n".join([*lines, "", "example:", textwrap.indent(entry.example, "  ")])


def markdown() -> str:
    """docs/operators.md."""
    return "\n".join(_markdown_lines()) + "\n"


def _markdown_lines() -> Iterator[str]:
    yield "# Operators"
    yield ""
    yield "Made from the docstrings by `python -m pipeline operators --markdown`. A node of a job names an operator as"
    yield "`op._target_`, and its arguments beside that. `python -m pipeline operators` lists them,"
    yield "`python -m pipeline operators Filter` prints one."
    for title, members in entries().items():
        yield from ["", f"## {title}"]
        for entry in members:
            yield from ["", f"### {entry.name}", "", f"`{entry.target}`", "", entry.text]
            if entry.arguments:
                yield from ["", "| argument | default | |", "|---|---|---|"]
                for argument in entry.arguments:
                    names = ", ".join(f"`{name}`" for name in argument.names)
                    defaults = ", ".join("required" if d is None else f"`{d}`" for d in argument.defaults)
                    yield f"| {names} | {defaults} | {argument.text.replace('|', '&#124;')} |"
            yield from ["", "```yaml", entry.example, "```"]


def main(arguments: Sequence[str]) -> int:
    """The command `operators`: a list, or what is asked for.

    Raises:
        ConfigError: an operator that does not exist is asked for.
    """
    if list(arguments) == ["--markdown"]:
        print(markdown(), end="")
    elif arguments:
        print("\n\n".join(described(name) for name in arguments))
    else:
        print(listing())
    return ExitCode.DONE


def _as_written(name: str) -> str:
    """`as_` in Python is `as` in a job."""
    return name[:-1] if name.endswith("_") and keyword.iskeyword(name[:-1]) else name


def _in_yaml(value: object) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return value or "''"
    return str(list(value) if isinstance(value, tuple) else value)
