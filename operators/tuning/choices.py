"""The choice of open engine settings: made once by a calibration, cached, and repeated by a resumed run."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from operators.engine.backend.interface import Model
from operators.settings.checks import usable_cores
from operators.settings.runtime import EngineSettings
from operators.tuning.calibration import Calibration, Choice
from operators.tuning.machine_load import OtherWork
from pipeline.system.machine import free_memory

CHOICE_FILE = "autotune.json"
"""File in the output directory with this run's choice, which a resumed run repeats."""
CACHE_VARIABLE = "LLAMA_PIPELINE_CACHE"
_NOISY = 0.15
"""Share of all cores that other processes may use during a calibration whose result is cached."""
_GRAIN = 64
"""Runs share a cached choice if their lengths are equal when rounded down to multiples of this many tokens."""


def tuned(
    settings: EngineSettings,
    model: Model,
    prompt_tokens: Sequence[int],
    new_tokens: int,
    output_dir: Path,
    log: logging.Logger,
    rows: int | None = None,
) -> EngineSettings:
    """Return `settings` with values for all open keys (0 or `auto`).

    It takes the choice of this run's earlier attempt, or else of an earlier run with the same model, machine and
    similar lengths, or else calibrates. The choice and its reasons are logged.

    Args:
        prompt_tokens: lengths of the first prompts.
        new_tokens: length of a completion at most.
        rows: all that are to be generated, where they are so few that this is known; None for many.
    """
    if not settings.open_keys():
        return settings
    pinned, cached = output_dir / CHOICE_FILE, _cache_file(settings, model, prompt_tokens, new_tokens, rows)
    if (choice := _read(pinned, settings)) is not None:
        log.info("runtime, as in an earlier attempt of this run: %s", choice.values)
    elif (choice := _read(cached, settings)) is not None:
        log.info("runtime, as in an earlier run: %s", choice.values)
    else:
        log.info("runtime: calibrating %s", ", ".join(settings.open_keys()))
        others = OtherWork()
        choice = Calibration(model.lease_apart, settings, prompt_tokens, new_tokens, free_memory(), rows=rows).choose()
        for reason in choice.reasons:
            log.info("runtime.%s", reason)
        if (share := others.share()) > _NOISY:
            log.warning(
                "other processes took %.0f%% of the cores meanwhile: the choice is for this run alone", 100 * share
            )
        else:
            _write(cached, choice, log)
    _write(pinned, choice, log)
    return choice.apply(settings)


def tuned_before(
    settings: EngineSettings,
    model: Model,
    prompt_tokens: Sequence[int],
    new_tokens: int,
    output_dir: Path,
    rows: int | None = None,
) -> EngineSettings | None:
    """Return the settings that `tuned` would find without a calibration; None if there are none."""
    if not settings.open_keys():
        return settings
    cached = _cache_file(settings, model, prompt_tokens, new_tokens, rows)
    choice = _read(output_dir / CHOICE_FILE, settings) or _read(cached, settings)
    return None if choice is None else choice.apply(settings)


def _cache_file(
    settings: EngineSettings, model: Model, prompt_tokens: Sequence[int], new_tokens: int, rows: int | None
) -> Path:
    """Return the cache file for runs like this one on this machine, in $LLAMA_PIPELINE_CACHE or a folder of the user's
    cache."""
    middle = sorted(prompt_tokens)[len(prompt_tokens) // 2] if len(prompt_tokens) else 0
    run = (asdict(settings), model.fingerprint(), middle // _GRAIN, new_tokens // _GRAIN, rows)
    machine = (platform.machine(), platform.processor(), platform.node(), usable_cores())
    digest = hashlib.sha256(repr((run, machine)).encode()).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = os.environ.get(CACHE_VARIABLE) or f"{home}/llama-pipeline"
    return Path(folder).expanduser() / f"autotune-{digest}.json"


def _read(path: Path, settings: EngineSettings) -> Choice | None:
    try:
        choice = Choice(json.loads(path.read_text(encoding="utf-8"))["values"])
        choice.apply(settings)
    except (OSError, ValueError, KeyError, TypeError):  # absent, damaged, or for other keys: choose anew
        return None
    return choice


def _write(path: Path, choice: Choice, log: logging.Logger) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")  # runs at the same time share the cache
        temporary.write_text(json.dumps(asdict(choice), indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        log.warning("%s cannot be written: %s", path, error.strerror)
