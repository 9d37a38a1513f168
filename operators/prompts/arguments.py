"""Arguments (`enable_thinking` ...) and tools for chat templates, from the settings of a job and from columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from operators.prompts.messages import NoPrompt, without_nulls
from operators.rows.json_values import noun
from operators.settings import DataSettings, ModelSettings
from operators.settings.checks import read_text
from operators.settings.model import GIVEN_TO_TEMPLATES
from pipeline.api.errors import ConfigError, SchemaError, did_you_mean

TOOL = "a tool is {type: function, function: {name: ..., description: ..., parameters: {...}}}"

WANTED = {"template_kwargs_column": "a struct or a map", "tools_column": "a list of structs"}
FITS: dict[str, Callable[[pa.DataType], bool]] = {
    "template_kwargs_column": lambda kind: pa.types.is_struct(kind) or pa.types.is_map(kind),
    "tools_column": lambda kind: pa.types.is_list(kind) and pa.types.is_struct(kind.value_type),
}


class TemplateArguments:
    """The arguments and tools of each row, from the settings of the job and from columns.

    Args:
        model: `template_kwargs` are the arguments of every row.
        data: `template_kwargs_column` has those of a row, which come before them key by key; `tools` are those of every
            row, or `tools_column` those of each.
    """

    def __init__(self, model: ModelSettings, data: DataSettings) -> None:
        self._kwargs = dict(model.template_kwargs or {})
        self._tools = data.tools
        self._columns = {key: name for key in WANTED if (name := getattr(data, key)) is not None}
        job = {"model.template_kwargs": self._kwargs, "data.tools": self._tools is not None}
        settings = [*(key for key, value in job.items() if value), *(f"data.{key}" for key in self._columns)]
        self.setting = settings[0] if settings else None
        """The first of the settings that is given, for an error; None if none is."""

    def plan(self, schema: pa.Schema) -> list[str]:
        """Return the columns that are read.

        Raises:
            ConfigError: `data.tools` holds no tools.
            SchemaError: a column is missing, or has a type that cannot hold them.
        """
        if self._tools is not None:
            self._tools = tools_of_job(self._tools)
        for key, name in self._columns.items():
            if name not in schema.names:
                near = did_you_mean(name, schema.names, f"data.{key}=") or f"; the input has {', '.join(schema.names)}"
                raise SchemaError(f"data.{key}={name} is no column{near}")
            kind = schema.field(name).type
            if kind not in (pa.string(), pa.null()) and not FITS[key](kind):
                raise SchemaError(f"column '{name}' has type {kind}, and data.{key} is {WANTED[key]}, or JSON as text")
        return list(self._columns.values())

    def of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values for the template. Raises NoPrompt if a column of this row holds something else."""
        values = dict(self._kwargs)
        if (name := self._columns.get("template_kwargs_column")) is not None:
            values |= _kwargs_of_row(row[name], name)
        if self._tools is not None:
            values["tools"] = self._tools
        elif (name := self._columns.get("tools_column")) is not None and row[name]:
            values |= {"tools": tools} if (tools := tools_of_row(row[name], name)) else {}
        return values


def tools_of_job(tools: Any) -> list[dict[str, Any]]:
    """Return the tools that `data.tools` gives, as a list or as the path of a JSON file.

    Raises:
        ConfigError: it holds no tools.
        InputError: the file cannot be read.
    """
    where = "data.tools"
    if isinstance(tools, str):
        where = f"data.tools={tools}"
        try:
            tools = json.loads(read_text(tools, "data.tools"))
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where} is not JSON: {error}; write a list of tools as JSON") from error
    return _tools(tools, where, ConfigError)


def tools_of_row(value: Any, column: str) -> list[dict[str, Any]]:
    """Return the tools in a row's `value`, none for null and an empty text; raise NoPrompt for anything else."""
    return [] if value in (None, "") else _tools(_read(value, column), f"column '{column}'", NoPrompt)


def _tools(tools: Any, where: str, failure: type[Exception]) -> list[dict[str, Any]]:
    """Return `tools` if it is a list of OpenAI's function tools, else raise `failure`."""
    if not isinstance(tools, list):
        raise failure(f"{where} holds {noun(tools)}; tools are a list")
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise failure(f"tool {i} of {where} has no function with a name; {TOOL}")
    return tools


def _kwargs_of_row(value: Any, name: str) -> dict[str, Any]:
    if value in (None, ""):
        return {}
    kwargs = _read(value, name)
    if isinstance(kwargs, list) and all(isinstance(pair, tuple) for pair in kwargs):  # pyarrow's form of a map
        kwargs = dict(kwargs)
    if not isinstance(kwargs, dict):
        raise NoPrompt(f"column '{name}' holds {noun(kwargs)}; template arguments are an object")
    if reserved := sorted(kwargs.keys() & GIVEN_TO_TEMPLATES):
        raise NoPrompt(f"column '{name}' has the key '{reserved[0]}', which Render gives to the template itself")
    return kwargs


def _read(value: Any, name: str) -> Any:
    """Return JSON text as its value, and a struct without the keys that only other rows have."""
    if not isinstance(value, str):
        return without_nulls(value)
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise NoPrompt(f"column '{name}' is text that is not JSON: {error}") from error
