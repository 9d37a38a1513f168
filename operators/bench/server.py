"""llama-server as a contender: `python -m operators.bench.server SPEC.json` starts it, sends all rows, stops it.

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
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from operators.bench.child import Child, ChildFailed
from operators.bench.figures import Figures
from operators.bench.spec import Spec
from operators.bench.workload import Workload
from operators.setting_checks import usable_cores
from operators.settings import SamplingSettings

PROGRAM = "llama-server"
HOST = "127.0.0.1"
_START_S = 300.0
_ANSWER_S = 3600.0
_CLIENTS_PER_SLOT = 2


class ServerFailed(Exception):
    """The server refused a request, or did not start."""


@dataclass(frozen=True)
class Answer:
    """What the server says of one request."""

    prompt_tokens: int
    new_tokens: int


def command(spec: Spec, port: int) -> list[str]:
    """The command line of the server: our sizes, no page, and its caches only where a prefix is shared."""
    runtime = spec.runtime
    context = (runtime.max_sequence_tokens or 1024) * runtime.slots
    caches = ["--cache-prompt"] if spec.share_prefix else ["--no-cache-prompt", "--cache-ram", "0"]
    return [
        str(Path(spec.peers) / PROGRAM),
        *("--model", str(spec.model.path), "--host", HOST, "--port", str(port), "--no-webui", "--offline"),
        *("--parallel", str(runtime.slots), "--ctx-size", str(context), "--fit", "off"),
        *("--batch-size", str(runtime.n_batch), "--ubatch-size", str(runtime.n_ubatch)),
        *("--threads", str(runtime.threads or usable_cores()), "--n-gpu-layers", str(spec.model.gpu_layers)),
        *("--flash-attn", "auto" if runtime.flash_attention else "off"),
        *("--cache-type-k", runtime.kv_type, "--cache-type-v", runtime.kv_type),
        *caches,
        *spec.server_arguments,
    ]


def requests(rows: pa.Table, sampling: SamplingSettings, share_prefix: bool) -> list[dict[str, Any]]:
    """The body of a request for each row of operators.bench.workload.RENDERED_SCHEMA."""
    same = {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "ignore_eos": sampling.ignore_eos,
        "stop": sampling.stop,
        "cache_prompt": share_prefix,
    }
    pairs = zip(rows["prompt_text"].to_pylist(), rows["max_tokens"].to_pylist(), strict=True)
    return [{**same, "prompt": text, "n_predict": n, "seed": i} for i, (text, n) in enumerate(pairs)]


def ask_all(port: int, bodies: Sequence[Mapping[str, Any]], clients: int) -> list[Answer]:
    """Send every body to /completion, `clients` at a time.

    Raises:
        ServerFailed: one was not answered.
    """
    waiting = deque(bodies)
    answers: list[Answer] = []
    failures: list[BaseException] = []

    def serve() -> None:
        connection = http.client.HTTPConnection(HOST, port, timeout=_ANSWER_S)
        try:
            while not failures:
                answers.append(_ask(connection, waiting.popleft()))
        except IndexError:  # no body is left
            return
        except (OSError, http.client.HTTPException, ServerFailed) as error:
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=serve, name=f"client-{i}") for i in range(min(clients, len(bodies)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise ServerFailed(f"a request was not answered: {type(failures[0]).__name__}: {failures[0]}")
    return answers


def _ask(connection: http.client.HTTPConnection, body: Mapping[str, Any]) -> Answer:
    connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    text = response.read()
    if response.status != http.client.OK:
        raise ServerFailed(f"status {response.status}: {text[:300]!r}")
    values = json.loads(text)
    return Answer(int(values["tokens_evaluated"]), int(values["tokens_predicted"]))


def wait_until_ready(child: Child, port: int) -> None:
    """Return when the server has loaded its model.

    Raises:
        ServerFailed: it ended, or took too long.
    """
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if (code := child.poll()) is not None:
            raise ServerFailed(f"{PROGRAM} ended with {code}: {child.last_words()}")
        if _healthy(port):
            return
        time.sleep(0.1)
    raise ServerFailed(f"{PROGRAM} was not ready after {_START_S:g} s: {child.last_words()}")


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def measure(spec: Spec) -> Figures:
    """Start the server, have it complete all rows, and stop it.

    Raises:
        ServerFailed, ChildFailed: it cannot be started or does not answer.
    """
    bodies = requests(Workload(Path(spec.workload)).rendered(), spec.sampling, spec.share_prefix)
    port = _free_port()
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        child = Child(command(spec, port), Path(folder), session=False)
        try:
            wait_until_ready(child, port)
            began = time.perf_counter()
            answers = ask_all(port, bodies, _CLIENTS_PER_SLOT * spec.runtime.slots)
            took = time.perf_counter() - began
        finally:
            child.end()
    prompt_tokens, new_tokens = (sum(getattr(a, name) for a in answers) for name in ("prompt_tokens", "new_tokens"))
    return Figures(took, prompt_tokens, new_tokens, cpu_s=child.cpu_s, peak_rss_mb=child.peak_rss_mb)


def main(arguments: Sequence[str]) -> int:
    """SPEC.json: measure and print the figures. 0, or 1 with the reason on stderr."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through `finally`, which stops the server
    try:
        print(measure(Spec.load(Path(arguments[0]))).to_json())
    except (ServerFailed, ChildFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
