"""Jinja templates that may come from a stranger's model file: sandboxed, bounded, and the same text every time.

The sandbox keeps a template from reaching Python; what it may cost is bounded in size (the text, a range, a repeated
sequence, a padded string), not in time: loops nested without output can still take minutes.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from jinja2.exceptions import SecurityError

from pipeline.errors import ConfigError

MAX_TEXT_CHARACTERS = 16 << 20
MAX_ITEMS = jinja2.sandbox.MAX_RANGE
MAX_EXPONENT = 64
MAX_WIDTH_DIGITS = 3
PADDING_METHODS = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs", "format_map"})


class Template:
    """A compiled template.

    Args:
        source: its text.
        name: what it is called in errors.
        strict: an unknown variable and a printed null are errors (templates that users write over columns); otherwise
            they are empty and `None`, as chat templates expect.
        date: what `strftime_now` formats. None: there is no `strftime_now`, for which the templates that ask for it
            (`is defined`) have a fixed date of their own. The clock's date would make every run another one.

    Raises:
        ConfigError: it does not compile; names the line.
    """

    def __init__(self, source: str, name: str, *, strict: bool, date: datetime.date | None = None) -> None:
        environment = _environment(strict, date)
        try:
            self.unknown = frozenset(
                jinja2.meta.find_undeclared_variables(environment.parse(source)) - environment.globals.keys()
            )
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"{name}, line {error.lineno}: {error.message}") from error
        self.name = name

    def render(self, values: dict[str, Any]) -> str:
        """The text.

        Raises:
            jinja2.TemplateError: the template refuses (`raise_exception`), names what is not there, or its text grows
                beyond MAX_TEXT_CHARACTERS. What its expressions raise (TypeError ...) comes through as it is.
        """
        pieces: list[str] = []
        room = MAX_TEXT_CHARACTERS
        for piece in self._template.root_render_func(self._template.new_context(values)):
            pieces.append(piece)
            room -= len(piece)
            if room < 0:
                raise jinja2.TemplateRuntimeError(f"the text is longer than {MAX_TEXT_CHARACTERS} characters")
        return "".join(pieces)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja's sandbox, without the ways to make a huge value in one step."""

    intercepted_binops = frozenset({"*", "**", "%"})

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        """`*`, `**` and `%` up to a size."""
        sizes = [len(v) for v in (left, right) if isinstance(v, str | list | tuple)]
        counts = [v for v in (left, right) if isinstance(v, int)]
        if operator == "*" and sizes and counts and sizes[0] * counts[0] > MAX_ITEMS:
            raise SecurityError(f"repeats to more than {MAX_ITEMS} items")
        if operator == "**" and (abs(left) > MAX_ITEMS or abs(right) > MAX_EXPONENT):
            raise SecurityError("a power of numbers this large")
        if operator == "%" and isinstance(left, str):
            return _format(left, *(right if isinstance(right, tuple) else (right,)))
        return super().call_binop(context, operator, left, right)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        """Jinja's rule, and no padding of strings to any width."""
        return super().is_safe_attribute(obj, attr, value) and not (isinstance(obj, str) and attr in PADDING_METHODS)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja's sandboxed `str.format`, for fields without a width."""
        wrapped = super().wrap_str_format(value)
        if wrapped is not None and re.search(r"\{[^{}]*:", value.__self__):
            raise SecurityError("format with a ':' in a field; use ~ to join strings")
        return wrapped


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks what the model wrote, for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 - typed so by Jinja

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """The content, in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _environment(strict: bool, date: datetime.date | None) -> Sandbox:
    environment = Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", GenerationTag],
        undefined=jinja2.StrictUndefined if strict else jinja2.Undefined,
        finalize=_printable if strict else None,
    )
    environment.filters["tojson"] = _to_json
    environment.filters["format"] = _format
    del environment.filters["center"]
    environment.globals["raise_exception"] = _raise_exception
    if date is not None:
        environment.globals["strftime_now"] = _formatter(date)
    return environment


def _printable(value: object) -> object:
    if value is None:
        raise jinja2.TemplateRuntimeError("prints a null; guard it with {% if column %} or {{ column or '' }}")
    return value


def _format(form: str, *values: Any) -> str:
    """`form % values` with fields of at most 999 characters."""
    if re.search(rf"%[^a-zA-Z%]*(\*|\d{{{MAX_WIDTH_DIGITS + 1}}})", form):
        raise SecurityError(f"a field wider than {MAX_WIDTH_DIGITS} digits say")
    return form % values


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _formatter(date: datetime.date) -> Callable[[str], str]:
    return lambda form: date.strftime(form)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers has it: unlike Jinja's own filter, it does not escape for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
