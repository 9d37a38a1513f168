"""YAML of settings, by libyaml where PyYAML was built with it: a config.yaml takes 3 ms, and 28 by PyYAML's own code.

What libyaml does not know (halves of characters), texts that are no YAML, and those that may be nested so deeply that
it would overflow the stack are left to PyYAML: the values and errors are always its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, cast

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
DEEPEST = 10_000
"""Levels that libyaml has the stack for: it ends the process somewhere above 20,000."""


def read_yaml(text: str) -> Any:
    """Return the values in a text. Raises yaml.YAMLError if it is no YAML."""
    return _read(yaml.load, text)


def yaml_nodes(text: str) -> yaml.Node | None:
    """Return the nodes of a text; None if it is empty. Raises yaml.YAMLError if it is no YAML."""
    return cast("yaml.Node | None", _read(yaml.compose, text))


def write_yaml(values: Mapping[str, Any]) -> str:
    """Return a mapping as text, keys in their order. Raises yaml.YAMLError if they have a type that YAML does not."""
    dump = partial(yaml.dump, values, sort_keys=False, allow_unicode=True)
    try:
        return str(dump(Dumper=_DUMPER))
    except (yaml.YAMLError, UnicodeError):
        return str(dump(Dumper=yaml.SafeDumper))


def _read(parse: Callable[[str, Any], Any], text: str) -> Any:
    if _most_levels(text) <= DEEPEST:
        with suppress(yaml.YAMLError, UnicodeError):
            return parse(text, _LOADER)
    return parse(text, yaml.SafeLoader)


def _most_levels(text: str) -> int:
    """Return how deep a text may be nested: brackets, and columns of a line, where a list and its key may have one."""
    return text.count("[") + text.count("{") + 2 * max(map(len, text.splitlines()), default=0)
