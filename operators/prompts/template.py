"""Jinja templates, sandboxed and deterministic. Jinja's sandbox keeps them from reaching Python, and their text is
bounded in size. Time and memory are bounded for those of model files, which strangers wrote (`TemplateProcess`)."""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Callable, Iterable
from typing import Any, NoReturn, TypeVar

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
from jinja2.exceptions import SecurityError

from pipeline.api.errors import HALF_A_CHARACTER, ConfigError

T = TypeVar("T")
Result = TypeVar("Result")
MAX_SOURCE_CHARACTERS = 1 << 20
MAX_TEXT_CHARACTERS = 16 << 20
CALLS_WITHOUT_CONTENT = re.compile(r"\bcontent['\"]?\]?\s+is\s+none\s*-?%\}")
"""A branch for messages whose content is null, in which DeepSeek's templates write tool calls."""
OF_ANY_NAME = "a column of any name is written {{ row['its name'] }}, or renamed with data.rename"
_OF_SUCH_A_NAME = re.compile("expected token 'end of|unexpected char")
_BY_NAME = "columns_by_name"
"""What `row` in `row['User Question']` becomes; `row` alone is the number of the row."""
OTHER_TEMPLATES = (jinja2.nodes.Include, jinja2.nodes.Import, jinja2.nodes.FromImport, jinja2.nodes.Extends)


class Template:
    """A compiled template. Not for two threads at a time.

    Args:
        source: its text.
        name: its name in errors.
        strict: an unknown variable and a printed null or function are errors, and `row.items` is the key `items` where
            there is one (templates that users write over columns). Otherwise they are empty, `None` and the method, as
            chat templates expect. `row['any name']` is the column of this name then, and `row[name]` any of them,
            unless the template has a `row` of its own.
        date: what `strftime_now` formats. None: there is no `strftime_now`, for which the templates that ask for it
            (`is defined`) have a fixed date of their own. The clock's date would make every run another one.

    Raises:
        ConfigError: it does not compile, or takes in another template; names the line.
    """

    def __init__(self, source: str, name: str, *, strict: bool, date: datetime.date | None = None) -> None:
        self.name = name
        self.no_content = None if CALLS_WITHOUT_CONTENT.search(source) else ""
        """The content of a message that has tool calls and no content, as a chat template wants it."""
        if len(source) > MAX_SOURCE_CHARACTERS:
            raise ConfigError(
                f"{name} has {len(source)} characters, more than {MAX_SOURCE_CHARACTERS}; is it a template?"
            )
        environment = _environment(strict, date)
        try:
            tree = environment.parse(source)
            self.by_name = _columns_by_name(tree) if strict else frozenset()
            """The columns that it names as `row['any name']`; None: it may name any, `row[name]`."""
            own = {*environment.globals, *({} if self.by_name == frozenset() else {_BY_NAME})}
            self.unknown = frozenset(jinja2.meta.find_undeclared_variables(tree) - own)
            self.named = frozenset(node.name for node in tree.find_all(jinja2.nodes.Name))
            constants = [
                node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, bool | None)
            ]
            self.reserved = frozenset(spelt for value in constants for spelt in (str(value), str(value).lower()))
            self.reserved |= self.named & {"self"}
            self._template = environment.from_string(tree)
            # Jinja copies them for each text, and its own mapping of two layers takes longer than the rest.
            self._template.globals = dict(self._template.globals)
        except jinja2.TemplateSyntaxError as error:
            hint = f"; {OF_ANY_NAME}" if strict and _OF_SUCH_A_NAME.search(error.message or "") else ""
            raise ConfigError(f"{name}, line {error.lineno}: {error.message}{hint}") from error
        except RecursionError as error:
            raise ConfigError(f"{name} is nested too deeply, or has an expression that is too long") from error
        except Exception as error:  # an untrusted text goes through two compilers, Jinja's and Python's
            raise ConfigError(f"{name} cannot be compiled: {type(error).__name__}: {error}") from error
        for node in tree.find_all(OTHER_TEMPLATES):
            statement = type(node).__name__.lower().replace("fromimport", "from ... import")
            raise ConfigError(
                f"{name}, line {node.lineno}: {{% {statement} %}} takes in another template; write it out here"
            )

    def render(self, values: dict[str, Any]) -> str:
        """Render the template.

        Raises:
            jinja2.TemplateError: the template refuses (`raise_exception`) or names what is not there, or the text has
                half a surrogate pair. What its expressions raise (TypeError ...) comes through as it is.
            SecurityError: it reaches for what the sandbox does not give, calls itself too deeply, or its text grows
                beyond MAX_TEXT_CHARACTERS.
        """
        if self.by_name != frozenset():
            values = {**values, _BY_NAME: values}
        try:
            text = _joined(self._template.root_render_func(self._template.new_context(values)))
            text.encode()
        except RecursionError as error:
            raise SecurityError("it calls itself too deeply, or its values are nested too deeply") from error
        except MemoryError as error:
            raise SecurityError("it needs more memory than there is") from error
        except UnicodeEncodeError as error:
            raise jinja2.TemplateError(f"the text has {HALF_A_CHARACTER}") from error
        return text

    def render_all(self, rows: Iterable[dict[str, Any]]) -> list[str | Exception]:
        """Render the template for each of `rows`; in the place of a text may be what `render` raises."""
        return [attempt(self.render, values) for values in rows]


