"""A chat template of the user's that attacks ends the job before anything is generated, and one that never ends is
ended by the watchdog; one that a row sets off costs that row. Those of models are in test_template_process.py of
tests/operators/prompts."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tests.pipeline.command_line import ended

TURN = "{% for m in messages %}{{ m.content }}{% endfor %}"
FOR_ALL = {
    "the way to Python": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "globals": ("{{ cycler.__init__.__globals__ }}", "unsafe"),
    "attr": ("{{ ('x' | attr('__class__')).mro() }}", "unsafe"),
    "a file": ("{% include '/etc/passwd' %}", "takes in another template"),
    "a macro without end": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls itself too deeply"),
}


NEVER_ENDS = "{% for a in range(100000) %}" * 3 + "{% endfor %}" * 3
HASTY = """
import pipeline.runs.watchdog
from pipeline.cli.main import main
from pipeline.system import deadlines
pipeline.runs.watchdog.LEAVE_S = deadlines.EXIT_S = 0.3
deadlines.last_exit()(main())
"""


def arguments(folder: Path, template: str, prompts: list[str]) -> list[str]:
    (folder / "chat.jinja").write_text(template, encoding="utf-8")
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")
    inputs = ["job=generate", "model=tiny", f"data.path={data}", f"model.chat_template={folder}/chat.jinja"]
    settings = ["sampling.max_tokens=4", "max_error_rate=1", f"output_dir={folder}/out"]
    return [*inputs, *settings, "progress=none", "report=false"]


def run(folder: Path, template: str, prompts: list[str]) -> int:
    return main(arguments(folder, template, prompts))


@pytest.mark.parametrize("name", FOR_ALL)
def test_one_that_works_for_no_row_ends_the_job(name, tmp_path, capfd):
    source, reason = FOR_ALL[name]
    assert run(tmp_path, source + TURN, ["a"]) == ExitCode.CONFIG
    said = capfd.readouterr().err
    assert reason in said
    assert "Traceback" not in said
    assert not (tmp_path / "out" / "data" / "part-00000.parquet").exists()


@pytest.mark.parametrize("condition", [pytest.param("true", marks=pytest.mark.faults), "'BOMB' in messages[0].content"])
def test_one_that_never_ends_is_ended_by_the_watchdog(condition, tmp_path):
    source = f"{{% if {condition} %}}{NEVER_ENDS}{{% endif %}}{TURN}"
    given = [*arguments(tmp_path, source, ["a", "BOMB"]), "runtime.stall_timeout_s=1"]
    done = ended(tmp_path, sys.executable, "-c", HASTY, *given)
    assert done.returncode == ExitCode.FAILED
    assert "nothing has moved for 1" in done.stderr
    log = (tmp_path / "out/run.log").read_text(encoding="utf-8")
    assert "render: busy; rows in 2, out 0" in log
    assert "thread node-render" in log
