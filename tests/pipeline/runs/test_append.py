"""A run with `append` takes what its input has got since, once, and changes nothing of what is there."""

from __future__ import annotations

import json
import random
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import pipeline
from operators.settings import OutputSettings
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.publish.destination import Destination
from pipeline.python.compose import settings_from
from pipeline.python.result import load
from pipeline.run_dir.state_reading import reading
from pipeline.settings import AGAIN, JobSettings, TargetSettings
from pipeline.system.atomic_files import sha256_of
from tests.pipeline.nights import BAD, Row, attempts, job, put, rows
from tests.pipeline.squares import files, run
from tests.sets import often, often_cases

pytestmark = pytest.mark.slow("runs jobs night after night, and breaks them off")


def night(here: Path, rng: random.Random, settings: JobSettings) -> None:
    """Run the job; at times it fails first, at the rows with x = 7."""
    if rng.random() < 0.5:
        (here / "broken").touch()
        run(settings)
        (here / "broken").unlink()
    assert run(settings) is ExitCode.DONE


def drawn(rng: random.Random, seen: list[dict[str, Any]], ids: bool, changes: bool) -> list[Row]:
    """The input of a night: most of the rows of before, some of them changed or twice, and new ones."""
    every: list[Row] = [row for row in seen if rng.random() < 0.8]
    for i, row in enumerate(seen) if changes else ():
        if rng.random() < 0.2:
            seen[i] = {**row, "x": row["x"] + 100}
            every.append(seen[i])
    new = [{"id": f"r{len(seen) + i}" if ids else None, "x": rng.randrange(40)} for i in range(rng.randrange(9))]
    twice = rng.sample(every, min(len(every), rng.randrange(3)))
    seen += new
    every += [*new, *twice, *[BAD] * rng.randrange(2)]
    rng.shuffle(every)
    return every


@pytest.mark.parametrize(("seed", "nights"), often_cases([(0, 5), *((seed, 20) for seed in range(1, 12))], 0))
@pytest.mark.parametrize(("ids", "changes"), [(True, False), (True, True), (False, False)])
def test_nights_give_the_rows_of_one_run_over_all_and_change_no_byte(tmp_path, seed, nights, ids, changes):
    """Of rows that have changed the newest."""
    rng, seen, every = random.Random(seed), list[dict[str, Any]](), Counter[str]()
    data = {"id_column": "id" if ids else "row_id", "types": {"id": "string"}}
    more = {"append_changed": AGAIN} if changes else {}
    settings = job(tmp_path, data, square={"fail_at": 7, "broken": str(tmp_path / "broken")}, **more)
    there: dict[str, bytes] = {}
    first: Row = {"id": "first", "x": 1}
    for _ in range(nights):
        given = drawn(rng, seen, ids, changes)
        every |= Counter(row if isinstance(row, str) else json.dumps(row) for row in given)
        cut = rng.randrange(len(given) + 1)
        put(tmp_path, given[:cut], given[cut:], [first])
        night(tmp_path, rng, settings)
        now = files(tmp_path / "out")
        assert there.items() <= now.items()
        there = now
    at_once = tmp_path / "all"
    at_once.mkdir()
    whole: list[Row] = [json.loads(line) if line != BAD else BAD for line in every.elements()]
    put(at_once, [first], seen if changes else whole)
    assert run(job(at_once, data)) is ExitCode.DONE
    assert rows(tmp_path / "out") == rows(at_once / "out")
    result = load(tmp_path / "out")
    numbers = [*pl.read_parquet(tmp_path / "out/data/*.parquet")["row"], *result.rejects().collect()["row"]]
    assert sorted(numbers) == list(range(len(numbers)))


def test_rows_are_numbered_in_the_order_of_the_input_with_those_that_cannot_be_read(tmp_path):
    put(tmp_path, [{"id": "a", "x": 1}, BAD, {"id": "b", "x": 2}])
    assert run(job(tmp_path)) is ExitCode.DONE
    result = load(tmp_path / "out")
    assert (result.rows().collect()["row"].to_list(), result.rejects().collect()["row"].to_list()) == ([0, 2], [1])


@pytest.mark.parametrize("form", often(["parquet", "csv", "xlsx"], "xlsx"))
def test_a_changed_row_is_left_or_taken_again_as_told(tmp_path, caplog, capsys, form):
    first, changed = [{"id": "a", "x": 1}, {"id": "b", "x": 2}], [{"id": "a", "x": 5}, {"id": "c", "x": 3}]
    for name, expected in (("skip", [1, 2, 3]), (AGAIN, [2, 3, 5])):
        here = tmp_path / name
        here.mkdir()
        settings = job(here, append_changed=name, format=form, output=OutputSettings(card=True))
        for parts in ((first,), (first, changed), (first, changed), (changed, first), (changed,)):
            put(here, *parts)
            assert run(settings) is ExitCode.DONE
        assert sorted(row["x"] for row in rows(here / "out")) == expected
        text = (here / "out/README.md").read_text(encoding="utf-8")
        assert ("\n3 rows, made by" in text, "hold 1 older versions" in text) == (True, name == AGAIN)
        if form == "xlsx":
            assert sorted(pl.read_excel(here / "out/results.xlsx")["x"]) == expected
        assert attempts(here) == 2
        said = capsys.readouterr()
        assert ("of them new in this attempt (2 known, 1 taken again)" in said.out) == (name == AGAIN)
        assert ("1 row of the input: the id of one before it" in caplog.text) == (name == AGAIN)
        assert (back := "1 row of the input: what it was before") not in said.out + caplog.text
        put(here, first)
        assert run(settings) is ExitCode.DONE
        assert (back in capsys.readouterr().out) == (name == AGAIN)
        caplog.clear()


