"""What a run with `append` does not take, or refuses to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipeline.api.errors import ConfigError, ExitCode, GraphError, InputError, SchemaError
from pipeline.api.runtime import Resources
from pipeline.config.build import build_graph
from pipeline.dry_run.estimate import dry_run_lines
from pipeline.python.result import load
from pipeline.settings import AGAIN, JobSettings, TargetSettings
from tests.pipeline.nights import BAD, job, put
from tests.pipeline.nights import job as appending
from tests.pipeline.squares import files, run


def test_a_night_without_new_rows_writes_nothing_and_says_so(tmp_path, capsys):
    put(tmp_path, [{"id": "b", "x": 1}])
    settings = job(tmp_path)
    assert run(settings) is ExitCode.DONE
    put(tmp_path, [{"id": "a", "x": 1}], [{"id": "b", "x": 1}])
    lines = "\n".join(dry_run_lines(replace(settings, dry_run=True), build_graph(settings), Resources()))
    assert "sample: 1 rows (all there are)" in lines
    assert run(settings) is ExitCode.DONE
    assert "2 rows done, 1 of them new in this attempt (1 known)" in capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*") if path.is_file()}
    put(tmp_path, [], [{"id": "a", "x": 1}])
    assert run(settings) is ExitCode.DONE
    assert "finished already: 2 rows" in (said := capsys.readouterr().out)
    assert "the input has no new ones" in said
    changed = {
        p for p, at in before.items() if p.suffix != ".sqlite" and p.name != ".lock" and p.stat().st_mtime_ns != at
    }
    assert not changed


@pytest.mark.parametrize("ids", [True, False])
def test_columns_that_are_others_than_before_are_refused_where_they_have_rows(tmp_path, ids):
    def job(here: Path, data: Mapping[str, Any] | None = None) -> JobSettings:
        return appending(here, {"id_column": "id" if ids else "row_id", **(data or {})})

    put(tmp_path, [{"id": "a", "x": 1}])
    assert run(job(tmp_path)) is ExitCode.DONE
    there = files(tmp_path / "out")
    put(tmp_path, [{"x": 1, "z": None, "id": "a"}])  # the column is one of texts, and no row is new
    assert run(job(tmp_path)) is ExitCode.DONE
    put(tmp_path, [{"id": "b", "x": 1, "note": "new"}])
    with pytest.raises(InputError, match=r"'note' \(not there then, string now\). data.schema says"):
        run(job(tmp_path))
    assert files(tmp_path / "out") == there
    assert run(job(tmp_path, {"schema": {"id": "string", "x": "int64"}})) is ExitCode.DONE
    made = load(tmp_path / "out").rows().select("id", "x", "y").collect()
    assert made.rows() == [("a", 1, 1), ("b", 1, 1)]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"data": {"id_column": "name"}}, "append knows rows by data.id_column=name, and the input has no such column"),
        ({"data": {"id_column": "row_id"}, "append_changed": AGAIN}, "append_changed=again needs ids"),
        ({"append": False, "append_changed": AGAIN}, "it needs append=true"),
        (
            {"target": TargetSettings(accepted_rows=3, max_rounds=2)},
            "target.max_rounds=2 cannot work: append reads each",
        ),
        ({"data": {"rename": {"x": "supersedes"}}, "append_changed": AGAIN}, "and the input has one; rename it"),
        (
            {
                "middle": {"less": {"_target_": "operators.columns.Select", "drop": ["supersedes"]}},
                "append_changed": AGAIN,
            },
            "gets no column 'supersedes', by which readers find the newest rows",
        ),
    ],
)
def test_what_cannot_be_appended_to_is_refused(tmp_path, more, said):
    put(tmp_path, [{"id": "a", "x": 1}])
    with pytest.raises((ConfigError, SchemaError, GraphError), match=said):
        run(job(tmp_path, **more))


def test_a_finished_run_is_not_appended_to_unless_it_was_begun_so(tmp_path):
    put(tmp_path, [{"id": "a", "x": 1}])
    assert run(job(tmp_path, append=False)) is ExitCode.DONE
    with pytest.raises(ConfigError, match="append: \\(absent\\) -> "):
        run(job(tmp_path))


def test_max_error_rate_is_of_the_rows_that_a_night_has_added(tmp_path, capsys):
    good = [{"id": f"r{i}", "x": i} for i in range(40)]
    for rows, code in ((good[:20], ExitCode.DONE), (good[20:30], ExitCode.REJECTS), (good[30:], ExitCode.DONE)):
        broken = [BAD] * (code is ExitCode.REJECTS)
        put(tmp_path, rows, broken)
        for _ in range(2):  # a night that has nothing to do says what the last one said
            (tmp_path / "a.prom").unlink(missing_ok=True)
            assert run(job(tmp_path, max_error_rate=0.05, prometheus_file=str(tmp_path / "a.prom"))) is code
        said = capsys.readouterr().out
        assert ("1 errors in 11 rows" in said) == ("Mend these rows in the input" in said) == bool(broken)
        assert f'llama_batch_exit_code{{job="job"}} {int(code)}' in (tmp_path / "a.prom").read_text()
