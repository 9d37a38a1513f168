"""Hydra's, OmegaConf's and YAML's errors in words that name the key and the remedy."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable

from yaml import MarkedYAMLError

from pipeline.config.annotations import quoted

_KINDS = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}
NO_TEXT = "no text:"
"""How an error of OmegaConf begins that `pipeline.config.compose` raises."""
_YAML_REMEDIES = (
    ("cannot start any token", "YAML is indented with spaces, and a value does not begin with a tab, @, ` or %"),
    ("unhashable key", "a text that begins with { needs quotes, or `|` before it and the text on the next lines"),
    ("mapping values are not allowed", "a text with a colon and a space in it needs quotes"),
)


def unreadable_argument(argument: str, value_of: Callable[[str], object]) -> str:
    """Why an argument is no setting, for one that Hydra cannot read.

    Args:
        value_of: what Hydra reads in an argument; raises an exception where it cannot.
    """
    key, given, value = argument.partition("=")
    if not given or not key:
        return (
            f"'{argument}' cannot be read as key=value; there are no spaces around the =, and an argument with spaces"
            " is put in quotes: 'data.path=my file.csv'"
        )
    told = f"'{argument}' cannot be read as key=value; "
    if value.lstrip().startswith("["):
        return told + f"a list is put in quotes as a whole: '{key}=[one, two]'"
    quoted = f'{key}="{value}"'
    try:
        same = '"' not in value and value_of(quoted) == value
    except Exception:  # whatever Hydra's parser raises: what it cannot read is no remedy
        same = False
    if same:
        return told + f"a text with special characters has quotes of its own: {shlex.quote(quoted)}"
    return told + f"put quotes around special characters, and a \\ before quotes inside: '{key}=\"...\"'"


def ambiguous_argument(argument: str) -> str:
    """What an argument with commas may mean, without -m."""
    key, _, value = argument.partition("=")
    text = shlex.quote(f'{key}="{value}"')
    return f"'{argument}' is ambiguous; for one text write {text}, for a list '{key}=[{value}]', for a sweep -m"


def unreadable_yaml(error: Exception) -> str:
    """Where and why a file is no YAML, in one line."""
    if not isinstance(error, MarkedYAMLError) or error.problem is None or error.problem_mark is None:
        return str(error)
    mark = error.problem_mark
    remedy = next((f"; {remedy}" for words, remedy in _YAML_REMEDIES if words in error.problem), "")
    return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}{remedy}"


def wrong_value(key: str, says: str) -> str | None:
    """What a setting wants, for OmegaConf's words on a value of the wrong type; None for other words."""
    if "is not a ListConfig, list or tuple" in says:
        return f"{key} takes a list; write {key}=[...]"
    if "is not a subclass of" in says:
        told = f"{key} takes settings of its own below it ({key}: {{key: value}}), not a single value"
        option = re.search(r"value: (\w+)$", says)
        if option and "." not in key:
            told += f"; an option is chosen with `- override /{key}: {option[1]}` at the end of `defaults:`"
        return told
    if bare := re.match(rf"{NO_TEXT} '(.*)' \('(\w+)'\)", says):
        return f"{key}: {quoted(bare[1], bare[2])}"
    converted = re.match(r"Value '(.*)' (?:of type '\w+' could not be converted to|is not a valid) (\w+)", says)
    if converted and converted[2] in _KINDS:
        return f"{key}={converted[1]} cannot work: it takes {_KINDS[converted[2]]}"
    return None