DEDUP = {"_target_": "operators.dedup.Dedup", "columns": ["x"]}
LIMIT = {"_target_": "operators.limit.Limit", "rows": 7}
QUOTA = {"_target_": "operators.sample_rows.Sample", "per": "x", "rows": 3}
SPLIT = {"_target_": "operators.assign.Assign", "split": {"train": 0.7, "test": 0.3}, "group": "x"}
SEMANTIC = {"_target_": "operators.dedup.Dedup", "semantic": {"column": "v", "threshold": 0.99}}


@pytest.mark.parametrize(
    "more",
    [
        {"middle": {"distinct": DEDUP}},
        {"middle": {"alike": SEMANTIC}},
        {"middle": {"first": LIMIT}},
        {"middle": {"quota": QUOTA, "divide": SPLIT}, "write": {"split_by": "split"}},
        {"target": TargetSettings(accepted_rows=30, chunk_rows=4)},
    ],
    ids=["Dedup", "semantic", "Limit", "quota", "target"],
)
def test_operators_that_remember_go_on_with_what_they_have(tmp_path, more):
    """What they pass on over nights is what they do of all rows at once."""
    given = [{"id": f"r{i}", "x": i * i % 17, "v": [1.0, i * i % 17 / 8, 0.5]} for i in range(44)]
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
        put(tmp_path, given, [{"id": "more", "x": 1, "v": None}])
        assert run(settings) is ExitCode.DONE
        assert attempts(tmp_path) == before


@pytest.mark.parametrize("ids", often([True, False], False))
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


@pytest.mark.parametrize("tells_sizes", [True, False])
def test_the_newest_rows_are_published(tmp_path, monkeypatch, tells_sizes):
    """What is at the place is what readers get here; the files here stay as they are, and so do those there."""
    if not tells_sizes:
        sizes = Destination.sizes
        monkeypatch.setattr(Destination, "sizes", lambda place: dict.fromkeys(sizes(place)))
    there = tmp_path / "there"
    settings = job(tmp_path, append_changed=AGAIN, output=OutputSettings(publish=f"file://{there}"))
    given = [{"id": f"r{i}", "x": i} for i in range(12)]
    nights = (given, [*given, {"id": "r1", "x": 40}], [*given, {"id": "r1", "x": 40}, {"id": "r7", "x": 41}])
    for night in (*nights, nights[-1]):
        put(tmp_path, night)
        assert run(settings) is ExitCode.DONE
        found = pl.read_parquet(there / "data/*.parquet")
        assert sorted(found["x"]) == sorted(row["x"] for row in rows(tmp_path / "out"))
        listed = json.loads((there / "manifest.json").read_text())
        assert listed["counts"]["data_rows"] == len(found) == 12
        for shard in listed["shards"]:
            assert sha256_of(there / shard["path"]) == shard["sha256"]
    stamps = {path: path.stat().st_mtime_ns for path in (there / "data").iterdir()}
    assert run(settings) is ExitCode.DONE
    assert {path: path.stat().st_mtime_ns for path in (there / "data").iterdir()} == stamps
    if tells_sizes:
        (there / "data/part-00000.parquet").write_bytes(b"damaged")
    (tmp_path / "out/data/part-00001.parquet").unlink()
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.DONE
    assert sorted(pl.read_parquet(there / "data/*.parquet")["x"]) == sorted(found["x"])


def test_two_versions_of_a_row_in_one_chunk_are_made_again(tmp_path):
    put(tmp_path, [{"id": "a", "x": 1}, {"id": "b", "x": 2}, {"id": "a", "x": 3}, {"id": "c", "x": 4}])
    settings = job(tmp_path, append_changed=AGAIN)
    assert run(settings) is ExitCode.DONE
    before = files(tmp_path / "out")
    (tmp_path / "out/data/part-00000.parquet").unlink()
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.DONE
    assert files(tmp_path / "out") == before
    assert sorted(row["x"] for row in rows(tmp_path / "out")) == [2, 3, 4]


def test_a_line_that_was_rejected_and_is_mended_now_is_not_needed_to_make_the_others_again(tmp_path):
    put(tmp_path, [{"id": "a", "x": 1}, BAD, {"id": "b", "x": 2}])
    assert run(job(tmp_path)) is ExitCode.DONE
    before = files(tmp_path / "out")
    put(tmp_path, [{"id": "b", "x": 2}], [{"id": "c", "x": 1}, {"id": "a", "x": 1}])
    (tmp_path / "out/data/part-00000.parquet").unlink()
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) == ExitCode.DONE
    assert files(tmp_path / "out") == before


def test_rows_that_are_not_in_the_input_any_more_are_named_where_they_are_to_be_made_again(tmp_path, caplog):
    put(tmp_path, [{"id": "a", "x": 1}, {"id": "b", "x": 2}])
    assert run(job(tmp_path)) is ExitCode.DONE
    put(tmp_path, [{"id": "a", "x": 1}, {"id": "b", "x": 3}])
    (tmp_path / "out/data/part-00000.parquet").unlink()
    assert main(["verify", str(tmp_path / "out"), "repair=true"]) != ExitCode.DONE
    assert "not in the input any more as they were taken: 1 row of chunk 0" in caplog.text


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
