"""Explain errors of Hydra, OmegaConf and YAML: name the key and the remedy."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import MissingConfigException, OverrideParseException
from omegaconf.errors import ConfigAttributeError, ConfigKeyError, OmegaConfBaseException
from yaml import MarkedYAMLError

from pipeline.api.errors import ConfigError, did_you_mean
from pipeline.api.removed import removed
from pipeline.config.annotations import quoted
from pipeline.config.keys import FREE_FORM, SCHEMA, key_of_class, unknown_key
from pipeline.settings import GROUPS, WITH_OPTIONS, NodeSettings
from pipeline.system.known_secrets import hidden
from pipeline.system.redaction import shown_argument
from pipeline.system.yaml_text import read_yaml

PARSER = OverridesParser.create()
NO_TEXT = "no text"
"""The ValidationError that `pipeline.config.compose` raises for a number or a boolean in place of a text."""
job_files: dict[str, Path] = {}
"""Paths of the registered jobs, by their names in Hydra's errors."""
_KINDS = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}
_YAML_REMEDIES = (
    ("cannot start any token", "YAML is indented with spaces, and a value does not begin with a tab, @, ` or %"),
    ("undefined alias", "a text that begins with *, & or ! needs quotes"),
    ("constructor for the tag", "a text that begins with *, & or ! needs quotes"),
    ("unhashable key", "a text that begins with { needs quotes, or `|` before it and the text on the next lines"),
    ("mapping values are not allowed", "a text with a colon and a space in it needs quotes"),
)
_PART = re.compile(
    r"""
    " (?: [^"\\] | \\. )* " | ' (?: [^'\\] | \\. )* '
    | (?P<text> (?: \$\{ [^}]* \} | \\. | [^,()\[\]{}='"] )+ )
    """,
    re.VERBOSE | re.DOTALL,
)
"""What has quotes in the value of an argument, and texts without: between brackets, commas and equals signs."""
_ESCAPED = re.compile(r"\\([\\()\[\]{}:=, \t])")


def explain(error: BaseException) -> ConfigError:
    """Return an error with cause and remedy, and without secrets, for one of
    `pipeline.config.compose.COMPOSITION_ERRORS`."""
    if isinstance(error, MissingConfigException) and error.missing_cfg_file and error.options is not None:
        message = _unknown_option(error.missing_cfg_file, error.options)
    elif isinstance(error, OverrideParseException):
        message = _unreadable_argument(str(error.override))
    else:
        where = re.match(r"In '([^']+)'", str(error))
        place = f" (in {job_files.get(where[1], where[1])})" if where and where[1] != "config" else ""
        of_key: BaseException | None = error  # Hydra's errors are about one of OmegaConf's
        while of_key is not None and not isinstance(of_key, OmegaConfBaseException):
            of_key = of_key.__cause__ or of_key.__context__
        message = (_of_hydra(str(error)) or type(error).__name__ if of_key is None else _of_key(of_key)) + place
    return ConfigError(hidden(message))


def _of_hydra(text: str) -> str:
    """Return what is wrong with `defaults` or an argument."""
    if bare := re.search(r"Could not override '(?:job/)?(\w+)(?:@\S*)?'\. No match in the defaults list", text):
        groups = WITH_OPTIONS
        near = did_you_mean(bare[1], groups, "/") if bare[1] not in groups else ""
        return f"in a job's defaults write `- override /{bare[1] if bare[1] in groups else 'GROUP'}: OPTION`{near}"
    if several := re.search(r"Ambiguous value for argument '(.*)'", text):
        argument, (name, _, value) = shown_argument(several[1]), shown_argument(several[1]).partition("=")
        written = shlex.quote(f'{name}="{value.replace(chr(34), "")}"')
        return f"'{argument}' is ambiguous; for one text write {written}, for a list '{name}=[{value}]', for a sweep -m"
    if twice := re.search(r"Multiple values for (\S+)\. To override a value use 'override \S+: (.+)'", text):
        return f"in a job's defaults write `- override /{twice[1]}: {twice[2]}`"
    return "\n".join(line for line in text.splitlines() if line)


def _of_key(error: OmegaConfBaseException) -> str:
    """Return what is wrong with a key or its value."""
    key, says = str(error.full_key or ""), str(error).splitlines()[0]
    if key and isinstance(error, ConfigKeyError | ConfigAttributeError):
        return unknown_key(key)
    if refused := re.search(r"ConfigError raised while resolving interpolation: (.*)", says):
        return refused[1]
    if missing := re.search(r"missing mandatory value: (\S+)", says, re.IGNORECASE):
        name = key if key.endswith(missing[1]) else missing[1]
        return f"{name} has no value; write {name}=... on the command line or in the job file"
    return _wrong_value(error, key, says) or (f"{key}: {says}" if key else says)


def unreadable_yaml(error: Exception) -> str:
    """Return position, cause and remedy of a YAML error in one line."""
    if not isinstance(error, MarkedYAMLError) or error.problem is None or error.problem_mark is None:
        return str(error)
    mark = error.problem_mark
    remedy = next((f"; {remedy}" for words, remedy in _YAML_REMEDIES if words in error.problem), "")
    # What a value that begins with * ! or & names may be half of a password.
    problem = re.sub(r"(alias|anchor|tag|handle) (['\"]).*\2", r"\1", error.problem)
    return f"line {mark.line + 1}, column {mark.column + 1}: {problem}{remedy}"


