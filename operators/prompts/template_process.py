"""TemplateProcess: renders the chat template of a model file, which a stranger wrote, in a process with limits.

The sandbox bounds neither the time of a loop nor what `'x' * 10**10` and `|center(10**10)` make, which Jinja computes
when it compiles where all is constant. A thread can neither be ended nor give its memory back, a process can. Render
took 50 us a row with it and 35 without (batches of 1024 prompts of 220 characters), and half of the CPU time here.
"""

from __future__ import annotations

import datetime
import fcntl
import io
import json
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import jinja2
from jinja2.exceptions import SecurityError

from operators.prompts.template import Template, probe, reason_of
from pipeline import PACKAGES
from pipeline.api.errors import ConfigError

if TYPE_CHECKING:  # the process has no need of Arrow
    from pipeline.api.protocols import Runtime

CPU_S = 10.0
MEMORY_MIB = 1024
PIPE_BYTES = 1 << 20
"""Room in a pipe: for each read and write the caller waits its turn among the threads of a run, some milliseconds."""
NO_MEMORY = 3
"""Exit code of the process."""


class TemplateProcess:
    """A chat template in a process of its own, which begins again after a row that ends it. For all threads.

    Args:
        source, name, date: see Template.
        proof: values that it must render (`probe`).
        cpu_s: seconds of CPU for a text, which pass for the process only: a busy machine makes no reject.
        memory_mib: address space of the process; Python and Jinja take 25 MiB of it.

    Raises:
        ConfigError: it does not compile, or not within the limits, or fails for every row.
    """

    def __init__(
        self,
        source: str,
        name: str,
        date: datetime.date | None,
        proof: dict[str, Any],
        cpu_s: float = CPU_S,
        memory_mib: int = MEMORY_MIB,
    ) -> None:
        self.name = name
        self._first = (source, name, date, proof, cpu_s, memory_mib)
        self._limits = {
            -signal.SIGPROF: f"it takes more than {cpu_s:g} s",
            NO_MEMORY: f"it needs more than {memory_mib} MiB of memory",
        }
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        try:
            (facts,) = self._start()
        except _Ended as ended:
            raise ConfigError(f"{name} cannot be used: {ended}. Name another one with model.chat_template=") from None
        if "error" in facts:
            self.close()
            raise ConfigError(facts["error"])
        self.no_content: str | None = facts["no_content"]
        self.unknown, self.named = frozenset(facts["unknown"]), frozenset(facts["named"])

    def render_all(self, rows: Sequence[dict[str, Any]]) -> list[str | Exception]:
        """Render the template for each of `rows`; an error is a TypeError, or a TemplateError for all else."""
        with self._lock:
            return self._rendered(rows) if rows else []

    def close(self) -> None:
        """End the process. What is not closed ends with this object."""
        if self._process is not None:
            self._end()
            self._process = None

    def _rendered(self, rows: Sequence[dict[str, Any]]) -> list[str | Exception]:
        try:
            if self._process is None:
                self._start()
            return [_read(answer) for answer in self._ask(rows, len(rows))]
        except _Ended as ended:
            if len(rows) == 1:
                return [SecurityError(str(ended))]
            return [text for row in rows for text in self._rendered([row])]

    def _start(self) -> list[Any]:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "operators.prompts.template_process"],
            cwd=PACKAGES,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=PIPE_BYTES,
            start_new_session=True,  # Ctrl-C is for this process
        )
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError, AttributeError):  # the system gives no more, or has but one size
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)  # type: ignore[arg-type]  # both are pipes
        self._end = weakref.finalize(self, _end, self._process)
        return self._ask(self._first)

    def _ask(self, message: object, count: int = 1) -> list[Any]:
        """Send `message` and return so many answers. Raises _Ended."""
        assert self._process is not None
        inbox, outbox = self._process.stdin, self._process.stdout
        assert inbox is not None
        assert outbox is not None
        lines: list[bytes] = []
        try:
            pickled = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
        except RecursionError:
            raise _Ended("its values are nested too deeply") from None
        with suppress(BrokenPipeError):
            inbox.write(pickled)
            inbox.flush()
            lines = [outbox.readline() for _ in range(count)]
        if lines and lines[-1].endswith(b"\n"):
            return [json.loads(line.decode("utf-8", "surrogatepass")) for line in lines]
        code = self._process.wait()
        self.close()
        raise _Ended(self._limits.get(code, f"its process ended with exit code {code}"))


def shared_process(runtime: Runtime, source: str, date: datetime.date | None, proof: dict[str, Any]) -> TemplateProcess:
    """Return the process of a model's chat template, which the runs of this process share as they share the model."""
    arguments = (source, "the model's chat template", date, proof)
    key = ("chat template", repr(arguments))
    return runtime.shared(key, lambda: TemplateProcess(*arguments), lambda process: process.close())


class _Ended(Exception):
    """The process ended before it answered; the message says why."""


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def _read(answer: Any) -> str | Exception:
    if isinstance(answer, str):
        return answer
    is_type_error, reason = answer
    return TypeError(reason) if is_type_error else jinja2.TemplateError(reason)


def _answers(out: io.BufferedIOBase) -> Iterator[Any]:
    """Yield what the template has and needs, then for each row that comes from stdin its text or error; flush `out`
    where all rows have theirs."""
    source, name, date, proof, cpu_s, memory_mib = pickle.load(sys.stdin.buffer)
    with suppress(ValueError, OSError):  # some systems have no such limit
        resource.setrlimit(resource.RLIMIT_AS, (memory_mib << 20, memory_mib << 20))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    try:
        template = Template(source, name, strict=False, date=date)
        probe(template, proof)
    except ConfigError as error:
        yield {"error": str(error)}
        return
    yield {"no_content": template.no_content, "unknown": list(template.unknown), "named": list(template.named)}
    with suppress(EOFError):
        while True:
            signal.setitimer(signal.ITIMER_PROF, 0)
            out.flush()
            for values in pickle.load(sys.stdin.buffer):
                signal.setitimer(signal.ITIMER_PROF, cpu_s)
                yield _made(template, values)


def _made(template: Template, values: dict[str, Any]) -> str | tuple[bool, str]:
    try:
        return template.render(values)
    except TypeError as error:
        return True, str(error)
    except Exception as error:
        return False, reason_of(error).removeprefix(reason_of(jinja2.TemplateError("")))


def main() -> None:
    """Read pickles from stdin until it is closed, and write answers to stdout, a line of JSON each."""
    encode = json.JSONEncoder(ensure_ascii=False).encode  # json.dumps would make one for each row
    out = io.BufferedWriter(io.FileIO(sys.stdout.fileno(), "wb", closefd=False), PIPE_BYTES)
    try:
        for answer in _answers(out):
            line = encode(answer)
            out.write(line.encode("utf-8", "surrogatepass") + b"\n")
    except MemoryError:
        sys.exit(NO_MEMORY)
    except BrokenPipeError:  # whoever asked has ended; what `out` still has cannot be written
        os._exit(0)


if __name__ == "__main__":
    main()
