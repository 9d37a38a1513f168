"""Workers as actors of a Ray cluster (`cluster=ray`). The only module that imports ray."""

from __future__ import annotations

import logging
import os
import platform
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import psutil
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from pipeline.api.errors import ConfigError
from pipeline.cluster.pool import WorkerLost
from pipeline.cluster.rpc import unpickled
from pipeline.cluster.worker import Worker, WorkerPlan
from pipeline.settings import ClusterSettings
from pipeline.system.signals import call_with_handlers_kept

LOCAL = "local"
MOST_SAID = 500
"""Characters of an error of Ray that are shown."""
_CLOSE_S = 5.0
SERVICE_CALLS = 8
"""Calls of all workers to the objects of the driver that are answered at a time."""
log = logging.getLogger(__name__)


class RayPool:
    """Starts workers as actors. An actor that Ray cannot place yet begins when there is room, so that it is the demand
    that an autoscaler sees; one that ends is replaced by the dispatcher, on whatever node has room.

    Args:
        settings: of the cluster.
        plan: of every worker.
        calls: that a worker answers at a time.
        threads: runtime.threads; the CPUs of a worker unless the settings say otherwise.
        memory: bytes that Ray keeps for a worker; 0 for none.

    Raises:
        ConfigError: there is no such cluster.
    """

    def __init__(
        self, settings: ClusterSettings, plan: WorkerPlan, calls: int, threads: int | None, memory: int
    ) -> None:
        self._ours = not ray.is_initialized()
        if self._ours:
            _connect(settings.address)
        self._plan, self._calls = plan, calls
        cores = [node["Resources"].get("CPU", 0.0) for node in _nodes() if node["Alive"]]
        cpus = settings.cpus or threads or min((each for each in cores if each), default=1.0)
        self._needs: dict[str, float] = {"CPU": float(cpus), **settings.resources}
        if settings.gpus:
            self._needs["GPU"] = settings.gpus
        if memory:
            self._needs["memory"] = float(memory)
        options = {
            "num_cpus": cpus,
            "num_gpus": settings.gpus,
            "memory": memory or None,
            "resources": settings.resources or None,
            "max_concurrency": calls,
            "max_restarts": 0,
            "max_task_retries": 0,
        }
        self._actor = ray.remote(_actor_class()).options(**{k: v for k, v in options.items() if v is not None})
        on_this_node = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        desk = ray.remote(_desk_class()).options(
            num_cpus=0,
            max_concurrency=SERVICE_CALLS,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy=on_this_node,
        )
        self._desk = desk.remote(sys.path, os.getcwd())  # noqa: PTH109
        self._started: list[RayHandle] = []
        self._node = _own_node()

    @property
    def fits(self) -> int:
        """Workers that the cluster has room for as it is now, at least one."""
        resources = _resources()
        return max(1, int(min(resources.get(name, 0.0) / need for name, need in self._needs.items() if need)))

    @property
    def lost(self) -> str | None:
        if self._node is None or _runs(self._node):
            return None
        return "Ray has ended on this machine (its raylet is gone); start it again, and the same command goes on"

    def start_worker(self, name: str) -> RayHandle:
        handle = RayHandle(self._actor.remote(sys.path, os.getcwd(), self._plan, self._desk))  # noqa: PTH109
        self._started.append(handle)
        return handle

    def missing(self) -> str:
        needs, resources = _in_words(self._needs), _resources()
        available = {name: resources.get(name, 0.0) for name in self._needs}
        short = [name for name, need in self._needs.items() if need > available[name]]
        hint = f"there is too little {' and '.join(short)}" if short else "its nodes are taken, or load the model"
        return f"a worker takes {needs}, and the cluster has {_in_words(available)} in all; {hint}"

    def close(self) -> None:
        if self.lost:  # nothing would answer; Ray ends the workers of a driver that is gone
            return
        for handle in self._started:
            handle.kill()
        if not self._close_desk():
            return
        ray.kill(self._desk)
        if self._ours:
            call_with_handlers_kept(ray.shutdown)  # which takes a second; SIGTERM would end the process at once

    def _close_desk(self) -> bool:
        """Have the objects of the driver closed; return False if Ray no longer answers, as when a scheduler ends an
        allocation: it tells all processes at once, and kills them soon after. The store has on disk what it took."""
        try:
            ray.get(self._desk.close.remote(), timeout=_CLOSE_S)
        except (RayError, TimeoutError) as error:
            log.warning("the completion store's actor did not close: %s", _reason(error))
            return False
        return True


