"""The boundary of user code: whatever an operator, a module or a function of a job raises is its node's failure."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pipeline.api.errors import ConfigError, GraphError, HookFailed, PipelineError

T = TypeVar("T")
log = logging.getLogger(__name__)


@contextmanager
def user_code(failed: Callable[[BaseException], Exception], *own: type[BaseException]) -> Iterator[None]:
    """Have any exception of the block, SystemExit and the like included, be what `failed` makes of it. Those of `own`
    and the user's Ctrl-C pass."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, own) or _is_ctrl_c(error):
            raise
        raise failed(error) from error


@contextmanager
def planning(node: str, hook: str) -> Iterator[None]:
    """Have what the block raises name `node`: what is not raised on purpose is HookFailed, which names the `hook`."""
    try:
        with user_code(lambda error: HookFailed(node, f"{hook} raised {spelt(error)}"), PipelineError):
            yield
    except ConfigError as error:
        if hook != "plan" or isinstance(error, GraphError):
            raise
        told = type(error)(f"node '{node}': {error}")
        told.node = node
        raise told from error


def or_else(what: str, do: Callable[[], T], otherwise: T, level: int = logging.WARNING) -> T:
    """Return what `do` returns, or `otherwise` if it raises: what is only shown, or only freed, loses nothing else. The
    first failure of a `what` is logged with `level`."""
    try:
        with user_code(_Failed):
            return do()
    except _Failed as failed:
        error = failed.__cause__ or failed
        if what not in told:
            log.log(level, "%s: %s", what, spelt(error), exc_info=error)
        told.add(what)
        return otherwise


def spelt(error: BaseException) -> str:
    """Return the class and the text of `error`; only the class, where its own `__str__` raises."""
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class _Failed(Exception): ...


told: set[str] = set()
"""What was said in this attempt: a text that fails does so several times a second."""


def _is_ctrl_c(error: BaseException) -> bool:
    """Return True if Python itself may have raised `error`: a run has handlers of its own, a notebook has Python's."""
    return (
        isinstance(error, KeyboardInterrupt)
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    )
