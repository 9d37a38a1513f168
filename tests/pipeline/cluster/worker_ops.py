"""What rows can do to a worker: end it, hang it, raise; and a model that says when it is loaded and when it decodes."""

from __future__ import annotations

import logging
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from operators.engine.backend import fake
from operators.engine.backend.batch import BatchBuffer
from operators.engine.backend.loading import ModelFacts
from operators.settings import ModelSettings

log = logging.getLogger(__name__)


def poison(row: dict[str, Any]) -> dict[str, Any]:
    """End the process on a row that says so."""
    if "hare" in row["prompt"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return {}


def fails(row: dict[str, Any]) -> dict[str, Any]:
    """Raise on a row."""
    if row["row"] == 17:
        raise ValueError("no such luck")
    return {}


def hangs_once(row: dict[str, Any], flag: str) -> dict[str, Any]:
    """Hang on a row, in the first worker that has it."""
    if row["row"] == 17:
        try:
            os.mkdir(flag)  # noqa: PTH102
        except FileExistsError:
            return {}
        time.sleep(600)
    return {}


def slow(row: dict[str, Any]) -> dict[str, Any]:
    """Take a while, and say so once, by a logger of its own."""
    if row["row"] == 3:
        log.info("row %d takes a while", row["row"])
    time.sleep(0.05)
    return {}


def load(settings: ModelSettings) -> fake.FakeModel:
    """Load the fake model in `load_s` seconds; each call takes 0.1 s. Makes files `load` and `decode` in `folder`."""
    folder = Path(settings.options["folder"])

    def step(batch: BatchBuffer) -> int:
        (folder / "decode").touch()
        time.sleep(0.1)
        return 0

    (folder / "load").touch()
    time.sleep(settings.options["load_s"])
    return fake.FakeModel(step)


def inspect(settings: ModelSettings) -> ModelFacts:
    return fake.inspect(replace(settings, options={}))
