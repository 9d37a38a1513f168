"""What nobody has foreseen is told like any other error, with a traceback behind it."""

from __future__ import annotations

import pytest

from pipeline.cli import run
from pipeline.cli.main import main

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
