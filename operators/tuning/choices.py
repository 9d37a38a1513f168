"""Settings of the engine that a job leaves open: chosen once by a calibration, kept, and the same for a resumed run."""

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
from operators.tuning.machine_load import Ticks, ticks
from pipeline.system.memory import free_memory

CHOICE_FILE = "autotune.json"
"""In the output directory: what was chosen for this run, so that a resumed one does the same."""
CACHE_VARIABLE = "LLAMA_PIPELINE_CACHE"
_NOISY = 0.15
"""Share of all cores that other work may take during a calibration, for its outcome to hold later."""
_GRAIN = 64
"""Prompts whose lengths fall into one step of this many tokens are taken for alike."""


def tuned(
    settings: EngineSettings,
    model: Model,
    prompt_tokens: Sequence[int],
    new_tokens: int,
    output_dir: Path,
    log: logging.Logger,
    rows: int | None = None,
) -> EngineSettings:
    """`settings` with a value for all that they leave open (0 or `auto`).

    The choice of this run's earlier attempt is taken, or else that of an earlier run with the same model, machine and
    like lengths, or else there is a calibration. What is chosen and why goes to the log.

    Args:
        prompt_tokens: lengths of the first prompts.
        new_tokens: length of a completion at most.
        rows: all that are to be generated, where they are so few that this is known; None for many.
    """
    if not settings.open_keys():
        return settings
    pinned = output_dir / CHOICE_FILE
    cached = _cache_file(settings, model, prompt_tokens, new_tokens, rows)
    choice, whence = _chosen(settings, pinned, cached)
    if choice is not None:
        log.info("runtime, as in %s: %s", whence, choice.values)
    else:
        log.info("runtime: calibrating %s", ", ".join(settings.open_keys()))
        before = ticks()
        choice = Calibration(model.lease_apart, settings, prompt_tokens, new_tokens, free_memory(), rows=rows).choose()
        others = others_share(before)
        for reason in choice.reasons:
            log.info("runtime.%s", reason)
        if others > _NOISY:
            log.warning(
                "other processes took %.0f%% of the cores meanwhile: the choice is for this run alone", 100 * others
            )
        else:
            _write(cached, choice)
    _write(pinned, choice)
    return choice.apply(settings)


def tuned_before(
    settings: EngineSettings,
    model: Model,
    prompt_tokens: Sequence[int],
    new_tokens: int,
    output_dir: Path,
    rows: int | None = None,
) -> EngineSettings | None:
    """What `tuned` would give without a calibration; None if it would make one."""
    if not settings.open_keys():
        return settings
    cached = _cache_file(settings, model, prompt_tokens, new_tokens, rows)
    choice, _ = _chosen(settings, output_dir / CHOICE_FILE, cached)
    return None if choice is None else choice.apply(settings)


def others_share(before: Ticks | None) -> float:
    """Share of all cores that other processes took since `before`; 0 where the kernel does not tell."""
    after = ticks()
    return after.others_since(before) if before is not None and after is not None else 0.0


def cache_folder() -> Path:
    """Where choices are kept between runs: $LLAMA_PIPELINE_CACHE, or a folder in the user's cache."""
    given = os.environ.get(CACHE_VARIABLE)
    if given:
        return Path(given).expanduser()
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "llama-pipeline"


def _chosen(settings: EngineSettings, pinned: Path, cached: Path) -> tuple[Choice | None, str]:
    """What was chosen earlier, and when, in words."""
    for path, whence in ((pinned, "an earlier attempt of this run"), (cached, "an earlier run")):
        choice = _read(path, settings)
        if choice is not None:
            return choice, whence
    return None, ""


def _cache_file(
    settings: EngineSettings, model: Model, prompt_tokens: Sequence[int], new_tokens: int, rows: int | None
) -> Path:
    middle = sorted(prompt_tokens)[len(prompt_tokens) // 2] if len(prompt_tokens) else 0
    what = (
        asdict(settings),
        model.fingerprint(),
        middle // _GRAIN,
        new_tokens // _GRAIN,
        rows,
        platform.machine(),
        platform.processor(),
    )
    digest = hashlib.sha256(repr((what, platform.node(), usable_cores())).encode()).hexdigest()[:16]
    return cache_folder() / f"autotune-{digest}.json"


def _read(path: Path, settings: EngineSettings) -> Choice | None:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))["values"]
        Choice(values).apply(settings)
    except (OSError, ValueError, KeyError, TypeError):  # absent, damaged, or for other keys: choose anew
        return None
    return Choice(values)


def _write(path: Path, choice: Choice) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(asdict(choice), indent=1) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        logging.getLogger(__name__).warning("%s cannot be written: %s", path, error.strerror)
