"""The end of a run's operators: each is closed in its time, and what fails there is logged."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial

from pipeline.api.errors import NodeFailed
from pipeline.api.user_code import or_else
from pipeline.system.deadlines import Overran, within

Close = Callable[[], None]


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
