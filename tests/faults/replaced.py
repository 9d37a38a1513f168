"""Runs that replace the results of another one, for processes that may die."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pipeline
from operators.engine.backend import fake
from pipeline.api.protocols import Runtime
from pipeline.api.runtime import Resources
from pipeline.runs.run import run_job
from tests.faults import toy
from tests.pipeline.job_ops import Square

DIES_AT_OPEN, DIES_IN_ROWS = "TESTS_DIE_AT_OPEN", "TESTS_DIE_IN_ROWS"
ROWS = 12


def _may_die(variable: str = DIES_AT_OPEN) -> None:
    if os.environ.get(variable):
        os.kill(os.getpid(), signal.SIGKILL)


class DyingSquare(Square):
    """Square, whose process may be killed while it is opened."""

    def open(self, runtime: Runtime) -> None:
        _may_die()
        super().open(runtime)


def load(settings: Any) -> Any:
    """Load the fake model, or be killed."""
    _may_die()
    return fake.load(settings)


inspect = fake.inspect


def job(directory: str, which: str, *overwrite: str) -> int:
    """Run, resume or overwrite the job `which`, old or new: all their shards differ."""
    settings = toy.settings_of(directory, overwrite=bool(overwrite))
    settings.nodes["numbers"].op |= {"chunk_rows": 150}
    settings.nodes["square"].op |= {"_target_": f"{__name__}.DyingSquare", "add": int(which == "new")}
    return run_job(settings, Resources())


def rows(directory: str, which: str, *overwrite: str) -> int:
    """The same from Python, with rows of its own."""

    def given() -> Iterator[str]:
        for row in range(ROWS):
            yield f"{which} {row}"
        _may_die(DIES_IN_ROWS)

    keys = {"model.loader": f"{__name__}:load", "chunk_rows": 6, "sampling.max_tokens": 2}
    groups: dict[str, Any] = {"model": "fake", "progress": "none", "report": False, "overwrite": bool(overwrite)}
    return int(pipeline.run("generate", keys, rows=given(), directory=directory, **groups).outcome or 0)
