"""llama-server as a contender: starts it, has it complete all rows, stops it.

Twice as many clients as slots wait for answers, so that a free slot always finds a request. The clock runs from the
first request to the last answer.
"""

from __future__ import annotations

import http.client
import json
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from operators.settings import SamplingSettings
from tools.bench.child import Child, ChildFailed
from tools.bench.figures import Figures
from tools.bench.spec import Spec

PROGRAM = "llama-server"
HOST = "127.0.0.1"
_START_S = 300.0
_ANSWER_S = 3600.0
_CLIENTS_PER_SLOT = 2


def measure(spec: Spec) -> Figures:
    """Start the server, have it complete all rows, and stop it.

    Raises:
        ChildFailed: it cannot be started or does not answer.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through `finally`, which stops the server
    bodies = requests(spec.rows.rendered(), spec.sampling, spec.share_prefix)
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        child = Child(command(spec, port), Path(folder), session=False)
        try:
            wait_until_ready(child, port)
            began = time.perf_counter()
            answers = ask_all(port, bodies, _CLIENTS_PER_SLOT * spec.runtime.slots)
            took = time.perf_counter() - began
        finally:
            child.end()
    return Figures(
        work_s=took,
        prompt_tokens=sum(answer["tokens_evaluated"] for answer in answers),
        new_tokens=sum(answer["tokens_predicted"] for answer in answers),
        cpu_s=child.cpu_s,
        peak_rss_mb=child.peak_rss_mb,
    )


def command(spec: Spec, port: int) -> list[str]:
    """The command line of the server: our sizes, no page, and its caches only where a prefix is shared."""
    slots, room = spec.runtime.slots, spec.runtime.max_sequence_tokens or 1024
    caches = ["--cache-prompt"] if spec.share_prefix else ["--no-cache-prompt", "--cache-ram", "0"]
    return [
        *(str(spec.program(PROGRAM)), *spec.llama_options()),
        *("--host", HOST, "--port", str(port), "--no-webui"),
        *("--parallel", str(slots), "--ctx-size", str(room * slots), "--fit", "off"),
        *(*caches, *spec.server_arguments),
    ]


def requests(rows: pa.Table, sampling: SamplingSettings, share_prefix: bool) -> list[dict[str, Any]]:
    """The body of a request for each row of tools.bench.workload.RENDERED_SCHEMA."""
    keys = ("temperature", "top_k", "top_p", "min_p", "ignore_eos", "stop")
    same = {key: getattr(sampling, key) for key in keys} | {"cache_prompt": share_prefix}
    pairs = zip(rows["prompt_text"].to_pylist(), rows["max_tokens"].to_pylist(), strict=True)
    return [{**same, "prompt": text, "n_predict": n, "seed": i} for i, (text, n) in enumerate(pairs)]


def ask_all(port: int, bodies: Sequence[Mapping[str, Any]], clients: int) -> list[Any]:
    """Send every body to /completion, `clients` at a time; returns the answers in the order of the bodies.

    Raises:
        ChildFailed: one was not answered.
    """
    pool = ThreadPoolExecutor(clients)
    try:
        return list(pool.map(lambda body: json.loads(_ask(port, "POST", "/completion", _ANSWER_S, body)), bodies))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # what still waits ends with the server


def _ask(port: int, method: str, path: str, timeout_s: float, body: Mapping[str, Any] | None = None) -> bytes:
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout_s)
    try:
        text = None if body is None else json.dumps(body)
        connection.request(method, path, text, {"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.read()
    except (OSError, http.client.HTTPException) as error:
        raise ChildFailed(f"a request was not answered: {type(error).__name__}: {error}") from error
    finally:
        connection.close()
    if response.status != http.client.OK:
        raise ChildFailed(f"a request was refused with status {response.status}: {answer[:300]!r}")
    return answer


def wait_until_ready(child: Child, port: int) -> None:
    """Return when the server has loaded its model.

    Raises:
        ChildFailed: it ended, or took too long.
    """
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if (code := child.poll()) is not None:
            raise ChildFailed(f"{PROGRAM} ended with {code}: {child.last_words()}")
        try:
            _ask(port, "GET", "/health", timeout_s=5)
            return
        except ChildFailed:
            time.sleep(0.1)
    raise ChildFailed(f"{PROGRAM} was not ready after {_START_S:g} s: {child.last_words()}")
