"""Workers as processes of this machine (`cluster=processes`): one for each GPU, socket or group of cores."""

from __future__ import annotations

import logging
import os
import platform
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import Any

from pipeline.cluster.gpus import Shares, workers_here
from pipeline.cluster.pool import Handle, ServiceDesk, WorkerLost
from pipeline.cluster.rpc import Caller, serve
from pipeline.cluster.worker import Worker, WorkerPlan
from pipeline.settings import ClusterSettings
from pipeline.system.machine import numa_nodes, own_cores, split_cores

BEGIN = "import sys; sys.path[:] = {path!r}; from pipeline.cluster.process_pool import main; main({calls}, {services})"
QUICK_END = {"GGML_NO_BACKTRACE": "1"}
"""Of a worker's environment: where ggml aborts it ends at once, and not when a debugger has taken minutes."""
LEAVE_S = 5.0
CROWDED = "%d workers of %d threads each share %d cores, which makes all of them slow: set %s"
log = logging.getLogger(__name__)


class ProcessPool:
    """Starts workers as processes of this machine.

    Args:
        settings: of the cluster.
        plan: of every worker.
        calls: that a worker answers at a time.
        threads: runtime.threads. Where the workers have cores enough, each is kept to so many of its own.
        on_cpu: the model runs on the CPU.
        gpus: what each worker has of the machine's GPUs; None: it sees all.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        plan: WorkerPlan,
        calls: int,
        threads: int | None,
        *,
        on_cpu: bool,
        gpus: Shares | None = None,
    ) -> None:
        self._gpus = gpus
        self._plan = plan
        self._calls = calls
        cores = own_cores()
        self.fits = workers_here(settings, gpus)
        each = threads or len(cores)
        self._cores = split_cores(cores, each, self.fits, numa_nodes()) if on_cpu else []
        if on_cpu and not self._cores:
            fewer = max(1, len(cores) // self.fits)
            remedy = f"runtime.threads={fewer}, or fewer cluster.workers" if fewer < each else "fewer cluster.workers"
            log.warning(CROWDED, self.fits, each, len(cores), remedy)
        self._desk = ServiceDesk()
        self._started: list[ProcessHandle] = []

    @property
    def lost(self) -> None:
        return None

    def start_worker(self, name: str) -> Handle:
        place = int(name.partition(".")[0]) - 1
        cores = self._cores[place] if self._cores else []
        environment = {**QUICK_END, **os.environ, **(self._gpus.environment(place) if self._gpus else {})}
        try:
            handle = ProcessHandle(self._plan, self._calls, self._desk, environment, cores)
        except OSError as error:  # no memory, too many processes or open files: perhaps not for long
            return NeverStarted(f"its process cannot be started: {error}")
        self._started.append(handle)
        return handle

    def missing(self) -> str:
        return "the model is still being loaded, or the machine is too busy"

    def close(self) -> None:
        for handle in self._started:
            handle.kill()
        self._desk.close()


class NeverStarted:
    """A worker that cannot be started, for the reason `why`."""

    def __init__(self, why: str) -> None:
        self._why = why

    def call(self, method: str, *args: object) -> Future[Any]:
        answer: Future[Any] = Future()
        answer.set_exception(WorkerLost(self._why, platform.node()))
        return answer

    def kill(self) -> None:
        pass


class ProcessHandle:
    """A worker in a process of this machine. It ends by itself when the driver does."""

    def __init__(
        self, plan: WorkerPlan, calls: int, desk: ServiceDesk, environment: dict[str, str], cores: list[int]
    ) -> None:
        self._calls, theirs = Pipe()
        services, their_services = Pipe()
        files = (theirs.fileno(), their_services.fileno())
        begin = BEGIN.format(path=sys.path, calls=files[0], services=files[1])
        # A session of its own: Ctrl-C in the terminal is for the driver, which asks its workers to stop.
        self._process = subprocess.Popen(
            [sys.executable, "-c", begin],
            env=environment,
            pass_fds=files,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        theirs.close()
        their_services.close()
        with suppress(OSError):  # it has ended already, which its first call says
            self._calls.send((plan, calls, cores))
        self._caller = Caller(self._calls, self._lost)
        threading.Thread(target=serve, args=(services, desk, 1), name="services", daemon=True).start()

    def call(self, method: str, *args: object) -> Future[Any]:
        return self._caller.call(method, *args)

    def kill(self) -> None:
        self._process.kill()
        with suppress(subprocess.TimeoutExpired):  # it hangs in the kernel (a driver, a disk), where no signal ends it
            self._process.wait(LEAVE_S)

    def _lost(self) -> WorkerLost:
        try:
            code = self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            return WorkerLost("it closed its pipe", platform.node())
        ended = f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        return WorkerLost(f"its process ended {ended}", platform.node())


class PipeServices:
    """The objects of the driver, over a pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._caller = Caller(pipe, lambda: WorkerLost("the driver is gone"))

    def call(self, key: object, factory: Callable[[], object], method: str, *args: object) -> Any:
        try:
            return self._caller.call("call", key, factory, method, *args).result()
        except WorkerLost as error:  # no row is at fault: what this worker has is for another
            sys.stderr.write(f"a worker ends: {error}\n")
            os._exit(1)


def main(calls: int, services: int) -> None:
    """Run the process of a worker. `calls`, `services`: descriptors of its pipes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    pipe = Connection(calls)
    try:
        plan, at_a_time, cores = pipe.recv()
        if cores and hasattr(os, "sched_setaffinity"):
            os.sched_setaffinity(0, cores)
        serve(pipe, Worker(plan, PipeServices(Connection(services))), at_a_time)
    except BaseException:  # without its first or its next call it is of no use, and must not wait for its threads
        traceback.print_exc()
        os._exit(1)
    os._exit(0)  # the driver is gone: nothing is left to be said
