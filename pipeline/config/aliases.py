"""YAML's aliases: a few lines can stand for billions of values, or hold themselves."""

from __future__ import annotations

import yaml

from pipeline.api.errors import ConfigError

MOST_VALUES = 100_000


def check_aliases(text: str) -> None:
    """Check how many values the YAML `text` has once its aliases are written out.

    Raises:
        ConfigError: more than MOST_VALUES, or without end.
        yaml.YAMLError: it is no YAML.
    """
    if "*" in text:
        _count(yaml.compose(text, Loader=yaml.SafeLoader), {})


def _count(node: yaml.Node | None, known: dict[int, int | None]) -> int:
    """Values in `node`. `known`: those of nodes that were seen; None while one is being counted."""
    count = known.get(id(node), 0)
    if count is None:
        raise ConfigError("an alias (*name) stands inside of what it names")
    if count:
        return count
    known[id(node)] = None
    count = 1
    if isinstance(node, yaml.SequenceNode):
        count += sum(_count(item, known) for item in node.value)
    elif isinstance(node, yaml.MappingNode):
        count += sum(_count(key, known) + _count(value, known) for key, value in node.value)
    if count > MOST_VALUES:
        raise ConfigError(f"its aliases (*name) stand for more than {MOST_VALUES} values")
    known[id(node)] = count
    return count
