"""The tools that completions may call, from the settings of a job and from a column, and the choice among them."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from operators.engine.backend.loading import template_of
from operators.prompts.arguments import tools_of_job, tools_of_row
from operators.prompts.tool_formats import FORMATS, ToolFormat, format_in
from operators.rows.json_schema import Validate, validator
from operators.settings import DataSettings, ModelSettings, SamplingSettings
from operators.settings.sampling import ENDS
from pipeline.api.errors import ConfigError, SchemaError, did_you_mean, install

if TYPE_CHECKING:
    from operators.constraints.grammars import Form

AUTO, REQUIRED, NONE = "auto", "required", "none"
CHOICE = "tools"
"""The key of `sampling`, and its column."""
_MOST_SCHEMAS = 256


@dataclass(frozen=True)
class Tools:
    """The tools that the completions of a node may call.

    Args:
        form: the format of the model's calls.
        given: the tools of every row; None: `column` has them.
        column: the column with the tools of each row.
        choice: `sampling.tools`.
        by_row: a column of that name overrides it.
    """

    form: ToolFormat
    given: list[dict[str, Any]] | None
    column: str | None
    choice: str
    by_row: bool

    @classmethod
    def of(cls, model: ModelSettings, data: DataSettings, sampling: SamplingSettings) -> Tools | None:
        """Return the tools that a job's settings give; None if there are none to call, or the format is not known.

        Raises:
            ConfigError: `sampling.tools` cannot work, or `data.tools` holds no tools.
            InputError: their file cannot be read.
        """
        choice, by_row = sampling.tools, CHOICE in sampling.per_row
        if not data.has_tools:
            if choice in (None, NONE) and not by_row:
                return None
            raise ConfigError(
                f"sampling.tools={choice or 'a column'} needs tools; give data.tools or data.tools_column"
            )
        if choice == NONE and not by_row:
            return None
        form = format_in(template_of(model, tools=True)) if model.tool_format is None else FORMATS[model.tool_format]
        if form is None:
            if choice in (None, NONE):
                return None
            raise ConfigError(
                f"sampling.tools={choice} needs to know how the model writes calls, and its chat template does not say"
                f" so in a way that is known; name it with model.tool_format= ({', '.join(FORMATS)})"
            )
        of_job = None if data.tools is None else tools_of_job(data.tools)
        tools = cls(form, of_job, data.tools_column, choice or AUTO, by_row)
        if of_job is not None:
            checks_of(json.dumps(of_job))
            tools.check_beside(tools.choice, vars(sampling))
            tools.shape(tools.choice, of_job, lambda text: None)
        return tools

    def check_choice(self, choice: str, tools: list[dict[str, Any]]) -> None:
        """Raise ConfigError if `choice` is no word and none of the tools."""
        names = [tool["function"]["name"] for tool in tools]
        if choice not in (AUTO, REQUIRED, NONE, *names):
            near = did_you_mean(choice, (AUTO, REQUIRED, NONE, *names), "sampling.tools=")
            hint = near or f"; it is auto, required, none, or one of {', '.join(names)}"
            raise ConfigError(f"sampling.tools={choice} is none of the tools{hint}")

    @property
    def identity(self) -> str:
        """Everything in it that can change how an answer is read."""
        return f"{self.form.name} {hashlib.sha256(json.dumps(self.given).encode()).hexdigest()}"

    def plan(self, schema: pa.Schema) -> None:
        """Check that the column with the tools of each row is there. Raises SchemaError."""
        if self.column is not None and self.column not in schema.names:
            raise SchemaError(f"data.tools_column={self.column} is no column; there are {', '.join(schema.names)}")

    def check_beside(self, choice: str, sampling: Mapping[str, Any]) -> None:
        """Raise ConfigError if `choice` forces a call, and other values of `sampling` say how the text ends."""
        if choice in (AUTO, NONE):
            return
        others = [key for key in ENDS if sampling[key]]
        others += ["structured"] if sampling["structured"].kind is not None else []
        if others:
            raise ConfigError(f"sampling.{others[0]} and sampling.tools={choice} cannot both be; keep one")

    def of_row(self, value: Any) -> list[dict[str, Any]]:
        """Return the tools of a row with this `value` in `column`. Raises NoPrompt if it holds something else."""
        return self.given if self.given is not None else tools_of_row(value, self.column or "")

    def shape(self, choice: str, tools: list[dict[str, Any]], control: Callable[[str], int | None]) -> Form | None:
        """Return what the completion of a row with these tools has to be; None if it may be any text. Raises
        ConfigError if `choice` is none of the tools, a schema cannot be compiled, or llguidance is not installed.

        Args:
            control: returns the id of a control token by its name; None for a text that is none."""
        if choice in (AUTO, NONE):
            return None
        if not tools:
            raise ConfigError(f"sampling.tools={choice} forces a call, and the row has no tools")
        self.check_choice(choice, tools)
        checks_of(json.dumps(tools))
        try:
            from operators.constraints.tool_shapes import tool_shape
        except ImportError as error:
            raise ConfigError(f"sampling.tools={choice} needs llguidance ({error}); {install('structured')}") from error
        allowed = [tool for tool in tools if choice in (REQUIRED, tool["function"]["name"])]
        return tool_shape(self.form, allowed, control)


def unforced(choice: str | None, called: Sequence[str]) -> str | None:
    """Return why the names of the tools that were `called` are not what `sampling.tools` forces; None if they are, or
    it forces none."""
    if choice in (None, AUTO, NONE):
        return None
    if not called:
        return f"sampling.tools={choice} forces a call, and the text has none"
    other = next((name for name in called if choice not in (REQUIRED, name)), None)
    return None if other is None else f"'{other}' is called, and sampling.tools={choice}"


@functools.lru_cache(_MOST_SCHEMAS)
def checks_of(tools: str) -> Mapping[str, Validate]:
    """Return by name a function that says what is wrong with a tool's arguments. `tools`: the list as JSON. Raises
    ConfigError if jsonschema is not installed, or the schema of a tool is none."""
    functions = [tool["function"] for tool in json.loads(tools)]
    return {one["name"]: validator(one.get("parameters") or {}, f"the tool {one['name']}") for one in functions}
