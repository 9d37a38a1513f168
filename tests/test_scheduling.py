"""The examples of docs/scheduling.md do what they say: cron, systemd, Slurm, and one store for all nights."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline import PROJECT, load
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main

EXAMPLES = PROJECT / "docs/examples"
PAGE = PROJECT / "docs/scheduling.md"
OPS = "tests.pipeline.job_ops"
INTERPRETER = re.compile(r"(/[\w./-]+/)?\.venv/bin/python")
WAITS = """
chunk_rows: 10
max_open_chunks: 1
report: false
nodes:
  numbers: {{op: {{_target_: {ops}.Numbers, rows: 45}}}}
  wait: {{inputs: numbers, op: {{_target_: {ops}.WaitAt, at: 25, flag: {flag}}}}}
  write: {{inputs: wait, op: {{_target_: {ops}.Parquet}}}}
"""


def example(name: str, folder: Path) -> Path:
    """The example `name`, with the paths of this machine, in `folder`."""
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    text = INTERPRETER.sub(sys.executable, text).replace("/opt/llama-batch-pipeline", str(PROJECT))
    text = text.replace("/srv/nightly", str(folder)).replace("/models/my.gguf", f"{PROJECT}/models/tiny/tiny-q8_0.gguf")
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def ask(folder: Path, *questions: str) -> None:
    """Write the questions that the nightly job reads."""
    lines = [json.dumps({"id": text, "prompt": text}) for text in questions]
    (folder / "questions.jsonl").write_text("\n".join(lines), encoding="utf-8")


@dataclass(frozen=True)
class Night:
    """A night that cron has run, in `folder`."""

    folder: Path
    command: str
    done: subprocess.CompletedProcess[str]
    pruned: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def night(tmp_path_factory) -> Night:
    folder = tmp_path_factory.mktemp("nightly")
    ask(folder, "What is 2 plus 3?", "What is 10 minus 4?")
    with example("nightly.yaml", folder).open("a", encoding="utf-8") as job:
        job.write("report: false\n")
    lines = example("nightly.cron", folder).read_text().splitlines()
    command, prune = (line.split(None, 5)[5] for line in lines if re.match(r"\d", line))
    return Night(folder, command, _by_cron(command, folder), _by_cron(prune, folder))


def _by_cron(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    bare = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "SHELL": "/bin/sh"}
    return subprocess.run(["/bin/sh", "-c", command], env=bare, capture_output=True, text=True, check=False)


def test_the_line_for_cron_runs_as_cron_runs_it(night):
    """Under /bin/sh, with next to no environment."""
    assert "%" not in night.command
    assert night.done.returncode == 0, night.done.stderr
    assert night.done.stdout.startswith("nightly: done after")
    assert load(night.folder / "answers").counts["data_rows"] == 2
    assert night.pruned.returncode == 0, night.pruned.stderr
    assert "0 of 2 entries" in night.pruned.stdout


def test_a_night_generates_what_no_night_before_it_has(night):
    ask(night.folder, "Reverse this list: fox, hen", "What is 2 plus 3?", "What is 10 minus 4?")
    assert main([f"job={night.folder}/nightly.yaml", "progress=none"]) == ExitCode.DONE
    after = load(night.folder / "answers")
    assert after.rows().collect()["id"].to_list()[2:] == ["Reverse this list: fox, hen"]
    totals = [json.loads(run["totals"]) for run in after.metrics("run").collect().to_dicts()]
    assert [totals[-1][f"read/{name}"] for name in ("rows_known", "rows_changed")] == [2, 0]
    assert len(after.metrics("rows").filter(attempt=2).collect()) == 1


def test_a_directory_for_each_day_generates_what_the_store_has_not(night):
    """The three settings that the page names."""
    page = PAGE.read_text(encoding="utf-8").partition("**A directory for each day**")[2]
    append, output_dir, store = re.findall(r"`(\w+): (.+?)`", page)[:3]
    assert (append[0], output_dir[0], store[0]) == ("append", "output_dir", "store")
    folder = night.folder / "days"
    folder.mkdir()
    days = [
        "append=false",
        f"output_dir={output_dir[1].replace('/srv/nightly', str(folder))}",
        f"store.path={folder}/completions.sqlite",
    ]
    for day, questions in (("2001-01-30", ["What is 2 plus 3?"]), ("2001-01-31", ["Say 3", "What is 2 plus 3?"])):
        ask(night.folder, *questions)
        command = [f"job={night.folder}/nightly.yaml", *days, f"now={day}", "progress=none"]
        assert main(command) == ExitCode.DONE
    (run,) = load(folder / "outputs/2001-01-31").metrics("run").collect().to_dicts()
    totals = json.loads(run["totals"])
    assert (totals["generate/found_earlier"], totals["generate/missed_new"]) == (1, 1)


@pytest.mark.parametrize("name", ["nightly.service", "nightly.timer"])
def test_systemd_takes_the_units(tmp_path, name):
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not installed")
    for unit in ("nightly.service", "nightly.timer"):
        example(unit, tmp_path)
    done = subprocess.run(
        [verify, "verify", "--man=no", str(tmp_path / name)], capture_output=True, text=True, check=False
    )
    said = [line for line in done.stderr.splitlines() if "nightly" in line or tmp_path.name in line]
    assert (done.returncode, said) == (0, []), done.stderr


def test_what_the_unit_says_of_exit_codes_is_so(tmp_path):
    text = (EXAMPLES / "nightly.service").read_text(encoding="utf-8")
    settings = dict(re.findall(r"^(\w+)=(.+)$", text, re.M))
    assert settings["RestartPreventExitStatus"].split() == [str(int(c)) for c in (ExitCode.CONFIG, ExitCode.REJECTS)]
    assert settings["SuccessExitStatus"] == str(int(ExitCode.INTERRUPTED))


def test_a_slurm_job_that_comes_to_its_limit_is_requeued_and_resumes(tmp_path):
    flag, bin_ = tmp_path / "flag", tmp_path / "bin"
    flag.touch()
    (tmp_path / "nightly.yaml").write_text(WAITS.format(ops=OPS, flag=flag))
    bin_.mkdir()
    (bin_ / "scontrol").write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/requeued\n')
    (bin_ / "scontrol").chmod(0o755)
    slurm = {"SLURM_JOB_NAME": "generate", "SLURM_JOB_ID": "4711", "PATH": f"{bin_}:{os.environ['PATH']}"}
    command = ["bash", str(example("generate.sbatch", tmp_path))]
    out = tmp_path / "outputs/generate-4711"

    shell = subprocess.Popen(command, env={**os.environ, **slurm}, stderr=subprocess.PIPE, text=True)
    while not Path(f"{flag}.reached").exists():
        assert shell.poll() is None
        time.sleep(0.01)
    shell.send_signal(signal.SIGTERM)  # as --signal=B:TERM@120: the shell alone
    while "stopping" not in (line := shell.stderr.readline() if shell.stderr else ""):
        assert line
    flag.unlink()  # the step is finished
    shell.communicate()
    assert shell.returncode == ExitCode.INTERRUPTED
    assert (tmp_path / "requeued").read_text() == "requeue 4711\n"
    kept = len(list((out / "data").iterdir()))
    assert kept in (2, 3)  # the one that was waited for may or may not have come before the end

    assert subprocess.run(command, env={**os.environ, **slurm}, capture_output=True, check=False).returncode == 0
    assert (tmp_path / "requeued").read_text() == "requeue 4711\n"
    assert len(list((out / "data").iterdir())) == 5
    assert f"resuming: {kept}0 rows ({kept} chunk" in (out / "run.log").read_text()


def test_the_page_shows_the_examples_as_they_are():
    page = PAGE.read_text(encoding="utf-8")
    for path in sorted(EXAMPLES.iterdir()):
        assert f"<!-- example: {path.name} -->" in page
        shown = page.partition(f"<!-- example: {path.name} -->\n```")[2].partition("\n")[2].partition("```")[0]
        assert shown == path.read_text(encoding="utf-8"), path.name


def test_the_page_names_every_exit_code():
    rows = re.findall(r"^\| (\d) \| ", PAGE.read_text(encoding="utf-8"), re.M)
    assert rows == [str(int(code)) for code in ExitCode]
