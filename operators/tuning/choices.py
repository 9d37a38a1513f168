"""The choice of open engine settings by the first rows: made once by a calibration, cached, and repeated by a resumed
run."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from operators.engine.backend.interface import Model
from operators.settings.checks import usable_cores
from operators.settings.runtime import EngineSettings
from operators.tuning.calibration import Calibration, Choice
from pipeline.api.load import load_of
from pipeline.api.protocols import Inbox
from pipeline.api.records import Batch, Item
from pipeline.system.file_cache import cache_folder
from pipeline.system.machine import free_memory

CHOICE_FILE = "autotune.json"
"""File in the output directory with this run's choice, which a resumed run repeats."""
_GRAIN = 64
"""Runs share a cached choice if their lengths are equal when rounded down to multiples of this many tokens."""
_PATIENCE_S = 3.0
"""Seconds to wait for more rows after the first: they may come from a slow model."""


@dataclass
class Tuning:
    """Finds values for the open keys (0 or `auto`) of `settings`.

    Args:
        prompt_tokens: lengths of the first prompts.
        new_tokens: length of a completion at most.
        rows: all that are to be generated, where they are so few that this is known; None for many.
        draft: see DecoderShape.
    """

    settings: EngineSettings
    model: Model
    prompt_tokens: Sequence[int]
    new_tokens: int
    output_dir: Path
    rows: int | None = None
    draft: int = 0

    def before(self) -> EngineSettings | None:
        """Return the settings that were chosen before: by an earlier attempt of this run, or else by an earlier run
        with the same model, machine and similar lengths."""
        if not self.settings.open_keys():
            return self.settings
        choice = self._kept()
        return None if choice is None else choice.apply(self.settings)

    def choose(self, log: logging.Logger) -> EngineSettings:
        """Return the settings that were chosen before, or else calibrate. The choice and its reasons are logged."""
        if not self.settings.open_keys():
            return self.settings
        if (choice := self._kept()) is not None:
            log.info("runtime, as in an earlier attempt or run: %s", choice.values)
        else:
            log.info("runtime: calibrating %s", ", ".join(self.settings.open_keys()))
            lease, lengths = self.model.lease_apart, (self.prompt_tokens, self.new_tokens)
            free_bytes = free_memory()
            choice = Calibration(lease, self.settings, *lengths, free_bytes, rows=self.rows, draft=self.draft).choose()
            for reason in choice.reasons:
                log.info("runtime.%s", reason)
            _write(self._cache_file(), choice, log)
        _write(self.output_dir / CHOICE_FILE, choice, log)
        return choice.apply(self.settings)

    def _kept(self) -> Choice | None:
        return self._read(self.output_dir / CHOICE_FILE) or self._read(self._cache_file())

    def _cache_file(self) -> Path:
        """Return the cache file for runs like this one on this machine, in $LLAMA_PIPELINE_CACHE or a folder of the
        user's cache."""
        middle = sorted(self.prompt_tokens)[len(self.prompt_tokens) // 2] if len(self.prompt_tokens) else 0
        lengths = (middle // _GRAIN, self.new_tokens // _GRAIN, self.rows, *((self.draft,) if self.draft else ()))
        run = (asdict(self.settings), self.model.fingerprint(), *lengths)
        machine = (platform.machine(), platform.processor(), platform.node(), usable_cores())
        computes = (self.model.kernels, self.model.device)
        digest = hashlib.sha256(repr((run, machine, computes)).encode()).hexdigest()[:16]
        return cache_folder() / f"autotune-{digest}.json"

    def _read(self, path: Path) -> Choice | None:
        try:
            choice = Choice(**json.loads(path.read_text(encoding="utf-8")))
            choice.apply(self.settings)
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


class LookAhead:
    """A queue before an inbox, which lets a node look at its first items before it begins."""

    def __init__(self) -> None:
        self._items: deque[Item] = deque()

    def __len__(self) -> int:
        return len(self._items)

    def poll(self, inbox: Inbox) -> Item | None:
        """Return the next item; None if there is none yet."""
        return self._items.popleft() if self._items else inbox.poll()

    def batches(self) -> list[Batch]:
        """Return the rows that were looked at."""
        return [item for item in self._items if isinstance(item, Batch)]

    def gather(self, inbox: Inbox, enough: int) -> int | None:
        """Take items until there are more than `enough` rows, of which one with many bytes counts as several, or no
        more come; return their number if these are all that come, else None. Waits for the first rows without limit,
        and a little for more."""
        rows, load, until = 0, 0, None
        while load <= enough:
            item = inbox.poll()
            if item is not None:
                self._items.append(item)
                rows += item.num_rows if isinstance(item, Batch) else 0
                load += load_of(item)
                until = time.monotonic() + _PATIENCE_S if rows and until is None else until
            elif inbox.exhausted:
                return rows
            elif until is None:
                inbox.wait()
            elif (left := until - time.monotonic()) > 0:
                inbox.wait(timeout_s=left)
            else:
                break
        return None
