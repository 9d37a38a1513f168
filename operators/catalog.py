"""The catalog of operators, made from their docstrings: `python -m pipeline operators` and docs/operators.md."""

from __future__ import annotations

import inspect
import json
import pydoc
import textwrap
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.api.docstrings import arguments, as_written, sections
from pipeline.api.errors import ConfigError, ExitCode, did_you_mean
from pipeline.system.terminal import say

CATALOG = {
    "Sources": ("sources.read_prompts.ReadPrompts",),
    "From rows to token ids": ("render.Render", "tokens.Tokenize", "batch_by_length.BatchByLength"),
    "With the model": (
        "generate.Generate",
        "score.Score",
        "choose.Choose",
        "embed.Embed",
        "rerank.Rerank",
        "classify.Classify",
    ),
    "Columns": ("map.Map", "columns.Select", "columns.Rename", "parse_json.ParseJson", "tokens.Split", "say.Say"),
    "Rows": (
        "filter.Filter",
        "dedup.Dedup",
        "sample_rows.Sample",
        "limit.Limit",
        "best_of.BestOf",
        "best_of.Majority",
        "gather.Gather",
        "gather.Pairs",
        "explode.Explode",
        "union.Union",
    ),
    "Your own": ("call.Call",),
    "Sinks": ("sinks.write_rows.WriteRows",),
}
"""Paths below `operators.`, by purpose."""

_WIDTH = 120


class Argument(NamedTuple):
    """Arguments of an operator that share one explanation in its docstring."""

    defaults: Mapping[str, str | None]
    """Default by name, both as written in a job; None for a required argument."""
    text: str


class Entry:
    """The parsed docstring of an operator. `path`: of its class, below `operators.`."""

    def __init__(self, path: str) -> None:
        self.target = f"operators.{path}"
        self.name = path.rpartition(".")[2]
        self.operator: Any = pydoc.locate(self.target)
        self.text, parts = sections(self.operator)
        self.summary = " ".join(self.text.split("\n\n")[0].split()).split(". ")[0].rstrip(".") + "."
        self.example = parts.get("Example", "").strip("\n")
        self.arguments = list(self._arguments())

    def _arguments(self) -> Iterator[Argument]:
        parameters = inspect.signature(self.operator).parameters.values()
        defaults = {as_written(p.name): None if p.default is p.empty else _in_yaml(p.default) for p in parameters}
        for names, text in arguments(self.operator):
            yield Argument({name: defaults.get(name) for name in names}, text)


def entries() -> dict[str, list[Entry]]:
    """Return all operators, by purpose."""
    return {title: [Entry(path) for path in paths] for title, paths in CATALOG.items()}


def targets() -> list[str]:
    """List the classes that a job can write as `_target_`."""
    return [entry.target for members in entries().values() for entry in members]


def listing() -> str:
    """Return one line for each operator."""
    lines = ["operators (python -m pipeline operators NAME tells more):"]
    for title, members in entries().items():
        lines += ["", f"{title}:"]
        lines += [f"  {e.name:14} {textwrap.shorten(e.summary, _WIDTH - 17, placeholder=' ...')}" for e in members]
    return "\n".join(lines)


def described(name: str) -> str:
    """Return the docstring of the operator `name` as text; a ConfigError if there is none."""
    paths = {path.rpartition(".")[2]: path for members in CATALOG.values() for path in members}
    path = next((path for known, path in paths.items() if known.lower() == name.lower()), None)
    if path is None:
        hint = did_you_mean(name, paths) or f"; the operators are {', '.join(paths)}"
        raise ConfigError(f"there is no operator '{name}'{hint}")
    entry = Entry(path)
    lines = [f"{entry.name}   (_target_: {entry.target})", "", entry.text]
    lines += ["", "arguments:"] if entry.arguments else []
    for defaults, text in entry.arguments:
        lines.append("  " + ", ".join(n if d is None else f"{n} (default {d})" for n, d in defaults.items()))
        lines.append(textwrap.indent(textwrap.fill(text, _WIDTH - 6), "      "))
    return "\n".join([*lines, "", "example:", textwrap.indent(entry.example, "  ")])


def markdown() -> str:
    """Return the text of docs/operators.md."""
    lines = [
        "# Operators",
        "",
        "```sh",
        ".venv/bin/python -m pipeline operators           # lists all",
        ".venv/bin/python -m pipeline operators Filter    # prints one",
        "```",
        "",
        "A node of a job names an operator as `op._target_`, and its arguments beside that.",
        "This page is made from the docstrings by `python -m pipeline operators --markdown`.",
    ]
    for title, members in entries().items():
        lines += ["", f"## {title}"]
        for entry in members:
            lines += ["", f"### {entry.name}", "", f"`{entry.target}`", "", entry.text]
            lines += ["", "| argument | default | |", "|---|---|---|"] if entry.arguments else []
            for defaults, text in entry.arguments:
                names = ", ".join(f"`{name}`" for name in defaults)
                values = ", ".join("required" if d is None else f"`{d}`" for d in defaults.values())
                lines.append(f"| {names} | {values} | {text.replace('|', '&#124;')} |")
            lines += ["", "```yaml", entry.example, "```"]
    return "\n".join(lines) + "\n"


def main(given: Sequence[str]) -> int:
    """Run the command `operators`: list the operators, or explain those that are named."""
    parser = ArgumentParser(prog="python -m pipeline operators", description="list or explain what jobs are made of")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of an operator to explain")
    parser.add_argument("--markdown", action="store_true", help="print docs/operators.md")
    named = parser.parse_args(given)
    if named.markdown:
        say([markdown().rstrip("\n")])
    elif named.names:
        say(["\n\n".join(described(name) for name in named.names)])
    else:
        say([listing()])
    return ExitCode.DONE


def _in_yaml(value: object) -> str:
    return (value or "''") if isinstance(value, str) else json.dumps(value)
