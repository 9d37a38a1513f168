"""on_finish: notify a command that an attempt has ended. Its failure does not change the outcome."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from pipeline.api.errors import ExitCode
from pipeline.api.user_code import or_else
from pipeline.monitor.recorder import write_without_attempt
from pipeline.monitor.summary import Outcome
from pipeline.run_dir.lock import OccupiedError
from pipeline.run_dir.state import RunStatus
from pipeline.settings import HookSettings, JobSettings
from pipeline.system.deadlines import GRACE_S, within
from pipeline.system.known_secrets import hidden

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
        "warnings": outcome.warnings,
        "tokens_in": outcome.tokens_in,
        "tokens_out": outcome.tokens_out,
        "wall_s": round(outcome.wall_s, 3),
        "error": None if error is None else str(error) or type(error).__name__,
    }


def tell(settings: JobSettings, outcome: Outcome) -> None:
    """Run the command, if there is one, in its time. A failure is logged as a warning."""
    hook = settings.on_finish
    if hook.command:
        limit_s = max(settings.ending_s, hook.timeout_s + GRACE_S)
        notify = partial(_tell, hook, outcome)
        or_else("on_finish is left behind", partial(within, limit_s, "on_finish", notify), None)


def _tell(settings: HookSettings, outcome: Outcome) -> None:
    summary = _summary_of(outcome)
    text = hidden(json.dumps(summary, ensure_ascii=False))
    body = f"{text}\n".encode()  # a line, so that `cat >> FILE` makes JSON lines
    environment = {**os.environ, **{f"PIPELINE_{key.upper()}": str(summary[key]) for key in _IN_ENVIRONMENT}}
    try:
        fault = _run(settings.command, body, environment, settings.timeout_s)
    except (OSError, ValueError) as error:
        fault = f"it cannot be run: {getattr(error, 'strerror', None) or error}"
    if fault:
        log.warning("on_finish command %s: %s. The results are not affected", settings.command[0], fault)


def tell_refusal(settings: JobSettings, error: BaseException) -> None:
    """Tell the command and the Prometheus file that a run was refused, or failed before its attempt was recorded. While
    another run works in the directory the file is that one's."""
    outcome = Outcome.refused(settings, error)
    if settings.prometheus_file is not None and not isinstance(error, OccupiedError):
        write_without_attempt(Path(settings.prometheus_file), outcome)
    tell(settings, outcome)


def tell_finished(settings: JobSettings, code: ExitCode) -> None:
    """Tell the Prometheus file that there was nothing to do: who watches it is to see that the run was started."""
    if settings.prometheus_file is not None:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        outcome = Outcome(
            job=settings.name,
            status=RunStatus.DONE,
            exit_code=code,
            started_at=now,
            directory=settings.directory.absolute(),
            max_error_rate=settings.max_error_rate,
        )
        write_without_attempt(Path(settings.prometheus_file), outcome)


def _run(command: Sequence[str], body: bytes, environment: Mapping[str, str], timeout_s: float) -> str:
    """Run `command` with `body` on its standard input. Returns the failure as text, empty if there is none. Raises
    OSError, ValueError if the command cannot be run."""
    # Files, not pipes: a background process of the command may keep a pipe open for ever.
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as output:
        stdin.write(body)
        stdin.seek(0)
        process = subprocess.Popen(
            list(command),
            stdin=stdin,
            stdout=output,
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
        output.seek(max(0, output.seek(0, os.SEEK_END) - SAID))
        text = output.read().decode(errors="replace").strip()
    if text:
        log.info("on_finish command %s said: %s", command[0], text)
    last = f" ({text.splitlines()[-1]})" if text else ""
    return f"it ended with {code}{last}" if code else ""
