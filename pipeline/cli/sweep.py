"""The last lines of a sweep: what became of each job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.api.errors import ExitCode


@dataclass(frozen=True)
class SweptJob:
    """A job of a sweep.

    Args:
        overrides: as they were given, with one value each.
        code: how it ended; None where an interrupt came before it.
        directory: where its results are; None where its settings cannot work.
    """

    overrides: tuple[str, ...]
    code: ExitCode | None
    directory: Path | None = None


def sweep_lines(jobs: Sequence[SweptJob]) -> list[str]:
    """A line a job: exit code, the settings in which it differs from the others, and where its results are."""
    common = set(jobs[0].overrides).intersection(*(job.overrides for job in jobs))
    own = [" ".join(o for o in job.overrides if o not in common) for job in jobs]
    width = max(len(text) for text in own)
    lines = [
        f"  {'-' if job.code is None else int(job.code)}  {text:{width}}  {_where(job)}"
        for job, text in zip(jobs, own, strict=True)
    ]
    return [f"sweep: {len(jobs)} jobs; exit code, settings, results", *lines]


def _where(job: SweptJob) -> str:
    if job.code is None:
        return "not begun; the same command goes on"
    return "not run: its settings cannot work, see above" if job.directory is None else str(job.directory)
