"""A job whose model is a server, for the tests of endpoints."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pipeline import run
from tests.operators.endpoint.fault_server import FaultServer

ROWS = 24


def asked(server: FaultServer | str, directory: Path, rows: int = ROWS, **settings):
    job = settings.pop("job", "generate")
    url = server if isinstance(server, str) else server.url
    known = {"model.url": url, "model.retries": 2, "model.timeout_s": 5, "model.patience_s": 20, "max_error_rate": 1.0}
    return run(
        job,
        known | {key.replace("__", "."): value for key, value in settings.items()},
        rows=[{"id": i, "prompt": f"the prompt of row {i}"} for i in range(rows)],
        model="endpoint",
        directory=directory,
        progress="none",
        report=False,
    )


def texts(result) -> dict[int, str]:
    found = result.rows().select("row", "completion").collect()
    return dict(zip(found["row"], found["completion"], strict=True))


PROGRAM = """
import sys
from pathlib import Path
from tests.operators.endpoint.asking import asked
asked(sys.argv[1], Path(sys.argv[2]), 60, model__concurrency=4, chunk_rows=20)
"""


def started(server: FaultServer, directory: Path, **environment: str) -> subprocess.Popen[bytes]:
    """Start a process that asks for 60 rows, four at a time."""
    command = [sys.executable, "-c", PROGRAM, server.url, str(directory)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, env=os.environ | environment)
