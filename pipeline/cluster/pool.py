"""The contract between the driver and whatever starts workers: processes of this machine, or Ray."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Protocol

from pipeline.api.runtime import Resources, Services

USUAL_WORKERS = 2
"""Workers on one machine where the job does not say how many."""


class WorkerLost(Exception):
    """The process or the machine of a worker has ended. The message says how, as far as that is known. `host`: its
    machine, "" where that is not known."""

    def __init__(self, why: str, host: str = "") -> None:
        super().__init__(why)
        self.host = host


class Handle(Protocol):
    """A worker, as the driver sees it."""

    def call(self, method: str, *args: object) -> Future[Any]:
        """Call a method of pipeline.cluster.worker.Worker. Returns at once. The future raises what the method raises,
        and WorkerLost if the worker ends before it has answered."""

    def kill(self) -> None:
        """End the worker at once. Calls that it has not answered raise WorkerLost."""


class Pool(Protocol):
    """Starts workers. `start_worker` and `close` are called by one thread."""

    @property
    def fits(self) -> int:
        """Workers to start where the job does not say how many."""

    @property
    def lost(self) -> str | None:
        """Why no worker can be reached any more, for a message; None while they can."""

    def start_worker(self, name: str) -> Handle:
        """Begin to start a worker. Returns at once: its calls are answered when it runs, which may be minutes later,
        and raise WorkerLost if it cannot be started."""

    def missing(self) -> str:
        """Say why no worker has started yet, for a message."""

    def close(self) -> None:
        """End all workers and release everything."""


class ServiceDesk(Services):
    """The objects of the driver that workers call; made on first use. Thread-safe."""

    def __init__(self) -> None:
        self._objects = Resources()

    def call(self, key: object, factory: Callable[[], object], method: str, *args: object) -> Any:
        target = self._objects.get(key, factory, lambda target: getattr(target, "close", lambda: None)())
        return getattr(target, method)(*args)

    def close(self) -> None:
        """Close all objects."""
        self._objects.close()
