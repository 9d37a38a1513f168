"""Find jobs: jobs/NAME.yaml of this project, DIR/job/NAME.yaml with --config-dir DIR, or any file by its path; and name
what YAML has made of their words."""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from pipeline import PROJECT
from pipeline.api.errors import ConfigError, did_you_mean

JOBS = PROJECT / "jobs"
SUFFIXES = (".yaml", ".yml")
ABOUT_WIDTH = 90
"""Longest description in the list of jobs, in characters."""


@dataclass(frozen=True)
class JobFile:
    """A job file. `name`: of the job. `key`: its name for Hydra, unique among all files."""

    name: str
    path: Path
    key: str

    @property
    def about(self) -> str:
        """The first sentence of the first comment line of the file."""
        for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines():
            text = line.removeprefix("#").strip()
            if line.startswith("#") and text and not text.startswith("@package"):
                return textwrap.shorten(re.split(r"(?<=\w\.) ", text)[0], ABOUT_WIDTH, placeholder=" ...")
        return ""


def list_jobs(config_dirs: Sequence[Path] = ()) -> list[JobFile]:
    """Return all jobs that have a name, sorted; a user's job hides ours of the same name."""
    jobs: dict[str, JobFile] = {}
    for folder in (*(d / "job" for d in config_dirs), JOBS):
        for path in sorted(folder.glob("*.yaml")):
            # Hydra finds a user's file too and would take a registered job of the same name for its schema.
            jobs.setdefault(path.stem, JobFile(path.stem, path, path.stem) if folder == JOBS else _job_at(path))
    return [jobs[name] for name in sorted(jobs)]


def find_job(name: str, config_dirs: Sequence[Path] = ()) -> JobFile:
    """Return the job named `name`, or the job file at `name` if that is a path."""
    if name.endswith(SUFFIXES) or "/" in name:
        return _job_at(Path(name).expanduser())
    jobs = {job.name: job for job in list_jobs(config_dirs)}
    if name not in jobs:
        if file := next((f"{name}{end}" for end in SUFFIXES if Path(f"{name}{end}").is_file()), None):
            raise ConfigError(f"there is no job '{name}'; did you mean job={file}, the file in this directory?")
        raise ConfigError(f"there is no job '{name}'{did_you_mean(name, jobs, 'job=')}\n{jobs_table(config_dirs)}")
    return jobs[name]


def jobs_table(config_dirs: Sequence[Path] = ()) -> str:
    """Return the list of jobs as text, one line per job."""
    jobs = list_jobs(config_dirs)
    width = max((len(job.name) for job in jobs), default=0)
    lines = [f"  {job.name:{width}}  {job.about}" for job in jobs]
    return "\n".join(["jobs:", *lines, "  or a file: job=path/to/file.yaml; docs/jobs.md tells more"])


def _job_at(path: Path) -> JobFile:
    if not path.is_file():
        raise ConfigError(f"there is no job file {path}; a relative path starts at the current directory, {Path.cwd()}")
    where = path.resolve()
    return JobFile(path.stem, where, f"{path.stem}-{hashlib.sha256(str(where).encode()).hexdigest()[:8]}")


def name_arguments(job: DictConfig) -> None:
    """Give an argument `on` of an operator back its name: YAML reads the word as true."""
    for group in ("nodes", "steps"):
        for _, entry in _entries(job._get_node(group)):
            op: Any = dict(_entries(entry)).get("op")
            if any(key is True for key, _ in _entries(op)):
                op["on"] = op.pop(True)


def _entries(node: Any) -> list[tuple[Any, Any]]:
    """Return the keys of a mapping and their nodes, unresolved; nothing for what is none."""
    is_mapping = isinstance(node, DictConfig) and isinstance(node._value(), dict)
    return [(key, node._get_node(key)) for key in node] if is_mapping else []
