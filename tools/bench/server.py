"""llama-server as a contender: start it, have it complete all rows, stop it.

There are twice as many clients as slots, so that a free slot always has a request waiting. The clock runs from the
first request to the last answer.
"""

from __future__ import annotations

import http.client
import json
import resource
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tools.bench.child import RSS_UNITS_IN_MIB, ChildFailed, last_words, peak_rss_mb, start
from tools.bench.figures import Figures
from tools.bench.spec import Spec

PROGRAM = "llama-server"
HOST = "127.0.0.1"
_START_S = 300.0
_ANSWER_S = 3600.0
_CLIENTS_PER_SLOT = 2
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never use a proxy for localhost


def measure(spec: Spec) -> Figures:
    """Start the server, have it complete all rows, and stop it.

    Raises:
        ChildFailed: it cannot be started or does not answer.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through `finally`, which stops the server
    bodies = requests(spec)
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    log = spec.folder / "server.log"
    server = start(command(spec, port), log, log)
    try:
        wait_until_ready(server, port, log)
        began = time.perf_counter()
        answers = ask_all(port, bodies, _CLIENTS_PER_SLOT * spec.runtime.slots)
        took, peak_mb = time.perf_counter() - began, peak_rss_mb(server.pid)
    finally:
        server.kill()  # it has nothing to keep
        server.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # this process has no other child
    return Figures(
        work_s=took,
        prompt_tokens=sum(answer["tokens_evaluated"] for answer in answers),
        new_tokens=sum(answer["tokens_predicted"] for answer in answers),
        cpu_s=used.ru_utime + used.ru_stime,
        peak_rss_mb=peak_mb or used.ru_maxrss / RSS_UNITS_IN_MIB,
    )


def command(spec: Spec, port: int) -> list[str]:
    """Return the command of the server: our sizes, no web page, and its caches only if a prefix is shared."""
    slots, room = spec.runtime.slots, spec.runtime.max_sequence_tokens or 1024
    caches = ["--cache-prompt"] if spec.share_prefix else ["--no-cache-prompt", "--cache-ram", "0"]
    return [
        *spec.llama_command(PROGRAM),
        *("--host", HOST, "--port", str(port), "--no-webui"),
        *("--parallel", str(slots), "--ctx-size", str(room * slots), "--fit", "off"),
        *(*caches, *spec.bench.server_arguments),
    ]


def requests(spec: Spec) -> list[dict[str, Any]]:
    """Return the request body for each row."""
    keys = ("temperature", "top_k", "top_p", "min_p", "ignore_eos", "stop")
    same = {key: getattr(spec.sampling, key) for key in keys} | {"cache_prompt": spec.share_prefix}
    rows = spec.workload.rows.to_pylist()
    return [
        {**same, "prompt": row["prompt_text"], "n_predict": row["max_tokens"], "seed": i} for i, row in enumerate(rows)
    ]


def ask_all(port: int, bodies: Sequence[Mapping[str, Any]], clients: int) -> list[Any]:
    """Send every body to /completion, `clients` at a time; return the answers in the order of the bodies.

    Raises:
        ChildFailed: one was not answered.
    """
    pool = ThreadPoolExecutor(clients)
    try:
        return list(pool.map(lambda body: json.loads(_ask(port, "/completion", _ANSWER_S, body)), bodies))
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # pending requests end with the server


def _ask(port: int, path: str, timeout_s: float, body: Mapping[str, Any] | None = None) -> bytes:
    text = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{HOST}:{port}{path}", text, {"Content-Type": "application/json"})
    try:
        with _HTTP.open(request, timeout=timeout_s) as response:
            answer: bytes = response.read()
            return answer
    except urllib.error.HTTPError as error:
        raise ChildFailed(f"a request was refused with status {error.code}: {error.read()[:300]!r}") from error
    except (OSError, http.client.HTTPException) as error:
        raise ChildFailed(f"a request was not answered: {type(error).__name__}: {error}") from error


def wait_until_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Return when the server has loaded its model.

    Raises:
        ChildFailed: it ended, or took too long.
    """
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if (code := server.poll()) is not None:
            raise ChildFailed(f"{PROGRAM} ended with {code}: {last_words(log)}")
        try:
            _ask(port, "/health", timeout_s=5)
            return
        except ChildFailed:
            time.sleep(0.1)
    raise ChildFailed(f"{PROGRAM} was not ready after {_START_S:g} s: {last_words(log)}")
