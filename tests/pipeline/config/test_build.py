"""Operators are built from what a job says, wherever their modules lie."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline import PROJECT
from pipeline.api.errors import ExitCode, GraphError
from pipeline.api.protocols import BaseOperator
from pipeline.cli.main import main
from pipeline.config.build import build_graph, build_node
from pipeline.settings import JobSettings, NodeSettings
from tests.pipeline.command_line import NODES, OPS, here

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


class Sink(BaseOperator):
    """Takes a dataclass and a keyword of Python's."""

    def __init__(self, options: Options | None, as_: str) -> None:
        self.options, self.as_ = options, as_

    def plan(self, schema: object) -> None:
        """Takes anything."""

    def process(self, batch: object) -> tuple[()]:
        """Keeps nothing."""
        return ()


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
def test_an_argument_without_an_annotation_takes_any_value(monkeypatch, value):
    monkeypatch.setattr(Sink.__init__, "__annotations__", {})
    sink = build_node("s", NodeSettings({"_target_": f"{__name__}.Sink", "options": value, "as": value})).op
    assert isinstance(sink, Sink)
    assert (sink.options, sink.as_) == (value, value)


def test_modules_beside_the_job_file_are_importable(tmp_path, capsys):
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "beside_the_job.py").write_text(f"from {OPS} import Square as Mine\n")
    (folder / "own.yaml").write_text(NODES.replace(f"{OPS}.Square", "beside_the_job.Mine"))
    assert main(["job=mine/own.yaml", "dry_run=true"]) == 0


def test_the_modules_of_the_project_are_importable_where_only_its_packages_are_installed(monkeypatch):
    monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p).resolve() != PROJECT])
    monkeypatch.delitem(sys.modules, "models.tiny.score", raising=False)
    monkeypatch.delitem(sys.modules, "models.tiny", raising=False)
    monkeypatch.delitem(sys.modules, "models", raising=False)
    assert main(["job=quickstart", "dry_run=plan"]) == ExitCode.DONE


def test_what_the_plan_of_ones_own_operator_raises_is_told_with_its_line_and_node(tmp_path, capsys):
    (tmp_path / "faulty_ops.py").write_text(
        "from tests.pipeline.job_ops import Square\n\n\nclass Faulty(Square):\n"
        "    def plan(self, schema):\n        return self.colums\n"
    )
    assert main(["job=squares.yaml", "nodes.square.op._target_=faulty_ops.Faulty"]) == ExitCode.CONFIG
    told = capsys.readouterr().err
    assert 'faulty_ops.py", line 6' in told
    assert told.startswith("error: node 'square': plan raised AttributeError: 'Faulty' object has no")
