"""The failure of a node while the graph runs or ends, from whatever its operator raises."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from pipeline.api.by_batch import line_of
from pipeline.api.errors import Cancelled, NodeFailed, PipelineError
from pipeline.api.user_code import user_code
from pipeline.system.disk_errors import explained


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
