"""What a job of these tests names as its model loader and decode strategy: the real ones, watched.

FAULTS_AT=decode:5=TERM    as PIPELINE_FAILPOINT, for the points inspect, load, prefill and decode
FAULTS_TOKENS=PATH         tokens drawn are added to the int64 in the file PATH, or in a new file of the folder PATH,
                           since several processes cannot share one; it outlives the process
"""

from __future__ import annotations

import functools
import os
import signal
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

import operators.llama.model as llama
from operators.engine.backend.interface import Logits, Model
from operators.engine.backend.loading import ModelFacts
from operators.engine.scheduler.step_batch import StepBatch
from operators.engine.sequence import Sequence
from operators.engine.strategies.autoregressive import Autoregressive
from operators.settings import ModelSettings
from pipeline.cli.main import main
from pipeline.system.failpoints import Trigger

AT, TOKENS = "FAULTS_AT", "FAULTS_TOKENS"
WATCHED = (f"model.loader={__name__}:load", f"decode.strategy={__name__}:Watched")
"""The settings that name what is here."""


def command_line(*arguments: str) -> int:
    return main(arguments)


def command_line_in_a_lock(*arguments: str) -> int:
    """A SIGTERM comes while the main thread holds the lock that the begin of every thread needs."""
    join = threading.Thread.join
    once = iter([Trigger("node runs", 1, (signal.SIGTERM,))])

    def slow(thread: threading.Thread, timeout: float | None = None) -> None:
        if thread.name.startswith("node-"):
            for trigger in once:
                with threading._active_limbo_lock:  # type: ignore[attr-defined]
                    trigger.reached("node runs")
        join(thread, timeout)

    threading.Thread.join = slow  # type: ignore[method-assign, assignment]
    return main(arguments)


def load(settings: ModelSettings) -> Model:
    reached("load")
    return llama.load(settings)


def inspect(settings: ModelSettings) -> ModelFacts:
    reached("inspect")
    return llama.inspect(settings)


class Watched(Autoregressive):
    """One token a row and step; says what it computes, and counts what it draws."""

    def fill(self, batch: StepBatch) -> None:
        reached("prefill" if batch.chunks else "decode")
        super().fill(batch)

    def advance(self, batch: StepBatch, logits: Logits) -> None:
        before = tokens_of(batch.sequences)
        super().advance(batch, logits)
        count(tokens_of(batch.sequences) - before)


def reached(point: str) -> None:
    if (trigger := _trigger()) is not None:
        trigger.reached(point)


def tokens_of(rows: Iterable[Sequence]) -> int:
    return sum(len(row.tokens) for row in rows)


def count(tokens: int) -> None:
    if (counter := _counter()) is not None:
        counter[0] += tokens


def new_counter(path: Path) -> npt.NDArray[np.int64]:
    """The file for FAULTS_TOKENS, at 0."""
    return np.memmap(path, np.int64, "w+", shape=(1,))


@functools.cache
def _trigger() -> Trigger | None:
    text = os.environ.get(AT)
    return Trigger.parse(text) if text else None


@functools.cache
def _counter() -> npt.NDArray[np.int64] | None:
    path = os.environ.get(TOKENS)
    if path and Path(path).is_dir():
        return new_counter(Path(tempfile.mkstemp(dir=path)[1]))
    return np.memmap(path, np.int64, "r+", shape=(1,)) if path else None