class RayHandle:
    """A worker in an actor."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor

    def call(self, method: str, *args: object) -> Future[Any]:
        future: Future[Any] = Future()

        def settle(done: Future[Any]) -> None:
            try:
                works, answer = unpickled(done.result())
            except RayError as error:
                works, answer = False, WorkerLost(_reason(error), _address(error))
            except BaseException as error:  # its own exceptions are in what it returns
                works, answer = False, WorkerLost(f"its answer cannot be read: {_reason(error)}")
            (future.set_result if works else future.set_exception)(answer)

        self._actor.call.remote(method, *args).future().add_done_callback(settle)
        return future

    def kill(self) -> None:
        ray.kill(self._actor)


class RayServices:
    """The objects of the driver's machine, in an actor there."""

    def __init__(self, desk: Any) -> None:
        self._desk = desk

    def call(self, key: object, factory: Callable[[], object], method: str, *args: object) -> Any:
        works, answer = unpickled(ray.get(self._desk.call.remote(key, factory, method, *args)))
        if not works:
            raise answer
        return answer


def worker_of(plan: WorkerPlan, desk: Any) -> Worker:
    """Return the worker of an actor."""
    address = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return Worker(plan, RayServices(desk), f"{platform.node()} ({address})")


def _actor_class() -> type[Any]:
    """Return the class of the workers' actors. It is sent by value, and needs nothing before it has the path."""

    class PieceWorker:
        def __init__(self, path: list[str], folder: str, plan: object, desk: object) -> None:
            import os
            import sys

            sys.path += [entry for entry in path if entry not in sys.path]
            if os.path.isdir(folder):  # noqa: PTH112
                os.chdir(folder)
            from pipeline.cluster.ray_pool import worker_of

            self._worker = worker_of(plan, desk)  # type: ignore[arg-type]

        def call(self, method: str, *args: object) -> object:
            from pipeline.cluster.rpc import outcome

            return outcome(self._worker, method, args)

    return PieceWorker


def _desk_class() -> type[Any]:
    """Return the class of the actor with the driver's objects."""

    class Desk:
        def __init__(self, path: list[str], folder: str) -> None:
            import os
            import sys

            sys.path += [entry for entry in path if entry not in sys.path]
            os.chdir(folder)  # that of the driver, which is on this machine: a store's path may be relative
            from pipeline.cluster.pool import ServiceDesk

            self._desk = ServiceDesk()

        def call(self, *args: object) -> object:
            from pipeline.cluster.rpc import outcome

            return outcome(self._desk, "call", args)

        def close(self) -> None:
            self._desk.close()

    return Desk


def _connect(address: str) -> None:
    """Connect to a cluster, or start one on this machine. Ray's handler of SIGTERM is taken back: ours asks the workers
    to finish their step."""
    handler = signal.getsignal(signal.SIGTERM)
    local = address == LOCAL
    if local:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        dashboard = False if local else None
        ray.init(address=address, log_to_driver=False, configure_logging=False, include_dashboard=dashboard)
    except (ConnectionError, RayError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"cluster.address={address}: {_reason(error)} Start a cluster (`ray start --head`), name the one that"
            " runs (host:port), or start one here with cluster.address=local; one that runs and asks for a token is"
            " found with RAY_AUTH_MODE=token in the environment, and the token of its head (~/.ray/auth_token)"
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread() and handler is not None:
            signal.signal(signal.SIGTERM, handler)


def _own_node() -> psutil.Process | None:
    """Return the process of the raylet that this process is connected to; None if it cannot be seen."""
    named = f"--node_id={ray.get_runtime_context().get_node_id()}"
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if named in process.cmdline():
                return process
    return None


def _runs(process: psutil.Process) -> bool:
    """Return False if `process` has ended, also where it is a child that nobody has waited for."""
    with suppress(psutil.Error):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def _nodes() -> list[dict[str, Any]]:
    return list(ray.nodes())  # type: ignore[no-untyped-call]


def _resources() -> dict[str, float]:
    return dict(ray.cluster_resources())  # type: ignore[no-untyped-call]


def _reason(error: BaseException) -> str:
    """Return the message of an error of Ray on one line, without the fields of its actor, which say only numbers."""
    lines = [line for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    return " ".join(line.strip() for line in lines)[:MOST_SAID] or type(error).__name__


def _address(error: RayError) -> str:
    """Return the IP of the node that an error of Ray names, "" if it names none."""
    named = re.search(r"^\tip: (\S+)$|\bIP: ([\w.:]+)", str(error), re.MULTILINE)
    return (named[1] or named[2]) if named else ""


def _in_words(resources: Mapping[str, float]) -> str:
    return ", ".join(
        f"{amount / (1 << 20):,.0f} MiB of memory" if name == "memory" else f"{amount:g} {name}"
        for name, amount in resources.items()
    )
