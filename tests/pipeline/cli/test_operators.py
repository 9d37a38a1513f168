"""What operators say of themselves is whole, true, and what docs/operators.md says."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest
import yaml

from pipeline.api.docstrings import as_written
from pipeline.api.protocols import Operator
from pipeline.cli import operators
from pipeline.cli.main import main
from pipeline.config.build import load_object

ROOT = Path(__file__).parents[3]
ENTRIES = [entry for members in operators.entries().values() for entry in members]
INTERNAL = {"tools.bench", "operators.openai", "operators.endpoint", "operators.prompts"}
"""Operators of these packages are parts of one job or of another operator, and nothing to build a job from."""


def operator_classes():
    """Targets of all classes in operators/ that are whole operators."""
    for path in sorted((ROOT / "operators").rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        if any(module.startswith(package) for package in INTERNAL):
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found = load_object(f"{module}.{node.name}")
                if issubclass(found, Operator) and is_whole(found):
                    yield f"{module}.{node.name}"


def is_whole(kind: type[Operator]) -> bool:
    """It has what makes an operator, and no method that a subclass has to write."""
    hooks = any(getattr(kind, hook) is not getattr(Operator, hook) for hook in ("process", "run"))
    methods = (getattr(kind, name) for name in dir(kind))
    return hooks and hasattr(kind, "plan") and not any(getattr(m, "__isabstractmethod__", False) for m in methods)


def test_every_operator_is_listed():
    assert {entry.target for entry in ENTRIES} == set(operator_classes())


def test_a_file_directly_in_operators_is_an_operator_that_a_job_can_name():
    files = {path.stem for path in (ROOT / "operators").glob("*.py")} - {"__init__"}
    assert files <= {entry.target.split(".")[1] for entry in ENTRIES}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_an_operator_says_what_each_argument_is_and_gives_an_example(entry):
    explained = [name for argument in entry.arguments for name in argument.defaults]
    taken = inspect.signature(entry.operator).parameters
    assert explained == sorted(explained, key=[as_written(name) for name in taken].index)
    assert set(explained) == {as_written(name) for name in taken}
    ((node, content),) = yaml.safe_load(entry.example).items()
    assert node
    op = {"on" if name is True else name: value for name, value in content["op"].items()}  # as a job is read
    assert op.pop("_target_") == entry.target
    assert set(op) <= set(explained)
    required = {name for argument in entry.arguments for name, default in argument.defaults.items() if default is None}
    assert required <= set(op)
    operator = load_object(entry.target)
    assert issubclass(operator, Operator)


def test_the_docs_are_what_the_docstrings_say():
    assert (ROOT / "docs/operators.md").read_text() == operators.markdown(), (
        "python -m pipeline operators --markdown > docs/operators.md"
    )


def test_the_command_lists_and_explains(capsys):
    assert main(["operators"]) == 0
    printed = capsys.readouterr().out
    assert all(f"  {entry.name} " in printed for entry in ENTRIES)
    assert main(["operators", "filter"]) == 0
    printed = capsys.readouterr().out
    assert "_target_: operators.filter.Filter" in printed
    assert "  where\n" in printed


def test_an_operator_that_does_not_exist_is_told_with_one_that_does(capsys):
    assert main(["operators", "Filtre"]) == 2
    assert "did you mean Filter?" in capsys.readouterr().err
