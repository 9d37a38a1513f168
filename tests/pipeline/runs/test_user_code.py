"""Whatever a hook of an operator raises is its node's failure: no exit code of its own, no 0 for a failed run."""

from __future__ import annotations

import json

import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli import run
from pipeline.cli.main import main
from tests.pipeline.misbehaving import JOB, RAISES, VARIABLE
from tests.sets import often

pytestmark = pytest.mark.slow("composes and runs a job for each hook")
PLANNING = ("import", "constructor", "plan", "fingerprint", "memory_needs")
RUNNING = ("seek", "restore", "open", "identity", "process", "finish", "state", "conclude")
SHOWN = ("close", "report", "status", "totals", "total_rows", "fraction_read")
"""What fails here changes no result."""
EACH = [(hook, how) for hook in (*PLANNING, *RUNNING, *SHOWN) for how in RAISES]


OFTEN = [(hook, "exit 0") for hook in ("import", "open", "close")]


@pytest.mark.parametrize("case", often(EACH, *OFTEN))
def test_it_is_the_failure_of_the_node(tmp_path, monkeypatch, capsys, case):
    hook, how = case
    module = "tests.pipeline.misbehaving"
    if hook == "import":
        module = f"imported_{how.replace(' ', '_')}"
        text = "from tests.pipeline.misbehaving import Step as Step, at\n\nat('import')\n"
        (tmp_path / f"{module}.py").write_text(text, encoding="utf-8")
    job = JOB.replace("tests.pipeline.misbehaving.Step", f"{module}.Step")
    (tmp_path / "job.yaml").write_text(job, encoding="utf-8")
    run = [f"job={tmp_path}/job.yaml", f"output_dir={tmp_path}/out"]
    if hook in ("seek", "restore"):
        monkeypatch.setenv(VARIABLE, "fail")
        assert main(run) == ExitCode.FAILED
    monkeypatch.setenv(VARIABLE, f"{hook}:{how}")
    code = main(run)
    node = "numbers" if hook == "seek" else "square"
    shown = capsys.readouterr()
    if hook in SHOWN:
        assert code == (ExitCode.FAILED if hook == "close" and how.startswith("exit") else ExitCode.DONE)
        assert (tmp_path / "out/final.txt").exists()
        assert type(RAISES[how]()).__name__ in (tmp_path / "out/run.log").read_text(encoding="utf-8")
        assert main(run) == ExitCode.DONE  # finished already
        return
    assert code == (ExitCode.CONFIG if hook in PLANNING else ExitCode.FAILED)
    assert f"node '{node}'" in shown.err
    assert type(RAISES[how]()).__name__ in shown.err
    if hook in RUNNING:
        assert json.loads((tmp_path / "out/status.json").read_text(encoding="utf-8"))["state"] == "failed"
        monkeypatch.delenv(VARIABLE)
        assert main(run) == ExitCode.DONE


OPERATOR = """
from tests.pipeline.job_ops import Numbers


class Broken(Numbers):
    def plan(self, *inputs):
        raise LookupError("on the moon")
"""


def fails(*args: object) -> None:
    raise LookupError("on the moon")


@pytest.mark.parametrize(
    ("whose", "code", "says"),
    [
        ("ours", 1, "error: not foreseen: LookupError: on the moon; what led to it:"),
        ("an operator's", 2, "error: node 'a': plan raised LookupError: on the moon"),
    ],
)
def test_the_error_comes_first(tmp_path, capsys, monkeypatch, whose, code, says):
    (tmp_path / "broken_on_plan.py").write_text(OPERATOR, encoding="utf-8")
    (tmp_path / "job.yaml").write_text("nodes: {a: {op: {_target_: broken_on_plan.Broken, rows: 1}}}", encoding="utf-8")
    if whose == "ours":
        monkeypatch.setattr(run, "run_job", fails)
    assert main([f"job={tmp_path}/job.yaml", f"output_dir={tmp_path}/out"]) == code
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == says
    assert lines[1].startswith("Traceback")
