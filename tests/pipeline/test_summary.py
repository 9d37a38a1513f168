"""What operators say at the end of a finished run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pipeline.graph import Graph, Node
from pipeline.summary import report_lines
from tests.pipeline.ops import Collect, Count


class Says(Collect):
    def report(self, directory: Path) -> Iterable[str]:
        yield f"results of {directory.name}"


class Fails(Collect):
    def report(self, directory: Path) -> Iterable[str]:
        raise OSError("the disk is gone")


def test_a_report_that_fails_is_named_and_spoils_no_other(tmp_path):
    nodes = {"count": Node(Count(1)), "fails": Node(Fails(), ("count",)), "says": Node(Says(), ("count",))}
    assert report_lines(Graph(nodes), tmp_path / "out") == [
        "node 'fails' cannot report: OSError: the disk is gone",
        "results of out",
    ]
