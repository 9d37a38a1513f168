"""on_finish: who is told when an attempt has ended, a command or a URL. It never changes how the attempt ended."""

from __future__ import annotations

import base64
import json
import logging
import os
import signal
import subprocess
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from pipeline.monitor.summary import Outcome
from pipeline.settings import HookSettings
from pipeline.system.redaction import shown_url

SAID = 2000
"""Characters of a command's output that go into run.log."""
_IN_ENVIRONMENT = ("job", "state", "exit_code", "directory", "run_id", "attempt")
log = logging.getLogger(__name__)


def summary_of(outcome: Outcome) -> dict[str, Any]:
    """Return what is told: plain values, counts of the whole run except for tokens and wall_s."""
    error = outcome.error
    rejects = [
        {"node": node, "kind": kind, "reason": reason, "rows": rows}
        for (node, kind, reason), rows in outcome.rejects.items()
    ]
    return {
        "job": outcome.job,
        "state": outcome.status.value,
        "exit_code": int(outcome.exit_code),
        "directory": str(outcome.directory),
        "run_id": outcome.run_id,
        "attempt": outcome.attempt,
        "rows": outcome.rows,
        "data_rows": outcome.data_rows,
        "rejects": rejects,
        "tokens_in": outcome.tokens_in,
        "tokens_out": outcome.tokens_out,
        "wall_s": round(outcome.wall_s, 3),
        "error": None if error is None else str(error) or type(error).__name__,
    }


def tell(settings: HookSettings, outcome: Outcome) -> None:
    """Run the command, then call the URL. What goes wrong with them is a warning."""
    summary = summary_of(outcome)
    body = (json.dumps(summary, ensure_ascii=False) + "\n").encode()  # appended to a file, JSON lines
    environment = {**os.environ, **{f"PIPELINE_{key.upper()}": str(summary[key]) for key in _IN_ENVIRONMENT}}
    calls: list[tuple[str, Callable[[], str]]] = []
    if settings.command:
        run = partial(_run, settings.command, body, environment, settings.timeout_s)
        calls.append((f"command {settings.command[0]}", run))
    if settings.url is not None:
        calls.append((f"url {shown_url(settings.url)}", partial(_post, settings.url, body, settings.timeout_s)))
    for what, call in calls:
        try:
            fault = call()
        except (OSError, ValueError) as error:
            fault = f"it cannot be run: {getattr(error, 'strerror', None) or error}"
        if fault:
            log.warning("on_finish %s: %s. The results are not affected", what, fault)


def _run(command: Sequence[str], body: bytes, environment: Mapping[str, str], timeout_s: float) -> str:
    """Run `command` with `body` on its standard input. Returns what went wrong, or nothing.

    Raises:
        OSError, ValueError: it cannot be run.
    """
    # Files, not pipes: a process that the command leaves behind may hold its output open for ever.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(body)
        given.seek(0)
        process = subprocess.Popen(
            list(command),
            stdin=given,
            stdout=said,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,  # a Ctrl-C is for the run, and the whole group can be ended
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"it was ended after on_finish.timeout_s={timeout_s:g} s"
        said.seek(max(0, said.seek(0, os.SEEK_END) - SAID))
        text = said.read().decode(errors="replace").strip()
    if text:
        log.info("on_finish command %s said: %s", command[0], text)
    last = f" ({text.splitlines()[-1]})" if text else ""
    return f"it ended with {code}{last}" if code else ""


def _post(url: str, body: bytes, timeout_s: float) -> str:
    """POST `body` as JSON. Returns what went wrong, or nothing."""
    fault = f"there was no answer within on_finish.timeout_s={timeout_s:g} s"

    def send() -> None:
        nonlocal fault
        fault = _sent(url, body)

    # In a thread, since nothing else bounds the time that a name server or a slow answer takes.
    thread = threading.Thread(target=send, name="on_finish", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return fault


def _sent(url: str, body: bytes) -> str:
    """Send `body` and wait for the answer, however long it takes. Returns what went wrong without the URL's secrets."""
    parts = urllib.parse.urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    headers = {"Content-Type": "application/json", "User-Agent": "llama-batch-pipeline"}
    if user:  # urllib would take it for a part of the host's name
        headers["Authorization"] = "Basic " + base64.b64encode(urllib.parse.unquote(user).encode()).decode()
    try:
        request = urllib.request.Request(parts._replace(netloc=host).geturl(), body, headers, method="POST")
        urllib.request.build_opener(_NoRedirect).open(request).close()
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
    except urllib.error.URLError as error:
        return getattr(error.reason, "strerror", None) or type(error.reason).__name__
    except Exception as error:  # whatever it is, its text may hold the URL
        return type(error).__name__
    return ""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would arrive as a GET without a body, and look like success."""

    def redirect_request(self, *_: object) -> None:
        """Return nothing: the answer is an error with its code."""
