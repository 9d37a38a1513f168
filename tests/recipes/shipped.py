"""Jobs that ship, run in the process of a test on the small model, with changed steps."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import gguf
import pyarrow.parquet as pq
import yaml

from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.config.jobs import JOBS

Job = dict[str, Any]
Row = dict[str, Any]
TINY = PROJECT / "models/tiny/tiny-q8_0.gguf"


def recipe(name: str) -> Job:
    """Return the job `name` as its file has it."""
    job: Job = yaml.safe_load((JOBS / f"{name}.yaml").read_text(encoding="utf-8"))
    return job


def show_prompts(job: Job, names: list[str], folder: Path) -> None:
    """Change the steps `names` of `job`: the model gets its messages as JSON, which NAME_prompt_text keeps.
    Prompts may be longer than those that the small model was trained for."""
    path = folder / "as_json.jinja"
    path.write_text("{{ messages | tojson }}", encoding="utf-8")
    job["model"] = {"path": str(_with_room(folder / "roomy.gguf", 4096))}
    job["runtime"] = {"max_sequence_tokens": 4096}
    for name in names:
        step = job["steps"][name]
        step["model"] = {"chat_template": str(path)}
        step["columns"] = ["prompt_text", "completion"] if "extract" in step else ["prompt_text"]


def _with_room(path: Path, tokens: int) -> Path:
    """Write the small model as one that was trained for `tokens` tokens."""
    shutil.copyfile(TINY, path)
    field = gguf.GGUFReader(path, "r+").fields["qwen3.context_length"]
    field.parts[field.data[0]][0] = tokens
    return path


def run(job: Job, folder: Path, rows: int) -> tuple[list[Row], list[Row]]:
    """Run `job` over the first `rows` rows of its file, in `folder`/out. Return the rows of data/ and of rejects/."""
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job, sort_keys=False), encoding="utf-8")
    settings = (f"output_dir={folder / 'out'}", f"data.limit={rows}", "progress=none", "runtime.threads=1")
    assert main([f"job={path}", *settings]) == ExitCode.DONE
    made = {kind: sorted((folder / "out" / kind).glob("*.parquet")) for kind in ("data", "rejects")}
    data, rejects = ([row for file in made[kind] for row in pq.read_table(file).to_pylist()] for kind in made)
    return data, rejects
