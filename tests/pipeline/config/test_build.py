"""Operators are built from what a job says, wherever their modules lie, if their arguments are what annotations say."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pipeline import PROJECT
from pipeline.api.errors import ExitCode, GraphError
from pipeline.api.protocols import Operator
from pipeline.cli.main import main
from pipeline.config.annotations import allowed
from pipeline.config.build import build_graph, build_node
from pipeline.settings import JobSettings, NodeSettings
from tests.pipeline.command_line import OPS, here

__all__ = ["here"]  # the fixture: a directory with a job file of squares


def test_wrong_arguments_of_a_node_are_told_with_the_accepted_ones():
    nodes = {"numbers": NodeSettings({"_target_": f"{OPS}.Numbers", "row": 5})}
    with pytest.raises(
        GraphError, match=r"node 'numbers': .*there is no argument 'row'; did you mean rows.*it accepts: rows: "
    ):
        build_graph(JobSettings(nodes=nodes))


@pytest.mark.parametrize("target", ["collections.Counter", "pipeline.api.Operator"])
def test_what_is_no_operator_is_told_what_one_inherits(target):
    with pytest.raises(GraphError, match=r"must inherit pipeline\.api\.Operator and have plan, and process or run"):
        build_graph(JobSettings(nodes={"read": NodeSettings({"_target_": target})}))


@dataclass
class Options:
    """A group as an operator declares it."""

    size: int = 1


class Sink(Operator):
    """Takes a dataclass and a keyword of Python's."""

    def __init__(self, options: Options | None, as_: str) -> None:
        self.options, self.as_ = options, as_

    def plan(self, schema: object) -> None:
        """Takes anything."""

    def process(self, batch: object) -> tuple[()]:
        """Keeps nothing."""
        return ()


class Unannotated(Sink):
    """Says nothing of its arguments."""

    def __init__(self, options: Any, as_: Any) -> None:
        super().__init__(options, as_)


Unannotated.__init__.__annotations__.clear()


def test_mappings_become_the_dataclass_of_the_annotation_and_as_becomes_as_(monkeypatch):
    monkeypatch.setitem(sys.modules, "my_ops", sys.modules[__name__])
    op = {"_target_": "my_ops:Sink", "options": {"size": 3}, "as": "judge"}
    nodes = {"n": NodeSettings({"_target_": f"{OPS}.Numbers", "rows": 5}), "s": NodeSettings(op, "n")}
    monkeypatch.setattr(Sink.__init__, "__annotations__", {"options": Options | None, "as_": str})
    sink = build_graph(JobSettings(nodes=nodes)).nodes["s"].op
    assert isinstance(sink, Sink)
    assert (sink.options, sink.as_) == (Options(3), "judge")
    op["options"] = {"sise": 3}
    with pytest.raises(GraphError, match="options has no key 'sise'; did you mean size"):
        build_graph(JobSettings(nodes=nodes))
    op["options"] = {3: "a"}  # type: ignore[dict-item]
    with pytest.raises(GraphError, match="options has no key '3'; its keys are size"):
        build_graph(JobSettings(nodes=nodes))


@pytest.mark.parametrize("value", [None, "", "a", 3, 0.5, True, [1, None], {"a": [2]}])
def test_an_argument_without_an_annotation_takes_any_value(value):
    sink = build_node("s", NodeSettings({"_target_": f"{__name__}.Unannotated", "options": value, "as": value})).op
    assert isinstance(sink, Unannotated)
    assert (sink.options, sink.as_) == (value, value)


def test_the_modules_of_the_project_are_importable_where_only_its_packages_are_installed(monkeypatch):
    importlib.import_module("tools.bench.settings")  # of a package that is installed
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p).resolve() != PROJECT])
    monkeypatch.delitem(sys.modules, "models.tiny.score", raising=False)
    monkeypatch.delitem(sys.modules, "models.tiny", raising=False)
    monkeypatch.delitem(sys.modules, "models", raising=False)
    assert main(["job=quickstart", "dry_run=plan"]) == ExitCode.DONE


@dataclass
class Group:
    path: str = "here"


@pytest.mark.parametrize(
    ("hint", "fitting", "others"),
    [
        (int, [0, -1, 10**30], [True, 1.0, "1", None, [1]]),
        (float, [0, 0.5, float("nan")], [False, "1", None]),
        (str, ["", "x"], [1, None, ["x"]]),
        (bool, [True, False], [0, "true", None]),
        (str | None, ["x", None], [1, False]),
        (list[int], [[], [1, 2]], [1, "1", ["1"], [None], {}]),
        (Sequence[str], [["a"], ("a",)], ["a", [1]]),
        (tuple[int, ...], [[1, 2]], [["a"]]),
        (dict[str, str] | None, [{}, {"a": "b"}, None], [[], "a", {"a": True}, {1: "b"}]),
        (Mapping[str, Any], [{"a": 1}], [None, 1]),
        (Group, [Group()], [None, 1, "x"]),
        (Any, [None, 1, object()], []),
    ],
)
def test_a_value_fits_its_annotation_or_not(hint, fitting, others):
    assert all(allowed(hint).fits(value) for value in fitting)
    assert not any(allowed(hint).fits(value) for value in others)


def test_annotations_are_told_in_words():
    assert allowed(int | None).words == "a whole number or null"
    assert allowed(Group).words == "a mapping with keys of path"


READ = "operators.sources.read_prompts.ReadPrompts"


@pytest.mark.parametrize(
    ("op", "reason"),
    [
        ({"data": 5, "chunk_rows": 8}, "data is 5, and must be a mapping with keys of .*path, storage_options"),
        ({"data": {"format": 5}, "chunk_rows": 8}, "data.format is 5, and must be a text"),
        (
            {"data": {"prompt_column": True}, "chunk_rows": 8},
            'must be a text; True is a boolean here, .* write "yes", "on"',
        ),
        ({"data": {"path": "x"}, "chunk_rows": "many"}, "chunk_rows is 'many', and must be a whole number"),
    ],
)
def test_a_job_with_another_argument_is_refused(op, reason):
    settings = JobSettings(nodes={"read": NodeSettings({"_target_": READ, **op})})
    with pytest.raises(GraphError, match=reason):
        build_graph(settings)


@pytest.mark.parametrize("node", ["x", NodeSettings("x")])  # type: ignore[arg-type]
def test_a_node_that_an_interpolation_made_something_else_is_refused(node):
    with pytest.raises(GraphError, match="must be a mapping"):
        build_graph(JobSettings(nodes={"read": node}))
