"""A chat template that attacks, or works without end, ends the job before a row is read; one that a row sets off costs
that row."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.__main__ import main
from pipeline.errors import ExitCode

TURN = "{% for m in messages %}{{ m.content }}{% endfor %}"
FOR_ALL = {
    "the way to Python": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "globals": ("{{ cycler.__init__.__globals__ }}", "unsafe"),
    "attr": ("{{ ('x' | attr('__class__')).mro() }}", "unsafe"),
    "a file": ("{% include '/etc/passwd' %}", "takes in another template"),
    "loops in loops": (
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
        "more than 10000000 steps",
    ),
    "a macro without end": ("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "calls itself too deeply"),
}


def run(folder: Path, template: str, prompts: list[str]) -> int:
    (folder / "chat.jinja").write_text(template, encoding="utf-8")
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts), encoding="utf-8")
    arguments = ["job=generate", "model=tiny", f"data.path={data}", f"model.chat_template={folder}/chat.jinja"]
    settings = ["sampling.max_tokens=4", "max_error_rate=1", "progress=none", f"output_dir={folder}/out"]
    return main([*arguments, *settings])


@pytest.mark.parametrize("name", FOR_ALL)
def test_one_that_works_for_no_row_ends_the_job(name, tmp_path, capfd):
    source, reason = FOR_ALL[name]
    assert run(tmp_path, source + TURN, ["a"]) == ExitCode.CONFIG
    said = capfd.readouterr().err
    assert reason in said
    assert "Traceback" not in said
    assert not (tmp_path / "out" / "data" / "part-00000.parquet").exists()


def test_one_that_a_row_sets_off_costs_that_row(tmp_path):
    source = (
        "{% if 'BOMB' in messages[0].content %}{% set ns = namespace(x='x') %}"
        "{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{% endif %}"
    )
    assert run(tmp_path, source + TURN, ["a", "BOMB", "b"]) == ExitCode.DONE
    assert pq.read_table(tmp_path / "out/data")["prompt"].to_pylist() == ["a", "b"]
    (reject,) = pq.read_table(tmp_path / "out/rejects").to_pylist()
    assert (reject["row"], reject["node"]) == (1, "render")
    assert "a text or a list of more than 16777216 characters" in reject["reason"]
