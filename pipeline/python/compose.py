"""Settings of a job from Python values."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.api.groups import DataFields
from pipeline.config.compose import composed
from pipeline.config.jobs import find_job
from pipeline.python.job import Job, options_and_values, plain_value
from pipeline.python.rows import write_rows
from pipeline.run_dir.names import INPUT
from pipeline.run_dir.replacing import Replacing
from pipeline.run_dir.state import STATE_FILE
from pipeline.settings import JobSettings


def settings_from(
    job: str | Path | Job, given: Mapping[str, Any], fallback: Callable[[str], str], **values: Any
) -> JobSettings:
    """Return the settings of a job.

    Args:
        job: its name, the path of its file, or a job that was built in Python.
        given: by key: `{"sampling.max_tokens": 8}` or `{"sampling": {"max_tokens": 8}}`. The value of a config group
            may be the name of an option, and that of `model` the path of a GGUF file.
        fallback: makes a directory for the results of the job of this name, if neither `given` nor the job name one.
        values: more of them, by dotted key.

    Raises:
        ConfigError: the job or a setting cannot work.
    """
    if isinstance(job, Job):
        with tempfile.TemporaryDirectory(prefix="job-") as folder:
            path = Path(folder) / f"{job.name}.yaml"
            path.write_text(job.to_yaml(), encoding="utf-8")
            return settings_from(path, given, fallback, **values)
    options, named = options_and_values(given)
    more = {key: plain_value(value) for key, value in {**named, **values}.items()}
    settings = composed(find_job(str(job)), options, more)
    if settings.output_dir is None:
        settings = dataclasses.replace(settings, output_dir=fallback(settings.name))
    return settings


def with_rows(
    job: str | Path | Job,
    given: Mapping[str, Any],
    settings: JobSettings,
    rows: Any,
    folder: Path,
    results: Replacing | None = None,
) -> JobSettings:
    """Write `rows` into a file in `folder`, as write_rows does, and return the settings of the job with them as its
    input. `settings`: what settings_from has returned for `job` and `given`."""
    path = folder / INPUT
    named = [name for node in settings.nodes.values() for name in node.op.get("json_columns", ())]
    goes_on = not settings.overwrite and (folder / STATE_FILE).is_file()
    if goes_on and settings.append:  # what was taken of the rows before is in the state
        results = None
    keep = goes_on and not settings.append
    data: DataFields | None = settings.data
    write_rows(rows, path, results, keep=keep, as_json={*named, *(data.free_form if data is not None else ())})
    of_input = {"data.path": path, "data.format": "parquet", "data.dataset": None}
    return settings_from(job, given, str, output_dir=settings.output_dir, **of_input)
