"""`python -m pipeline operators`: the catalogue of operators, made from their docstrings, also as docs/operators.md."""

from __future__ import annotations

import inspect
import json
import textwrap
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pipeline.api.docstrings import arguments, as_written, sections
from pipeline.api.errors import ConfigError, ExitCode, did_you_mean
from pipeline.config.build import load_object
from pipeline.system.terminal import say

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
        self.operator: Any = load_object(self.target)
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
    return {title: [Entry(path) for path in paths] for title, paths in load_object("operators:CATALOG").items()}


def listing() -> str:
    """Return one line for each operator."""
    lines = ["operators (python -m pipeline operators NAME tells more):"]
    for title, members in entries().items():
        lines += ["", f"{title}:"]
        lines += [f"  {e.name:14} {textwrap.shorten(e.summary, _WIDTH - 17, placeholder=' ...')}" for e in members]
    return "\n".join(lines)


def described(name: str) -> str:
    """Return the docstring of the operator `name` as text; a ConfigError if there is none."""
    known = {entry.name: entry for members in entries().values() for entry in members}
    entry = next((entry for entry in known.values() if entry.name.lower() == name.lower()), None)
    if entry is None:
        hint = did_you_mean(name, known) or f"; the operators are {', '.join(known)}"
        raise ConfigError(f"there is no operator '{name}'{hint}")
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


def main(argv: Sequence[str]) -> int:
    """Run the command `operators`: list the operators, or explain those that are named."""
    parser = ArgumentParser(prog="python -m pipeline operators", description="list or explain what jobs are made of")
    parser.add_argument("names", nargs="*", metavar="NAME", help="of an operator to explain")
    parser.add_argument("--markdown", action="store_true", help="print docs/operators.md")
    options = parser.parse_args(argv)
    if options.markdown:
        say([markdown().rstrip("\n")])
    elif options.names:
        say(["\n\n".join(described(name) for name in options.names)])
    else:
        say([listing()])
    return ExitCode.DONE


def _in_yaml(value: object) -> str:
    return (value or "''") if isinstance(value, str) else json.dumps(value)
