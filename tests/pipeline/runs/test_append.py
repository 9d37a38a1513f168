"""A run with `append` takes what its input has got since, once, and changes nothing of what is there."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import pipeline
from operators.settings import DataSettings, OutputSettings
from pipeline.api.errors import ConfigError, ExitCode, GraphError, InputError, SchemaError
from pipeline.api.runtime import Resources
from pipeline.cli.main import main
from pipeline.config.build import build_graph
from pipeline.dry_run.estimate import dry_run_lines
from pipeline.python.compose import settings_from
from pipeline.python.result import load
from pipeline.run_dir.state_reading import reading
from pipeline.settings import AGAIN, JobSettings, NodeSettings, TargetSettings
from tests.pipeline.squares import OPS, files, run
from tests.sets import often_cases

pytestmark = pytest.mark.slow("runs jobs night after night, and breaks them off")

BAD = "no row"
Row = Mapping[str, Any] | str


def job(here: Path, data: Mapping[str, Any] | None = None, **more: Any) -> JobSettings:
    given = DataSettings(**{"path": str(here / "in"), "id_column": "id", **(data or {})})
    middle: dict[str, Any] = more.pop("middle", {})
    square: Mapping[str, Any] = more.pop("square", {})
    nodes = {
        "read": NodeSettings(
            {"_target_": "operators.sources.read_prompts.ReadPrompts", "data": given, "chunk_rows": 3}
        ),
        "square": NodeSettings({"_target_": f"{OPS}.Square", **square}, "read"),
    }
    for name, op in middle.items():
        nodes[name] = NodeSettings(op, next(reversed(nodes)))
    nodes["write"] = NodeSettings(
        {"_target_": "operators.sinks.write_rows.WriteRows", "output": {"format": "parquet"}}, next(reversed(nodes))
    )
    settings: dict[str, Any] = {"nodes": nodes, "data": given, "chunk_rows": 5, "append": True}
    return JobSettings(**settings | {"output_dir": str(here / "out"), "progress": "none", "max_error_rate": 1.0} | more)


of_job = job


def put(here: Path, *parts: Sequence[Row]) -> None:
    """Make the input anew: a file of JSON lines of each part."""
    folder = here / "in"
    folder.mkdir(exist_ok=True)
    for file in folder.iterdir():
        file.unlink()
    for i, rows in enumerate(parts):
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        (folder / f"{i:02}.jsonl").write_text("".join(f"{line}\n" for line in lines))


def attempts(here: Path) -> int:
    with reading(here / "out") as state:
        return state.attempts


def rows(directory: Path, without: Sequence[str] = ("row", "supersedes")) -> list[dict[str, Any]]:
    """The rows that readers get, in an order of their own."""
    frame = load(directory).rows().collect().drop(without, strict=False)
    return sorted(frame.to_dicts(), key=repr)


def night(here: Path, rng: random.Random, settings: JobSettings) -> None:
    """Run the job; at times it fails first, at the rows with x = 7."""
    if rng.random() < 0.5:
        (here / "broken").touch()
        run(settings)
        (here / "broken").unlink()
    assert run(settings) is ExitCode.DONE


def drawn(rng: random.Random, seen: list[Row], ids: bool) -> list[Row]:
    """The input of a night: most of the rows of before, some of them changed or twice, and new ones."""
    kept = [row for row in seen if rng.random() < 0.8]
    new: list[Row] = [
        {"id": f"r{len(seen) + i}" if ids else None, "x": rng.randrange(40)} for i in range(rng.randrange(9))
    ]
    twice = rng.sample(kept, min(len(kept), rng.randrange(3)))
    odd: list[Row] = [BAD] * rng.randrange(2)
    seen += new
    every = [*kept, *new, *twice, *odd]
    rng.shuffle(every)
    return every


@pytest.mark.parametrize(("seed", "nights"), often_cases([(0, 5), *((seed, 20) for seed in range(1, 12))], 0))
@pytest.mark.parametrize("ids", [True, False])
def test_nights_give_the_rows_of_one_run_over_all_and_change_no_byte(tmp_path, seed, nights, ids):
    rng, seen, every = random.Random(seed), list[Row](), Counter[str]()
    data = {"id_column": "id" if ids else "row_id", "types": {"id": "string"}}
    settings = job(tmp_path, data, square={"fail_at": 7, "broken": str(tmp_path / "broken")})
    (tmp_path / "all").mkdir()
    there: dict[str, bytes] = {}
    for _ in range(nights):
        rows_given = drawn(rng, seen, ids)
        every |= Counter(row if isinstance(row, str) else json.dumps(row) for row in rows_given)
        cut = rng.randrange(len(rows_given) + 1)
        put(tmp_path, rows_given[:cut], rows_given[cut:], [{"id": "first", "x": 1}])
        night(tmp_path, rng, settings)
        now = files(tmp_path / "out")
        assert there.items() <= now.items()
        there = now
    at_once = tmp_path / "all"
    put(at_once, [{"id": "first", "x": 1}], [json.loads(line) if line != BAD else BAD for line in every.elements()])
    assert run(job(at_once, data)) is ExitCode.DONE
    assert rows(tmp_path / "out") == rows(at_once / "out")
    numbers = pl.concat(
        [load(tmp_path / "out").rows().collect()["row"], load(tmp_path / "out").rejects().collect()["row"]]
    )
    assert numbers.sort().to_list() == list(range(len(numbers)))


def test_rows_are_numbered_in_the_order_of_the_input_with_those_that_cannot_be_read(tmp_path):
    put(tmp_path, [{"id": "a", "x": 1}, BAD, {"id": "b", "x": 2}])
    assert run(job(tmp_path)) is ExitCode.DONE
    result = load(tmp_path / "out")
    assert (result.rows().collect()["row"].to_list(), result.rejects().collect()["row"].to_list()) == ([0, 2], [1])


def test_a_changed_row_is_left_or_taken_again_as_told(tmp_path, caplog):
    first, changed = [{"id": "a", "x": 1}, {"id": "b", "x": 2}], [{"id": "a", "x": 5}, {"id": "c", "x": 3}]
    for name, expected in (("skip", [1, 2, 3]), (AGAIN, [2, 3, 5])):
        here = tmp_path / name
        here.mkdir()
        settings = job(here, append_changed=name, output=OutputSettings(card=True))
        for parts in ((first,), (first, changed), (first, changed), (changed, first), (changed,)):
            put(here, *parts)
            assert run(settings) is ExitCode.DONE
        assert sorted(row["x"] for row in rows(here / "out")) == expected
        text = (here / "out/README.md").read_text(encoding="utf-8")
        assert ("\n3 rows, made by" in text, "hold 1 older versions" in text) == (True, name == AGAIN)
        assert attempts(here) == 2
        back = "1 rows of the input have gone back to what they were"
        assert back not in caplog.text
        put(here, first)
        assert run(settings) is ExitCode.DONE
        assert (back in caplog.text) == (name == AGAIN)
        caplog.clear()


DEDUP = {"_target_": "operators.dedup.Dedup", "columns": ["x"]}
LIMIT = {"_target_": "operators.limit.Limit", "rows": 7}


@pytest.mark.parametrize(
    "more",
    [
        {"middle": {"distinct": DEDUP}},
        {"middle": {"first": LIMIT}},
        {"target": TargetSettings(accepted_rows=30, chunk_rows=4)},
    ],
    ids=["Dedup", "Limit", "target"],
)
def test_operators_that_remember_go_on_with_what_they_have(tmp_path, more):
    """What they pass on over nights is what they do of all rows at once."""
    given = [{"id": f"r{i}", "x": i * i % 17} for i in range(44)]
    for last in (10, 11, 25, 44):
        put(tmp_path, given[:last])
        settings = job(tmp_path, square={"fail_at": 2, "broken": str(tmp_path / "broken")}, **more)
        (tmp_path / "broken").touch()
        run(settings)
        (tmp_path / "broken").unlink()
        assert run(settings) is ExitCode.DONE
    (tmp_path / "all").mkdir()
    put(tmp_path / "all", given)
    assert run(job(tmp_path / "all", **more)) is ExitCode.DONE
    assert rows(tmp_path / "out", ()) == rows(tmp_path / "all/out", ())
    if "target" in more:  # it is reached: more rows are not read for it
        before = attempts(tmp_path)
        put(tmp_path, given, [{"id": "more", "x": 1}])
        assert run(settings) is ExitCode.DONE
        assert attempts(tmp_path) == before


@pytest.mark.parametrize("ids", [True, False])
@pytest.mark.parametrize("middle", [{}, {"distinct": DEDUP}], ids=["", "Dedup"])
def test_what_is_damaged_is_made_again_from_an_input_in_another_order(tmp_path, ids, middle):
    given: list[Row] = [{"id": f"r{i}" if ids else None, "x": i % 9} for i in range(23)]
    settings = job(tmp_path, {"id_column": "id" if ids else "row_id", "types": {"id": "string"}}, middle=middle)
    for parts in (
        (given[5:12],),
        ([], given[5:12], [BAD, *given[:5]]),
        (given[12:], given[5:12], [BAD, *given[:5], BAD]),
    ):
        put(tmp_path, *parts)
        assert run(settings) is ExitCode.DONE
    before = files(tmp_path / "out")
    rejected = "rejects/part-00002.parquet"  # has the names of files and the numbers of lines
    for lost in (["data/part-00001.parquet", rejected], ["data/part-00000.parquet", "data/part-00003.parquet"]):
        for name in lost:
            (tmp_path / "out" / name).unlink()
        assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.DONE
        assert files(tmp_path / "out") == before
        put(tmp_path, [BAD, *given[:9], BAD], given[9:])


def test_rows_that_are_not_in_the_input_any_more_are_named_where_they_are_to_be_made_again(tmp_path, capsys):
    put(tmp_path, [{"id": "a", "x": 1}, {"id": "b", "x": 2}])
    assert run(job(tmp_path)) is ExitCode.DONE
    put(tmp_path, [{"id": "a", "x": 1}, {"id": "b", "x": 3}])
    (tmp_path / "out/data/part-00000.parquet").unlink()
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) != ExitCode.DONE
    assert "1 rows of chunk 0 are not in the input any more as they were taken" in capsys.readouterr().err


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
        return of_job(here, {"id_column": "id" if ids else "row_id", **(data or {})})

    put(tmp_path, [{"id": "a", "x": 1}])
    assert run(job(tmp_path)) is ExitCode.DONE
    there = files(tmp_path / "out")
    put(tmp_path, [{"x": 1, "z": None, "id": "a"}])  # the column is one of texts, and no row is new
    assert run(job(tmp_path)) is ExitCode.DONE
    put(tmp_path, [{"id": "b", "x": 1, "note": "new"}])
    with pytest.raises(InputError, match=r"'note' \(not there then, string now\). data.types sets"):
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


def test_random_numbers_and_texts_are_those_of_one_run_over_all(tmp_path):
    """Of rows without ids, given in Python, on the model that ships."""
    given = [{"prompt": f"Say {i % 4}", "k": i // 5} for i in range(9)]
    settings = {"model": "tiny", "append": True, "chunk_rows": 2, "sampling.max_tokens": 4, "sampling.temperature": 1.0}

    def made(name: str, rows: list[dict[str, Any]]) -> pl.DataFrame:
        result = pipeline.run("generate", {**settings, "output_dir": str(tmp_path / name)}, rows=rows, progress="none")
        return result.rows().collect().drop("row").sort("row_id")

    for first in (6, 6, 2):
        made("nights", given[first:])
    assert made("nights", given[::-1]).equals(at_once := made("all", given))
    with reading(tmp_path / "nights") as state:
        assert (state.attempts, state.committed_chunks) == (3, 5)
    assert len(at_once) == 9
    assert at_once["completion"].n_unique() > 2


def test_a_night_has_a_time_of_its_own(tmp_path):
    """A run that goes on has that of its first attempt."""
    settings = {"model": "fake", "output_dir": str(tmp_path / "out"), "data.path": str(tmp_path / "${now:%Y}.jsonl")}
    (tmp_path / f"{datetime.now():%Y}.jsonl").write_text('{"prompt": "a"}\n')
    for append in (False, True):
        given = {**settings, "append": append, "overwrite": True}
        pipeline.run("generate", given, progress="none")
        first, second = (settings_from("generate", given | {"overwrite": False}, str).now for _ in range(2))
        assert (first == second) == (not append)