def _columns_by_name(tree: jinja2.nodes.Template) -> frozenset[str] | None:
    """Take `row` in `row['any name']` for all columns; return the names, or None if one is not written out."""
    if any(node.name == "row" and node.ctx != "load" for node in tree.find_all(jinja2.nodes.Name)):
        return frozenset()
    lookups = [
        node
        for node in tree.find_all(jinja2.nodes.Getitem)
        if isinstance(node.node, jinja2.nodes.Name) and node.node.name == "row"
    ]
    for node in lookups:
        node.node = jinja2.nodes.Name(_BY_NAME, "load", lineno=node.lineno, environment=node.environment)
    names = [node.arg.value if isinstance(node.arg, jinja2.nodes.Const) else None for node in lookups]
    return frozenset(map(str, names)) if None not in names else None


def attempt(make: Callable[[T], Result], values: T) -> Result | Exception:
    """Return what `make` makes, or what it raises: an expression of a template may raise anything."""
    try:
        return make(values)
    except Exception as error:
        return error


def reason_of(error: Exception, name: str = "template") -> str:
    """Return the reason of a reject for what the template `name` raised."""
    if isinstance(error, jinja2.TemplateError):
        return f"{name}: {error.message}"
    return f"{name}: {type(error).__name__}: {error}"


def probe(template: Template, values: dict[str, Any]) -> None:
    """Raise ConfigError for a chat template that fails for every row."""
    try:
        template.render(values)
    except (SecurityError, OverflowError) as error:
        raise ConfigError(
            f"{template.name} cannot be used, not even for a conversation of one word: {error}."
            " Name another one with model.chat_template="
        ) from error
    except jinja2.UndefinedError as error:
        if "strftime_now" in str(error):
            raise ConfigError(
                f"{template.name} asks for today's date, which would make every run another one;"
                " fix a date with model.date=2026-01-31"
            ) from error
    except Exception:  # it may accept other conversations (one with a system message, say)
        pass


class GenerationTag(jinja2.ext.Extension):
    """Replaces `{% generation %}...{% endgeneration %}`, which marks the model's text for training, by its content."""

    tags = {"generation"}  # noqa: RUF012 - typed so by Jinja

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _joined(pieces: Iterable[str]) -> str:
    """Join `pieces`; stop as soon as they are too long."""
    kept: list[str] = []
    size = 0
    for piece in pieces:
        kept.append(piece)
        size += len(piece)
        if size > MAX_TEXT_CHARACTERS:
            raise SecurityError(f"it makes a text of more than {MAX_TEXT_CHARACTERS} characters")
    return "".join(kept)


class _Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """A Jinja sandbox with texts of a bounded size."""

    concat = staticmethod(_joined)  # joins the output of a macro, a block or {% set %}
    keys_first = False
    """Resolve `struct.items` to the field of that name, if there is one, and not to the method of dict."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if self.keys_first and isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)


def _environment(strict: bool, date: datetime.date | None) -> _Sandbox:
    environment = _Sandbox(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.loopcontrols", GenerationTag],
        undefined=jinja2.StrictUndefined if strict else jinja2.Undefined,
        finalize=_printable if strict else None,
    )
    environment.keys_first = strict
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    del environment.filters["random"], environment.globals["lipsum"]  # not deterministic
    if date is not None:
        environment.globals["strftime_now"] = date.strftime
    return environment


def _printable(value: object) -> object:
    if value is None:
        raise jinja2.TemplateRuntimeError("prints a null; guard it with {% if column %} or {{ column or '' }}")
    # The repr of a function has an address, which differs from run to run. Undefined, too, can be called.
    if callable(value) and not isinstance(value, jinja2.Undefined):
        raise jinja2.TemplateRuntimeError(f"prints a function; call it: {getattr(value, '__name__', 'name')}()")
    return value


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Write JSON as transformers does: without the HTML escapes of Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
