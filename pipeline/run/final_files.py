"""Final files, which operators make from all results when a run is done (`BaseOperator.concluded`)."""

from __future__ import annotations

from pathlib import Path

from pipeline.dataflow.graph import Graph
from pipeline.system.disk_errors import writing


def conclude(graph: Graph, directory: Path) -> None:
    """Make the final files.

    Raises:
        StorageError: one cannot be written.
    """
    for node in graph.nodes.values():
        node.op.conclude(directory)


def conclude_missing(graph: Graph, directory: Path) -> list[str]:
    """Make missing final files of a finished run again. Returns their names.

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
    """Remove the final files of an earlier attempt: they would not fit the results of this one.

    Raises:
        StorageError: one cannot be removed.
    """
    for node in graph.nodes.values():
        for name in node.op.concluded:
            with writing(directory / name):
                (directory / name).unlink(missing_ok=True)
