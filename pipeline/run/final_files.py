"""Files that operators make from all results of a run: removed when an attempt begins, there when the run is done."""

from __future__ import annotations

from pathlib import Path

from pipeline.dataflow.graph import Graph
from pipeline.system.disk_errors import writing


def conclude(graph: Graph, directory: Path) -> None:
    """Make them.

    Raises:
        StorageError: one cannot be written.
    """
    for node in graph.nodes.values():
        node.op.conclude(directory)


def conclude_missing(graph: Graph, directory: Path) -> list[str]:
    """Make those again that a finished run has lost. Returns their names.

    Raises:
        StorageError: one cannot be written.
    """
    lost: list[str] = []
    for node in graph.nodes.values():
        gone = [name for name in node.op.concluded if not (directory / name).exists()]
        if gone:
            node.op.conclude(directory)
        lost += gone
    return lost


def remove_concluded(graph: Graph, directory: Path) -> None:
    """Remove those of another run: they would pass for results of this one.

    Raises:
        StorageError: one cannot be removed.
    """
    for node in graph.nodes.values():
        for name in node.op.concluded:
            with writing(directory / name):
                (directory / name).unlink(missing_ok=True)
