"""Compose every job of jobs/ and every option of conf/, and build their operators, without reading data or models.

    python -m tools.check_conf

Part of `make check`: a key that a settings class has lost, or an argument that an operator no longer takes, is found
in the files that name it before any test runs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

from pipeline.api.errors import ConfigError
from pipeline.config.build import build_node
from pipeline.config.compose import composed
from pipeline.config.jobs import find_job, list_jobs
from pipeline.config.keys import CONF

JOB = "generate"
"""The job in which each option is tried; a flow brings its own graph."""
NEEDS = {"endpoint": {"model.url": "http://127.0.0.1:8000/v1"}}
"""What an option does not work without."""


def options() -> Iterator[tuple[str, str]]:
    """Yield the group and the name of each option in conf/."""
    for path in sorted(CONF.glob("*/*.yaml")):
        yield path.parent.name, path.stem


def check(job: str, chosen: Mapping[str, str]) -> list[str]:
    """Return what is wrong with `job` where these options are chosen, a line each."""
    values = {key: value for name in chosen.values() for key, value in NEEDS.get(name, {}).items()}
    named = " ".join([f"job={job}", *(f"{group}={name}" for group, name in chosen.items())])
    try:
        settings = composed(find_job(job), chosen, values)
    except ConfigError as error:
        return [f"{named}: {error}"]
    wrong = []
    for name, node in settings.nodes.items():
        try:
            build_node(name, node)
        except ConfigError as error:
            wrong.append(f"{named}: {error}")
    return wrong


def main() -> int:
    """Check all of them; return the exit code."""
    jobs = [job.name for job in list_jobs()]
    wrong = [line for job in jobs for line in check(job, {})]
    tried = list(options())
    wrong += [line for group, name in tried for line in check(JOB, {group: name})]
    print("\n".join(wrong) or f"{len(jobs)} jobs and {len(tried)} options of conf/ compose")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
