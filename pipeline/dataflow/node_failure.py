"""The failure of a node while the graph runs or ends, from whatever its operator raises."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from pipeline.api.by_batch import line_of
from pipeline.api.errors import Cancelled, NodeFailed, PipelineError
from pipeline.api.user_code import or_else, user_code
from pipeline.system.deadlines import Overran, within
from pipeline.system.disk_errors import explained

Close = Callable[[], None]


def running(name: str, directory: Path) -> AbstractContextManager[None]:
    """Have any exception of the block be NodeFailed of the node `name`."""
    return user_code(lambda error: node_failed(name, error, directory), Cancelled)


def node_failed(name: str, error: BaseException, directory: Path) -> NodeFailed:
    """Return the failure of the node `name`; `directory`: of the results, for what a full disk says."""
    if isinstance(error, NodeFailed):
        return error  # of a node in a worker
    cause = explained(error, directory)
    if not isinstance(cause, PipelineError) and (line := line_of(cause)) is not None:
        cause.add_note(line)
    failure = NodeFailed(name, cause)
    failure.__cause__ = error
    return failure


def close_all(
    operators: Iterable[tuple[str, Close]],
    shared: Close,
    limit_s: float,
    abandoned: threading.Event,
    half_open: str | None = None,
) -> NodeFailed | None:
    """Close operators in this order, then what they `shared`. Failures are logged, since what is committed is there.
    After a hang nothing more is closed: it may be in use.

    Args:
        operators: names of nodes, each with the `close` of its operator.
        limit_s: seconds that each may take.
        abandoned: set by a hang.
        half_open: a node whose operator did not open to the end, so that its failure to close says nothing new.

    Returns:
        The failure of the first node that left the process (`sys.exit`).
    """
    left: list[NodeFailed] = []

    def close_in_time(name: str | None, what: str, close: Close) -> None:
        try:
            within(limit_s, f"close of {what}", close)
        except Overran:
            abandoned.set()
            raise
        except SystemExit as error:
            left.append(NodeFailed(name or what, error))
            raise

    for name, close in [*operators, (None, shared)]:
        if not abandoned.is_set():
            what = "what the nodes shared" if name is None else f"node '{name}'"
            level = logging.DEBUG if name is not None and name == half_open else logging.WARNING
            or_else(f"{what} cannot be closed", partial(close_in_time, name, what, close), None, level)
    return left[0] if left else None
