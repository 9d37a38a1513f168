"""Jinja templates that may come from a stranger's model file: sandboxed, bounded, and the same text every time.

The sandbox keeps a template from reaching Python. What a rendering may cost is bounded in work and in size
(template_work.py), whatever its loops, macros and filters do.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import pyarrow as pa

from operators.template_metering import meter, metering_filters, price_of
from operators.template_sandbox import Sandbox, Silent
from operators.template_work import (
    CALL_STEPS,
    CHEAP,
    LINEAR,
    MAX_STEPS,
    MAX_TEXT_CHARACTERS,
    REFUSED_FILTERS,
    TESTS,
    TooCostly,
    metered,
)
from pipeline.errors import ConfigError, SchemaError, did_you_mean
from pipeline.records import HALF_A_CHARACTER, ROW

MAX_SOURCE_CHARACTERS = 1 << 20
FREE = CHEAP | LINEAR
"""Filters that are not metered themselves."""
OTHER_TEMPLATES = (jinja2.nodes.Include, jinja2.nodes.Import, jinja2.nodes.FromImport, jinja2.nodes.Extends)


class Template:
    """A compiled template. Not for two threads at a time.

    Args:
        source: its text.
        name: what it is called in errors.
        strict: an unknown variable and a printed null or function are errors, and `row.items` is the key `items` where
            there is one (templates that users write over columns). Otherwise they are empty, `None` and the method, as
            chat templates expect.
        date: what `strftime_now` formats. None: there is no `strftime_now`, for which the templates that ask for it
            (`is defined`) have a fixed date of their own. The clock's date would make every run another one.
        max_steps: work that a rendering may cost.

    Raises:
        ConfigError: it does not compile, or takes in another template; names the line.
    """

    def __init__(
        self,
        source: str,
        name: str,
        *,
        strict: bool,
        date: datetime.date | None = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        environment = _environment(strict, date, max_steps)
        self.name = name
        self._work = environment.work
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise ConfigError(
                f"{name} has {len(source)} characters, more than {MAX_SOURCE_CHARACTERS}; is it a template?"
            )
        try:
            tree = environment.parse(source)
            self.unknown = frozenset(jinja2.meta.find_undeclared_variables(tree) - environment.globals.keys())
            self.named = frozenset(node.name for node in tree.find_all(jinja2.nodes.Name))
            environment.call_price = CALL_STEPS + price_of(list(tree.find_all((jinja2.nodes.Macro, jinja2.nodes.For))))
            self._template = environment.from_string(meter(_alone(tree, name)))
        except ConfigError:
            raise
        except jinja2.TemplateSyntaxError as error:
            raise ConfigError(f"{name}, line {error.lineno}: {error.message}") from error
        except RecursionError as error:
            raise ConfigError(f"{name} is nested too deeply, or has an expression that is too long") from error
        except Exception as error:  # a stranger's text goes through two compilers, Jinja's and Python's
            raise ConfigError(f"{name} cannot be compiled: {type(error).__name__}: {error}") from error

    def render(self, values: dict[str, Any]) -> str:
        """The text.

        Raises:
            jinja2.TemplateError: the template refuses (`raise_exception`) or names what is not there, or the text has
                half a surrogate pair. What its expressions raise (TypeError ...) comes through as it is.
            jinja2.exceptions.SecurityError: it reaches for what the sandbox does not give.
            TooCostly: it does more than MAX_STEPS of work, or its text grows beyond MAX_TEXT_CHARACTERS.
        """
        self._work.begin()
        try:
            return self._text(values)
        except RecursionError as error:
            raise TooCostly("it calls itself too deeply, or its values are nested too deeply") from error

    def _text(self, values: dict[str, Any]) -> str:
        pieces: list[str] = []
        room = MAX_TEXT_CHARACTERS
        for piece in self._template.root_render_func(self._template.new_context(values)):
            pieces.append(piece)
            room -= len(piece)
            if room < 0:
                raise TooCostly(f"the text is longer than {MAX_TEXT_CHARACTERS} characters")
        text = "".join(pieces)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise jinja2.TemplateError(f"the text has {HALF_A_CHARACTER}") from error
        return text


def columns_of(schema: pa.Schema) -> str:
    """The columns that there are, as a message names them; says so where the input has none of its own."""
    listed = f"the columns are {', '.join(schema.names)}"
    return f"the input is empty ({listed})" if set(schema.names) <= {ROW.name} else listed


def used_columns(template: Template, schema: pa.Schema, given: Iterable[str] = ()) -> list[str]:
    """The columns of `schema` that `template` names, in their order.

    Args:
        given: names that it may use besides.

    Raises:
        SchemaError: it names something else.
    """
    unknown = sorted(template.unknown - set(schema.names) - set(given))
    if unknown:
        hint = did_you_mean(unknown[0], schema.names)
        raise SchemaError(f"{template.name} uses '{unknown[0]}'; {columns_of(schema)}{hint}")
    return [name for name in schema.names if name in template.named]  # one that is called `range` is meant as well


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks what the model wrote, for training; here it is its content."""

    tags = {"generation"}  # noqa: RUF012 - typed so by Jinja

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        """The content, in a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _environment(strict: bool, date: datetime.date | None, max_steps: int) -> Sandbox:
    environment = Sandbox(
        max_steps,
        keys_first=strict,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", GenerationTag],
        undefined=jinja2.StrictUndefined if strict else jinja2.Undefined,
        finalize=_printable if strict else None,
    )
    work = environment.work
    for name in REFUSED_FILTERS:
        del environment.filters[name]
    environment.filters |= {"tojson": _to_json, "format": environment.format}
    filters: dict[str, Any] = environment.filters
    tests: dict[str, Any] = environment.tests
    filters |= {name: metered(work, name, function) for name, function in filters.items() if name not in FREE}
    filters |= metering_filters(work)
    tests |= {name: metered(work, name, tests[name]) for name in TESTS & tests.keys()}
    environment.globals |= {"raise_exception": _raise_exception, "namespace": Silent}
    del environment.globals["lipsum"]  # random, and as long as it is asked for
    if date is not None:
        environment.globals["strftime_now"] = _formatter(date)
    return environment


def _printable(value: object) -> object:
    if value is None:
        raise jinja2.TemplateRuntimeError("prints a null; guard it with {% if column %} or {{ column or '' }}")
    if callable(value):  # it would print its address, which differs from run to run
        raise jinja2.TemplateRuntimeError(f"prints a function; call it: {getattr(value, '__name__', 'name')}()")
    return value


def _alone(tree: jinja2.nodes.Template, name: str) -> jinja2.nodes.Template:
    """`tree`, if it needs no other template.

    Raises:
        ConfigError: it names one, of whatever file.
    """
    for node in tree.find_all(OTHER_TEMPLATES):
        what = type(node).__name__.lower().replace("fromimport", "from ... import")
        raise ConfigError(f"{name}, line {node.lineno}: {{% {what} %}} takes in another template; write it out here")
    return tree


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
