"""What the docstring of an operator says of its arguments is so: a program prints it for users.

The sections are those of `Args:`, one entry an argument (several may share one, with commas), and `Example:`, a node
in YAML.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from typing import Any

import pytest
import yaml

from pipeline.construct import load_object

TRANSFORMS = [
    "operators.best_of.BestOf",
    "operators.call.Call",
    "operators.columns.Rename",
    "operators.columns.Select",
    "operators.dedup.Dedup",
    "operators.explode.Explode",
    "operators.filter.Filter",
    "operators.limit.Limit",
    "operators.map.Map",
    "operators.parse_json.ParseJson",
    "operators.sample_rows.Sample",
    "operators.union.Union",
]


def sections(target: str) -> dict[str, str]:
    """The sections of the docstring by their names, without their indent."""
    text = inspect.cleandoc(load_object(target).__doc__)
    parts = re.split(r"^([A-Z]\w+):\n(?=    )", text, flags=re.M)
    return {name: textwrap.dedent(body).strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.parametrize("target", TRANSFORMS)
def test_every_argument_is_explained_and_no_other(target):
    named = re.findall(r"^(\w+(?:, \w+)*):", sections(target).get("Args", ""), flags=re.M)
    cls = load_object(target)
    parameters = list(inspect.signature(cls).parameters) if cls.__init__ is not object.__init__ else []
    assert [name for entry in named for name in entry.split(", ")] == parameters


@pytest.mark.parametrize("target", TRANSFORMS)
def test_the_example_is_a_node_that_can_be_built(target):
    ((name, node),) = yaml.safe_load(sections(target)["Example"]).items()
    assert name.isidentifier()
    assert node["inputs"]
    assert node["op"].pop("_target_") == target
    assert set(node) <= {"inputs", "op", "on_error"}
    arguments: dict[str, Any] = {f"{k}_" if k == "as" else k: v for k, v in node["op"].items()}
    if target.endswith("Sample"):
        arguments["seed"] = 0  # an interpolation, which only a job resolves
    if target.endswith("Call"):
        arguments["function"] = len
    if target.endswith("Dedup"):
        arguments["near"] = importlib.import_module("operators.near_duplicates").Near(**arguments["near"])
    load_object(target)(**arguments)
