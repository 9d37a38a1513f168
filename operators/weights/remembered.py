"""Figures of types of weights that earlier runs measured: the best for jobs like this one, and the speed of each."""

from __future__ import annotations

import hashlib
import json
import logging
import platform
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from operators.engine.backend.loading import inspect_model
from operators.settings import ModelSettings
from operators.settings.checks import usable_cores
from operators.settings.model import AS_IS
from operators.settings.runtime import EngineSettings
from operators.weights.candidates import fitting
from operators.weights.speed import Lengths, Speed
from pipeline.api.errors import PipelineError
from pipeline.system.file_cache import cache_folder
from pipeline.system.machine import machine

WORTH_SAYING = 1.3
"""Times as fast as the job's own type another must be for a run to mention it."""
_GRAIN = 64
log = logging.getLogger(__name__)


@dataclass
class Remembered:
    """What is known of the types of a model's weights, on this machine with this build of llama.cpp.

    Args:
        model: with its weights as they are.
        settings: of the engine, without open keys.
        new_tokens: of a completion at most.
    """

    model: ModelSettings
    settings: EngineSettings
    new_tokens: int

    def choice(self) -> tuple[str, str] | None:
        """Return the type that was best for jobs with this file, this engine and about this length of completions, and
        why; `as_is` if that cannot be had any more, None if nothing is known."""
        found = _read(self._choices)
        best = found.get("best")
        if best is None:
            return None
        lost = None
        if best != AS_IS:
            try:
                inspect_model(replace(self.model, weights=best))  # makes it again if it has left the cache
                fits = best in fitting(self.model, self.settings, beside=False)
                lost = None if fits else "there is too little memory for it"
            except PipelineError as error:
                lost = str(error)
        if lost is not None:
            return AS_IS, f"an earlier run found {best} to be faster, but {lost}"
        return best, f"{found['why']}; measured by an earlier run"

    def keep_choice(self, best: str, why: str) -> None:
        _keep(self._choices, best=best, why=why)

    def keep_speed(self, name: str, speed: Speed) -> None:
        """Remember the speed of a type, for all jobs with this file, slots and threads."""
        _keep(self._speeds, **{name: [speed.prompt_token_s, speed.token_s]})

    def mention(self, weights: str | None, prompts: Sequence[int]) -> str | None:
        """Return a line if a type is known to be much faster than `weights`, that of the job (None: as is).

        Args:
            prompts: tokens of prompts of the job.
        """
        if not len(prompts):
            return None
        lengths = Lengths.of(prompts, [self.new_tokens])
        seconds = {name: Speed(*each).of_rows(1, lengths) for name, each in _read(self._speeds).items()}
        own = seconds.get(weights or AS_IS)
        best = min(seconds, key=lambda name: seconds[name], default=None)
        if own is None or best is None or own < WORTH_SAYING * seconds[best]:
            return None
        return (
            f"model.weights={best} was measured to be {own / seconds[best]:.1f} times as fast here;"
            " `python -m pipeline weights` with the same settings shows what it costs in quality"
        )

    @cached_property
    def _choices(self) -> Path:
        return _file("weights", self._here, asdict(self.settings), self.new_tokens // _GRAIN)

    @cached_property
    def _speeds(self) -> Path:
        return _file("weights-speeds", self._here, self.settings.slots, self.settings.threads)

    @cached_property
    def _here(self) -> tuple[object, ...]:
        facts = inspect_model(self.model)
        cores = (machine()["cpu"], platform.node(), usable_cores())
        return (facts.fingerprint, facts.kernels, self.model.gpu_layers, *cores)


def _file(kind: str, *key: object) -> Path:
    return cache_folder() / f"{kind}-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}.json"


def _read(path: Path) -> dict[str, Any]:
    """Return what was kept in a file; nothing if there is none, or it is damaged."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _keep(path: Path, **found: object) -> None:
    """Add to what is kept in a file. Without effect where the cache cannot be written."""
    known = _read(path) | found
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{time.time_ns()}.tmp")
        temporary.write_text(json.dumps(known, indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error.strerror)