def for_hydra(argument: str) -> str:
    """Return an argument that Hydra cannot parse in a form that it takes, if it is a mapping as YAML has it (with keys
    that are quoted, or beyond ASCII) or has characters beyond ASCII outside of quotes; any other as it is."""
    if "=" not in argument or _parses(argument):
        return argument
    key, _, value = argument.partition("=")
    beyond_ascii = f"{key}={_PART.sub(_in_quotes, value)}"
    return _as_mapping(key, value) or (beyond_ascii if _parses(beyond_ascii) else argument)


def _parses(argument: str) -> bool:
    try:
        PARSER.parse_override(argument)
    except Exception:  # Hydra's parser may raise anything
        return False
    return True


def _in_quotes(part: re.Match[str]) -> str:
    """Return a text of an argument with quotes around it if it has characters beyond ASCII."""
    text = part["text"]
    if text is None or text.isascii():
        return part[0]
    return QuotedString(_ESCAPED.sub(r"\1", text.strip()), Quote.double).with_quotes()


def _as_mapping(key: str, value: str) -> str | None:
    """Return the argument for a mapping as YAML has it; None if `value` is none."""
    if not value.startswith("{") or "\\" in value:
        return None
    try:
        mapping = read_yaml(value)
    except yaml.YAMLError:
        return None
    # Without values it may be a sweep over {a,b} or a text, but where only a mapping can be.
    if not isinstance(mapping, dict) or (None in mapping.values() and key.lstrip("+") not in FREE_FORM):
        return None
    text = json.dumps(mapping, ensure_ascii=False, default=str).replace("'", "\\'").replace('\\"', "\\u0022")
    return f"{key}=" + '"' + f"${{oc.create:'{text}'}}".replace('"', '\\"') + '"'


def _unreadable_argument(argument: str) -> str:
    """Return an error for an argument that Hydra cannot parse, with the correct quoting."""
    key, equals, value = argument.partition("=")
    argument, typed = shown_argument(argument), argument
    if not equals or not key:
        return (
            f"'{argument}' cannot be read as key=value; there are no spaces around the =, and an argument with spaces"
            " is put in quotes: 'data.path=my file.csv'"
        )
    message = f"'{argument}' cannot be read as key=value; "
    if not _parses(f"{key}=0"):
        return message + "a key has only letters of ASCII, digits, _ and dots here; write this one in the job file"
    if value.lstrip().startswith("["):
        return message + f"a list is put in quotes as a whole: '{key}=[one, two]'"
    if key.lstrip("+") in FREE_FORM:
        return (
            message
            + f"a mapping is put in quotes as a whole, and its texts in quotes of their own: '{key}={{name: \"...\"}}'"
        )
    if argument != typed:
        return message + f"a text with special characters has quotes of its own: '{key}=\"...\"'"
    quoted = f'{key}="{value}"'
    try:
        same = '"' not in value and PARSER.parse_override(quoted).value() == value
    except Exception:  # Hydra's parser may raise anything; then quoting is no remedy
        same = False
    if same:
        return message + f"a text with special characters has quotes of its own: {shlex.quote(quoted)}"
    return message + f"put quotes around special characters, and a \\ before quotes inside: '{key}=\"...\"'"


def _wrong_value(error: OmegaConfBaseException, key: str, says: str) -> str | None:
    """Return what a setting takes if `says`, the error's text, is that its value is of another type; else None."""
    if says == NO_TEXT:
        return f"{key}: {quoted(error.value)}"
    if "is not a ListConfig, list or tuple" in says:
        return f"{key} takes a list; write {key}=[...]"
    if named := re.search(r"is not a subclass of (\w+)(?:\. value: (\w+)$)?", says):
        if named[1] == NodeSettings.__name__ and not key.startswith("nodes."):
            return unknown_key(f"nodes.{key}")
        key = key or key_of_class(named[1])
        message = f"{key} takes settings of its own below it ({key}: {{key: value}}), not a single value"
        option = f"; an option is chosen with `- override /{key}: {named[2]}` at the end of `defaults:`"
        return message + option if named[2] and key in GROUPS else message
    converted = re.match(r"Value '(.*)' (?:of type '\w+' could not be converted to|is not a valid) (\w+)", says)
    if converted and converted[2] in _KINDS:
        return f"{key}={converted[1]} cannot work: it takes {_KINDS[converted[2]]}"
    return None


def _unknown_option(file: str, options: Sequence[str]) -> str:
    group, _, option = file.rpartition("/")
    if gone := removed(f"{group}={option}"):
        return gone
    if group.startswith("job/"):  # Hydra looks for an option without a leading slash below the group of the file
        return f"there is no {group}={option}; in a job's defaults write `- override /{group[4:]}: {option}`"
    names = [o for o in options if not o.endswith(SCHEMA)]
    return (
        f"there is no {group}={option}; {group} is one of {', '.join(names)}{did_you_mean(option, names, group + '=')}"
    )
