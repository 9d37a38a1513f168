"""Files that operators make of all results of a run: gone when an attempt begins, there when the run is done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pipeline.api.protocols import Concluder
from pipeline.dataflow.graph import Graph
from pipeline.system.disk_errors import writing


def conclude(graph: Graph, directory: Path) -> None:
    """Have them made.

    Raises:
        StorageError: one cannot be written.
    """
    for operator in _concluders(graph):
        operator.conclude(directory)


def conclude_missing(graph: Graph, directory: Path) -> list[str]:
    """Have those made again that a finished run has lost. Returns their names.

    Raises:
        StorageError: one cannot be written.
    """
    lost: list[str] = []
    for operator in _concluders(graph):
        gone = [name for name in operator.concluded if not (directory / name).exists()]
        if gone:
            operator.conclude(directory)
        lost += gone
    return lost


def remove_concluded(graph: Graph, directory: Path) -> None:
    """Remove those of another run: they would pass for results of this one.

    Raises:
        StorageError: one cannot be removed.
    """
    for operator in _concluders(graph):
        for name in operator.concluded:
            with writing(directory / name):
                (directory / name).unlink(missing_ok=True)


def _concluders(graph: Graph) -> Iterator[Concluder]:
    return (node.op for node in graph.nodes.values() if isinstance(node.op, Concluder))
