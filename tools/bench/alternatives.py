"""The alternatives to this project, as contenders: llama-server, and llama-cpp-python's `Llama.create_completion`.

llama-server has twice as many clients as slots, so that a free slot always has a request waiting. The clock runs from
the first request to the last answer. `create_completion` runs row by row and reuses the KV cache of the prefix that a
prompt shares with the last one. It cannot be told to ignore the end of text, so a row of a trained model may end early;
its tokens are counted as they come.
"""

from __future__ import annotations

import base64
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
from dataclasses import replace
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from operators.engine.backend.loading import inspect_model
from operators.images.columns import IMAGE_MARK
from tools.bench.child import RSS_UNITS_IN_MIB, ChildFailed, last_words, peak_rss_mb, start
from tools.bench.contenders import Spec
from tools.bench.figures import Figures
from tools.bench.workload import CELL, Workload

PROGRAM = "llama-server"
HOST = "127.0.0.1"
_START_S = 300.0
_ANSWER_S = 3600.0
_PROPS_S = 60.0
_CLIENTS_PER_SLOT = 2
_HTTP = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never use a proxy for localhost


def create_completion(spec: Spec) -> Figures:
    """Complete all rows with llama-cpp-python, one after the other."""
    runtime, sampling = spec.runtime, spec.sampling
    llama = llama_cpp.Llama(
        spec.model_path,
        n_ctx=runtime.max_sequence_tokens or 1024,
        n_batch=runtime.n_batch,
        n_ubatch=runtime.n_ubatch,
        n_threads=spec.threads,
        n_threads_batch=spec.threads,
        n_gpu_layers=inspect_model(spec.model).placement.gpu_layers,
        flash_attn=runtime.flash_attention,
        verbose=False,
    )
    same: dict[str, Any] = {key: getattr(sampling, key) for key in ("temperature", "top_k", "top_p", "min_p", "stop")}
    rows = spec.workload.rows.to_pylist()
    began = time.perf_counter()
    usages = [
        llama.create_completion(row["prompt_text"], max_tokens=row["max_tokens"], seed=i, **same)["usage"]
        for i, row in enumerate(rows)
    ]
    return Figures(
        work_s=time.perf_counter() - began,
        prompt_tokens=sum(usage["prompt_tokens"] for usage in usages),
        new_tokens=sum(usage["completion_tokens"] for usage in usages),
    )


def drafting_server(spec: Spec) -> Figures:
    """Do as `server`, with the draft model."""
    drafts = ["--model-draft", str(spec.bench.draft_model), "--gpu-layers-draft", "0"]
    return server(replace(spec, bench=replace(spec.bench, server_arguments=[*spec.bench.server_arguments, *drafts])))


def server(spec: Spec) -> Figures:
    """Start llama-server, have it complete all rows, and stop it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through `finally`, which stops the server
    bodies = requests(spec)
    if spec.adapters:  # those that a request does not name have scale 0
        scales = [[{"id": i, "scale": float(i == own)} for i in range(len(spec.adapters))] for own in spec.adapter_of()]
        bodies = [{**body, "lora": lora} for body, lora in zip(bodies, scales, strict=True)]
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
    log = spec.folder / "server.log"
    process = start(server_command(spec, port), log, log)
    try:
        wait_until_ready(process, port, log)
        if spec.workload.images:
            bodies = with_markers(spec.workload, bodies, json.loads(_ask(port, "/props", _PROPS_S))["media_marker"])
        began = time.perf_counter()
        answers = ask_all(port, bodies, _CLIENTS_PER_SLOT * spec.runtime.slots)
        took, peak_mb = time.perf_counter() - began, peak_rss_mb(process.pid)
    finally:
        process.kill()  # it has nothing to keep
        process.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)  # this process has no other child
    return Figures(
        work_s=took,
        prompt_tokens=sum(answer["tokens_evaluated"] for answer in answers),
        new_tokens=sum(answer["tokens_predicted"] for answer in answers),
        cpu_s=used.ru_utime + used.ru_stime,
        peak_rss_mb=peak_mb or used.ru_maxrss / RSS_UNITS_IN_MIB,
        images_encoded=encoded(spec.workload, answers) if spec.workload.images else None,
    )


def shuffled_server(spec: Spec) -> Figures:
    """Do as `server`, with the rows in random order."""
    work = spec.workload
    order = np.random.default_rng(0).permutation(work.rows.num_rows)
    return server(replace(spec, workload=replace(work, rows=work.rows.take(order))))


def serial_server(spec: Spec) -> Figures:
    """Do as `server`, with one slot, so that rows about one image come one after the other."""
    return server(replace(spec, runtime=replace(spec.runtime, slots=1)))


def server_command(spec: Spec, port: int) -> list[str]:
    """Return the command of llama-server: our sizes, no web page, and its caches only if a prefix is shared."""
    slots, room = spec.runtime.slots, spec.runtime.max_sequence_tokens or 1024
    caches = ["--cache-prompt"] if spec.share_prefix else ["--no-cache-prompt", "--cache-ram", "0"]
    return [
        *spec.llama_command(PROGRAM),
        *("--host", HOST, "--port", str(port), "--no-webui"),
        *("--parallel", str(slots), "--ctx-size", str(room * slots), "--fit", "off"),
        *(*caches, *spec.bench.server_arguments),
        *(word for path in spec.adapters for word in ("--lora", str(path))),
        *(("--mmproj", str(Path(spec.model.mmproj).expanduser())) if spec.workload.images else ()),
    ]


def requests(spec: Spec) -> list[dict[str, Any]]:
    keys = ("temperature", "top_k", "top_p", "min_p", "ignore_eos", "stop")
    same = {key: getattr(spec.sampling, key) for key in keys} | {"cache_prompt": spec.share_prefix}
    rows = spec.workload.rows.to_pylist()
    return [
        {**same, "prompt": row["prompt_text"], "n_predict": row["max_tokens"], "seed": i} for i, row in enumerate(rows)
    ]


def with_markers(workload: Workload, bodies: Sequence[Mapping[str, Any]], marker: str) -> list[dict[str, Any]]:
    """Return the bodies with their images, for which the prompt has the server's marker."""
    images = [base64.b64encode(image).decode() for image in workload.images]
    texts = [body["prompt"].replace(IMAGE_MARK, marker) for body in bodies]
    return [
        {**body, "prompt": {"prompt_string": text, "multimodal_data": [images[i]]}}
        for body, text, i in zip(bodies, texts, workload.image_of(), strict=True)
    ]


def encoded(workload: Workload, answers: Sequence[Mapping[str, Any]]) -> int:
    """Return how many rows' images were encoded: those that the cache of the server did not reach beyond."""
    ends = [np.flatnonzero(np.array(ids) == CELL)[-1] + 1 for ids in workload.rows["prompt_ids"].to_pylist()]
    return sum(answer["timings"]["cache_n"] < end for answer, end in zip(answers, ends, strict=True))


def ask_all(port: int, bodies: Sequence[Mapping[str, Any]], clients: int) -> list[Any]:
    """Send every body to /completion, `clients` at a time; return the answers in order. Raises ChildFailed."""
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


def wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Return when the server has loaded its model. Raises ChildFailed if it ended, or took too long."""
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline:
        if (code := process.poll()) is not None:
            raise ChildFailed(f"{PROGRAM} ended with {code}: {last_words(log)}")
        try:
            _ask(port, "/health", timeout_s=5)
            return
        except ChildFailed:
            time.sleep(0.1)
    raise ChildFailed(f"{PROGRAM} was not ready after {_START_S:g} s: {last_words(log)}")
