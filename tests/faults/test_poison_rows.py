"""A row that is bad costs itself: the rest of the job is as it is without it, and the reject says what to do."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main

pytestmark = pytest.mark.slow("generates with each kind of bad row among others")

GOOD = (
    "Name the color of grass.",
    "Add 2 and 3.",
    "List two animals.",
    "Say hello.",
    "What is 7 - 4?",
    "Name a fruit.",
)
COMPLETED = ""
"""The outcome of a row that is strange and can be completed; any other outcome is a part of the reject's reason."""

LINES: dict[str, tuple[bytes, str]] = {
    "an empty prompt": (b'{"id": 100, "prompt": ""}', "is empty; give it a text or drop the row"),
    "a prompt of a megabyte": (b'{"id": 101, "prompt": "' + b"word " * 210_000 + b'"}', "leaves no room"),
    "bytes that are no UTF-8": (b'{"id": 102, "prompt": "a\xff\xfeb"}', "convert the file to UTF-8"),
    "a NUL as an escape": (b'{"id": 103, "prompt": "a\\u0000b"}', COMPLETED),
    "a NUL as a byte": (b'{"id": 104, "prompt": "a\x00b"}', "each line must be one JSON object"),
    "special tokens only": (b'{"id": 105, "prompt": "<|im_end|><|endoftext|><|im_start|>"}', COMPLETED),
    "null": (b'{"id": 106, "prompt": null}', "give it a text or drop the row"),
    "no prompt": (b'{"id": 107}', "give it a text or drop the row"),
    "a number": (b'{"id": 108, "prompt": 7}', "data.types={prompt: ...} sets another type"),
    "a list": (b'{"id": 109, "prompt": ["a"]}', "data.types={prompt: ...} sets another type"),
    "a number of 10,000 digits": (b'{"id": ' + b"9" * 10_000 + b', "prompt": "a"}', "beyond what a double holds"),
    "such a number for a prompt": (b'{"id": 111, "prompt": ' + b"9" * 10_000 + b"}", "beyond what a double holds"),
    "half a character": (b'{"id": 112, "prompt": "a\\ud800b"}', "write the whole character"),
    "half a character in a key": (b'{"id": 113, "prompt": "a", "\\ud800": 1}', "half a character"),
    "a nesting bomb": (b'{"id": 114, "prompt": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
    "a bomb of objects": (b'{"id": 115, "prompt": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "nested too deeply"),
    "keys twice": (b'{"id": 116, "prompt": "a", "prompt": "b"}', "keep one"),
    "a line that is cut": (b'{"id": 117, "prompt": "a', "each line must be one JSON object"),
    "null as a line": (b"null", "not an object"),
    "a list as a line": (b"[1]", "not an object"),
    "an id that was there": (b'{"id": 0, "prompt": "Name a tree."}', COMPLETED),
}


@dataclass(frozen=True)
class Finished:
    """A run's rows and rejects, by the number of the source's row."""

    code: int
    rows: dict[int, dict[str, Any]]
    rejects: dict[int, dict[str, Any]]
    counts: dict[str, int]

    @property
    def texts(self) -> dict[str, str]:
        return {row["prompt"]: row["completion"] for row in self.rows.values()}


def finish(out: Path, *arguments: str) -> Finished:
    settings = ("sampling.max_tokens=8", "sampling.temperature=0.8", "runtime.slots=4", "chunk_rows=8", "progress=none")
    code = main([*arguments, *settings, f"output_dir={out}", "max_error_rate=1"])
    counts = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["counts"]
    return Finished(code, by_row(out / "data"), by_row(out / "rejects"), counts)


def by_row(folder: Path) -> dict[int, dict[str, Any]]:
    tables = [pq.read_table(path) for path in sorted(folder.glob("*.parquet"))]
    return {row["row"]: row for table in tables for row in table.to_pylist()}


def good_line(number: int) -> bytes:
    return json.dumps({"id": number, "prompt": GOOD[number]}).encode()


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    """Good lines, and poison before, between and after them."""
    poison = [line for line, _ in LINES.values()]
    mixed = [poison[0]]
    for i in range(len(GOOD)):
        mixed += [good_line(i), *poison[1 + 4 * i : 5 + 4 * i]]
    return mixed


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Finished:
    folder = tmp_path_factory.mktemp("clean")
    (folder / "clean.jsonl").write_bytes(b"\n".join(good_line(i) for i in range(len(GOOD))))
    return finish(folder / "out", "job=generate", "model=tiny", f"data.path={folder}/clean.jsonl", "data.id_column=id")


@pytest.fixture(scope="module")
def poisoned(lines, tmp_path_factory) -> Finished:
    folder = tmp_path_factory.mktemp("poisoned")
    (folder / "all.jsonl").write_bytes(b"\n".join(lines))
    return finish(folder / "out", "job=generate", "model=tiny", f"data.path={folder}/all.jsonl", "data.id_column=id")


def test_the_job_is_done_and_every_row_is_completed_or_rejected(clean, lines, poisoned):
    assert clean.code == poisoned.code == ExitCode.DONE
    assert len(clean.rows) == len(GOOD)
    assert poisoned.rows.keys() | poisoned.rejects.keys() == set(range(len(lines)))
    assert not poisoned.rows.keys() & poisoned.rejects.keys()
    assert poisoned.counts["source_rows"] == poisoned.counts["data_rows"] + poisoned.counts["error_rejects"]


def test_its_neighbours_have_the_text_that_they_have_without_it(clean, poisoned):
    assert {prompt: poisoned.texts.get(prompt) for prompt in GOOD} == clean.texts


@pytest.mark.parametrize("name", LINES)
def test_a_line_has_its_outcome(lines, poisoned, name):
    line, outcome = LINES[name]
    place = lines.index(line)
    if outcome == COMPLETED:
        assert poisoned.rows[place]["finish_reason"] in ("stop", "length")
        return
    reject = poisoned.rejects[place]
    assert outcome in reject["reason"]
    assert len(reject["reason"]) < 500
    assert reject["kind"] == "error"
    assert reject["record"]
    if reject["node"] == "read":
        assert (reject["file"].rpartition("/")[2], reject["line"]) == ("all.jsonl", place + 1)


def parquet_row(prompt: bytes | None, number: int) -> pa.RecordBatch:
    """A row whose text nobody has checked."""
    if prompt is None:
        text = pa.array([None], pa.string())
    else:
        offsets = pa.py_buffer(pa.array([0, len(prompt)], pa.int32()).buffers()[1].to_pybytes())
        text = pa.StringArray.from_buffers(1, offsets, pa.py_buffer(prompt))
    return pa.record_batch([pa.array([number]), text], names=["id", "prompt"])


PARQUET: dict[str, tuple[bytes | None, str]] = {
    "an empty prompt": (b"", "is empty; give it a text or drop the row"),
    "a prompt of a megabyte": (b"word " * 210_000, "leaves no room"),
    "bytes that are no UTF-8": (b"a\xff\xfeb", "write the file again in UTF-8"),
    "half a character": (b"a\xed\xa0\x80b", "write the file again in UTF-8"),
    "a NUL": (b"a\x00b", COMPLETED),
    "special tokens only": (b"<|im_end|><|endoftext|>", COMPLETED),
    "null": (None, "give it a text or drop the row"),
}


@pytest.fixture(scope="module")
def poisoned_parquet(tmp_path_factory) -> Finished:
    folder = tmp_path_factory.mktemp("parquet")
    rows = [parquet_row(prompt, 100 + i) for i, (prompt, _) in enumerate(PARQUET.values())]
    rows += [parquet_row(prompt.encode(), i) for i, prompt in enumerate(GOOD)]
    pq.write_table(pa.Table.from_batches(rows), folder / "all.parquet")
    return finish(folder / "out", "job=generate", "model=tiny", f"data.path={folder}/all.parquet", "data.id_column=id")


def test_parquet_rows_have_their_outcomes_and_cost_no_neighbour(clean, poisoned_parquet):
    found = poisoned_parquet
    assert found.code == ExitCode.DONE
    assert {prompt: found.texts.get(prompt) for prompt in GOOD} == clean.texts
    assert found.rows.keys() | found.rejects.keys() == set(range(len(PARQUET) + len(GOOD)))
    for place, (name, (_, outcome)) in enumerate(PARQUET.items()):
        assert (place in found.rows) == (outcome == COMPLETED), name
        assert outcome in found.rejects.get(place, {"reason": COMPLETED})["reason"], name
    assert json.loads(found.rejects[2]["record"])["prompt"] == "a\\xff\\xfeb"


TEMPLATE_JOB = """
defaults:
  - override /flow: generate
  - override /model: tiny
nodes:
  render:
    op:
      template: "{{ prompt }}{{ '' if n == 1 else 1 // n }}\\
        {% for d in range(100000) if n == 3 %}{{ prompt }}{% endfor %}"
"""


def test_a_row_that_its_template_fails_on_costs_itself(tmp_path):
    rows = [*({"n": 1, "prompt": prompt} for prompt in GOOD), {"n": 0, "prompt": "x"}, {"n": 1, "prompt": ""}]
    rows.append({"n": 3, "prompt": "x" * 1000})
    job, data = tmp_path / "mine.yaml", tmp_path / "all.jsonl"
    job.write_text(TEMPLATE_JOB, encoding="utf-8")
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    found = finish(tmp_path / "out", f"job={job}", f"data.path={data}")
    assert found.code == ExitCode.DONE
    assert sorted(found.rows) == [0, 1, 2, 3, 4, 5]
    reasons = {row: reject["reason"] for row, reject in found.rejects.items()}
    assert reasons.keys() == {6, 7, 8}
    assert "ZeroDivisionError" in reasons[6]
    assert reasons[7] == "the prompt is empty; the model needs at least one token"
    assert "more than 16777216 characters" in reasons[8]


@pytest.mark.faults
def test_a_line_without_end_costs_itself(clean, tmp_path):
    path = tmp_path / "long.jsonl"
    long = b'{"id": 100, "prompt": "' + b"x" * (70 << 20) + b'"}'
    path.write_bytes(b"\n".join([good_line(0), long, *map(good_line, range(1, len(GOOD)))]))
    found = finish(tmp_path / "out", "job=generate", "model=tiny", f"data.path={path}", "data.id_column=id")
    assert found.texts == clean.texts
    assert (list(found.rejects), found.rejects[1]["line"]) == ([1], 2)
    assert "the line has more than 67,108,864 bytes" in found.rejects[1]["reason"]
