"""Bodies of a row that says hi, for the tests of endpoints."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from operators.endpoint.api.bodies import Bodies
from operators.endpoint.api.dialects import COMPLETIONS
from operators.settings import DataSettings, SamplingSettings
from operators.settings.endpoint import EndpointSettings
from pipeline.api.errors import ConfigError

PLAIN: dict[str, Any] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "penalty_last_n": None}
"""sampling=plain."""
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("now", "sum")]


def server(**given: Any) -> EndpointSettings:
    return EndpointSettings(url="http://server/v1", name="m", **given)


def bodies(
    dialect: str, data: DataSettings | None = None, model: EndpointSettings | None = None, **sampling: Any
) -> Bodies:
    of_dialect = replace(model or server(), dialect=dialect)
    return Bodies(of_dialect, SamplingSettings(**(PLAIN | sampling)), data, "node 'ask'")


def body(dialect: str, row: dict[str, Any] | None = None, /, **given: Any) -> dict[str, Any]:
    """The body of a row that says hi. `row`: what else `of` takes."""
    of_row: dict[str, Any] = {"values": {}, "seed": 5} | (row or {})
    made = bodies(dialect, **given).of(HI, **of_row)
    assert isinstance(made, dict), made
    json.dumps(made, allow_nan=False)
    return made


def completion(dialect: str, **given: Any) -> dict[str, Any]:
    """The same for a text, in the API of completions."""
    made = bodies(dialect, model=server(api=COMPLETIONS), **given).of("once", {}, 5)
    assert isinstance(made, dict), made
    return made


def refusal(dialect: str, **given: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        bodies(dialect, **given)
    return str(raised.value)
