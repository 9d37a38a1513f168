"""on_finish: notify a command and a URL that an attempt has ended. Their failures do not change the outcome."""

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
"""Characters of the command's output that are logged, from its end."""
_IN_ENVIRONMENT = ("job", "state", "exit_code", "directory", "run_id", "attempt")
log = logging.getLogger(__name__)


def _summary_of(outcome: Outcome) -> dict[str, Any]:
    """Return the summary as JSON values. Counts are of the run; tokens and wall_s of the attempt."""
    error = outcome.error
    return {
        "job": outcome.job,
        "state": outcome.status.value,
        "exit_code": int(outcome.exit_code),
        "directory": str(outcome.directory),
        "run_id": outcome.run_id,
        "attempt": outcome.attempt,
        "rows": outcome.rows,
        "data_rows": outcome.data_rows,
        "rejects": outcome.rejects.listed(),
        "tokens_in": outcome.tokens_in,
        "tokens_out": outcome.tokens_out,
        "wall_s": round(outcome.wall_s, 3),
        "error": None if error is None else str(error) or type(error).__name__,
    }


def tell(settings: HookSettings, outcome: Outcome) -> None:
    """Run the command, then POST to the URL. Failures are logged as warnings."""
    summary = _summary_of(outcome)
    body = (json.dumps(summary, ensure_ascii=False) + "\n").encode()  # a line, so that `cat >> FILE` makes JSON lines
    environment = {**os.environ, **{f"PIPELINE_{key.upper()}": str(summary[key]) for key in _IN_ENVIRONMENT}}
    calls: dict[str, Callable[[], str]] = {}
    if settings.command:
        calls[f"command {settings.command[0]}"] = partial(_run, settings.command, body, environment, settings.timeout_s)
    if settings.url is not None:
        calls[f"url {shown_url(settings.url)}"] = partial(_post, settings.url, body, settings.timeout_s)
    for what, call in calls.items():
        try:
            fault = call()
        except (OSError, ValueError) as error:
            fault = f"it cannot be run: {getattr(error, 'strerror', None) or error}"
        if fault:
            log.warning("on_finish %s: %s. The results are not affected", what, fault)


def _run(command: Sequence[str], body: bytes, environment: Mapping[str, str], timeout_s: float) -> str:
    """Run `command` with `body` on its standard input. Returns the failure as text, empty if there is none.

    Raises:
        OSError, ValueError: the command cannot be run.
    """
    # Files, not pipes: a background process of the command may keep a pipe open for ever.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write(body)
        given.seek(0)
        process = subprocess.Popen(
            list(command),
            stdin=given,
            stdout=said,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,  # it gets no Ctrl-C, and its whole process group can be killed
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
    """POST `body` as JSON. Returns the failure as text, empty if there is none."""
    faults: list[str] = []
    # In a thread, since urllib's timeout does not bound name resolution or a slow answer.
    thread = threading.Thread(target=lambda: faults.append(_sent(url, body)), name="on_finish", daemon=True)
    thread.start()
    thread.join(timeout_s)
    return faults[0] if faults else f"there was no answer within on_finish.timeout_s={timeout_s:g} s"


def _sent(url: str, body: bytes) -> str:
    """POST `body` without a time limit. Returns the failure without the URL's secrets, empty if there is none."""
    parts = urllib.parse.urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    headers = {"Content-Type": "application/json", "User-Agent": "llama-batch-pipeline"}
    if user:  # urllib does not support credentials in a URL
        headers["Authorization"] = "Basic " + base64.b64encode(urllib.parse.unquote(user).encode()).decode()
    try:
        request = urllib.request.Request(parts._replace(netloc=host).geturl(), body, headers, method="POST")
        urllib.request.build_opener(_NoRedirect).open(request).close()
    except urllib.error.HTTPError as error:
        return f"HTTP {error.code}"
    except urllib.error.URLError as error:
        return getattr(error.reason, "strerror", None) or type(error.reason).__name__
    except Exception as error:  # without its text, which may hold the URL
        return type(error).__name__
    return ""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: urllib would turn the POST into a GET without a body, and it would look like a success."""

    def redirect_request(self, *_: object) -> None:
        """Return None, so that urllib raises the redirect as an HTTPError."""
