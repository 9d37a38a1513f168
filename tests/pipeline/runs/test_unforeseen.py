"""What nobody has foreseen is told like any other error, with a traceback behind it."""

from __future__ import annotations

from pipeline.cli.main import main

OPERATOR = """
from tests.pipeline.job_ops import Square


class Broken(Square):
    def plan(self, *inputs):
        raise LookupError("on the moon")
"""


def test_it_is_exit_code_1_and_the_error_comes_first(tmp_path, capsys):
    (tmp_path / "broken_on_plan.py").write_text(OPERATOR, encoding="utf-8")
    (tmp_path / "job.yaml").write_text("nodes: {a: {op: {_target_: broken_on_plan.Broken}}}", encoding="utf-8")
    assert main([f"job={tmp_path}/job.yaml", f"output_dir={tmp_path}/out"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "error: not foreseen: LookupError: on the moon; what led to it:"
    assert lines[1].startswith("Traceback")
