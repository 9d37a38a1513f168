"""on_finish: who is told when an attempt has ended, a command or a URL. It never changes how the attempt ended."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from pipeline.monitor.summary import Outcome
from pipeline.settings import HookSettings
from pipeline.system.redaction import shown_url

SAID = 2000
"""Characters of a command's output that go into run.log."""
WEBHOOK = Path(__file__).with_name("post_webhook.py")
URL_VARIABLE = "PIPELINE_WEBHOOK_URL"
log = logging.getLogger(__name__)


def summary_of(outcome: Outcome) -> dict[str, Any]:
    """What is told: plain values, counts of the whole run but for tokens and wall_s."""
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
    """Run the command and call the URL, one after the other. What goes wrong with them is a warning."""
    summary = summary_of(outcome)
    environment = {**os.environ, **{f"PIPELINE_{key.upper()}": str(summary[key]) for key in _IN_ENVIRONMENT}}
    calls = []
    if settings.command:
        calls.append((f"command {settings.command[0]}", settings.command, environment))
    if settings.url is not None:
        # In a process of its own, since nothing else bounds the time that a name server or a slow answer takes. The URL
        # is not among its arguments, where everybody could see it.
        caller = [sys.executable, "-I", str(WEBHOOK)]
        calls.append((f"url {shown_url(settings.url)}", caller, {**environment, URL_VARIABLE: settings.url}))
    for what, command, variables in calls:
        try:
            fault = _run(what, command, summary, variables, settings.timeout_s)
        except (OSError, ValueError) as error:
            fault = f"it cannot be run: {getattr(error, 'strerror', None) or error}"
        if fault:
            log.warning("on_finish %s: %s. The results are not affected", what, fault)


_IN_ENVIRONMENT = ("job", "state", "exit_code", "directory", "run_id", "attempt")


def _run(
    what: str, command: Sequence[str], summary: Mapping[str, Any], environment: Mapping[str, str], timeout_s: float
) -> str:
    """Run one command with the summary on its standard input. Returns what went wrong, or nothing."""
    # Files, not pipes: a process that the command leaves behind may hold its output open for ever.
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as said:
        given.write((json.dumps(summary, ensure_ascii=False) + "\n").encode())  # appended to a file, JSON lines
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
        text = _said(said)
    if text:
        log.info("on_finish %s said: %s", what, text)
    last = f" ({text.splitlines()[-1]})" if text else ""
    return f"it ended with {code}{last}" if code else ""


def _said(file: IO[bytes]) -> str:
    """The end of what a command wrote."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - SAID))
    return file.read().decode(errors="replace").strip()
