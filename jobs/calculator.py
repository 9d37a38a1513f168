"""The tool of jobs/dialogues.yaml: calculates."""

from __future__ import annotations

import operator
from typing import Any

OPERATIONS = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}


def calculate(name: str, arguments: dict[str, Any], row: dict[str, Any]) -> dict[str, int]:
    """Return the result of a call: `operation` on the whole numbers `a` and `b`."""
    return {"result": OPERATIONS[arguments["operation"]](arguments["a"], arguments["b"])}
