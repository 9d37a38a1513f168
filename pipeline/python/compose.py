"""Settings of a job from Python values."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipeline.config.compose import composed
from pipeline.config.jobs import find_job
from pipeline.python.job import Job
from pipeline.python.rows import write_rows
from pipeline.python.values import options_and_values, plain_value
from pipeline.run_dir.names import INPUT
from pipeline.run_dir.replacing import Replacing
from pipeline.run_dir.state import STATE_FILE
from pipeline.settings import JobSettings


def settings_from(
    job: str | Path | Job,
    settings: Mapping[str, Any],
    rows: Any,
    fallback: Callable[[str], str],
    folder: Path,
    results: Replacing | None = None,
) -> JobSettings:
    """Return the settings of a job, and write its rows into a file.

    Args:
        job: its name, the path of its file, or a job that was built in Python.
        settings: by key: `{"sampling.max_tokens": 8}` or `{"sampling": {"max_tokens": 8}}`. The value of a config group
            may be the name of an option, and that of `model` the path of a GGUF file.
        rows: the input, instead of the job's; see write_rows. None: the job's own.
        fallback: makes a directory for the results of the job of this name, if neither `settings` nor the job name one.
        folder: for the file of `rows`.
        results: what a run replaces in `folder`, whose lock the caller holds; None for a temporary folder.

    Raises:
        ConfigError: the job or a setting cannot work, or `rows` are none.
        StorageError: `rows` cannot be written.
    """
    options, given = options_and_values(settings)
    values = {key: plain_value(value) for key, value in given.items()}
    found = _composed(job, options, values)
    if found.output_dir is None:
        values["output_dir"] = fallback(found.name)
    if rows is not None:
        path = folder / INPUT
        named = [name for node in found.nodes.values() for name in node.op.get("json_columns", ())]
        keep = not found.overwrite and (path.parent / STATE_FILE).is_file()
        write_rows(rows, path, results, keep=keep, as_json={*named, *getattr(found.data, "free_form", ())})
        values |= {"data.path": str(path), "data.format": "parquet", "data.dataset": None}
    return _composed(job, options, values)


def _composed(job: str | Path | Job, options: Mapping[str, str], values: Mapping[str, Any]) -> JobSettings:
    if not isinstance(job, Job):
        return composed(find_job(str(job)), options, values)
    with tempfile.TemporaryDirectory(prefix="job-") as folder:
        path = Path(folder) / f"{job.name}.yaml"
        path.write_text(job.to_yaml(), encoding="utf-8")
        return composed(find_job(str(path)), options, values)
