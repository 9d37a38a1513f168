"""What a run names as committed or ended would be there after a power cut, as POSIX promises it: seen by the order in
which names are made and made durable."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from pipeline.api.errors import ExitCode
from pipeline.run_dir.state import RunState
from tests.pipeline.damage import job, run

LATER = ("config.yaml", "status.json")
"""What a repair or the next second writes again."""


def test_names_are_durable_before_the_state_speaks_of_them(tmp_path, monkeypatch):
    """New folders, shards, the manifest and merged metrics; and the content of a file before its name."""
    pending: set[Path] = set()
    synced: set[Path] = set()
    said: list[str] = []

    def of(handle: int) -> Path:
        return Path(f"/proc/self/fd/{handle}").readlink()

    def fsync(handle: int) -> None:
        path = of(handle)
        real_fsync(handle)
        synced.add(path)
        pending.difference_update({name for name in pending if name.parent == path})

    def mkdir(path: Path, *arguments: object, **more: object) -> None:
        new = not path.exists()
        real_mkdir(path, *arguments, **more)  # type: ignore[arg-type]
        if new:
            pending.add(path)

    def replace(path: Path, target: Path) -> Path:
        assert path in synced, path
        pending.add(target)
        return real_replace(path, target)

    def checked(real: Callable[..., None]) -> Callable[..., None]:
        def say(*arguments: object) -> None:
            assert {path for path in pending if path.name not in LATER} == set()
            said.append(real.__name__)
            real(*arguments)

        return say

    real_fsync, real_mkdir, real_replace = os.fsync, Path.mkdir, Path.replace
    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "mkdir", mkdir)
    monkeypatch.setattr(Path, "replace", replace)
    for name in ("commit", "end_attempt"):
        monkeypatch.setattr(RunState, name, checked(getattr(RunState, name)))
    assert run(job(tmp_path / "new" / "out")) is ExitCode.DONE
    assert said == ["commit"] * 5 + ["end_attempt"]
