"""JSON values: each is in its row as it was, or is told: its row is a reject, or its key is counted."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.sources import input_columns, read_prompts
from pipeline.api.errors import SchemaError
from tests.operators.sources.reading import Reading, read

NUMBERS = st.one_of(
    st.integers(-9, 9),
    st.sampled_from([1 << 53, (1 << 53) + 1, (1 << 63) - 1, 1 << 63, -(1 << 63), (1 << 64) - 1, 1 << 64, -(1 << 70)]),
    st.floats(allow_nan=False, allow_infinity=False),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), NUMBERS, st.sampled_from(["", "a", "1", "{}", "é"])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=6,
)
ROWS = st.lists(st.dictionaries(st.sampled_from("xyz"), VALUES, max_size=3), min_size=1, max_size=8)


def untold(found: Any, given: Any, path: str = "") -> list[str]:
    """Return the keys of `given` that are not in `found`, a row or a value of it; fails where another value is."""
    if isinstance(given, dict) and isinstance(found, dict):
        assert all(value is None for key, value in found.items() if key not in given)
        lost = [path + key for key in given if key not in found]
        return lost + [k for key in given.keys() & found for k in untold(found[key], given[key], f"{path}{key}.")]
    if isinstance(given, list) and isinstance(found, list):
        assert len(found) == len(given)
        return list({k: None for pair in zip(found, given, strict=True) for k in untold(*pair, path)})
    if isinstance(found, str) and not isinstance(given, str):
        found = json.loads(found)
    assert found == given
    assert isinstance(found, bool) == isinstance(given, bool)
    return []


def check(reading: Reading, rows: list[dict[str, Any]]) -> None:
    lost: Counter[str] = Counter()
    for i, row in enumerate(rows):
        if i in reading.rejects:
            assert "is not" in (why := reading.rejects[i].reason) or "the value is" in why
        else:
            lost.update(untold(reading.rows[i], row))
    assert Counter({text.split("'")[1]: n for text, n in reading.told.items()}) == lost


@settings(max_examples=100, deadline=None)
@given(first=ROWS, further=ROWS, sample=st.integers(1, 8), chunk_rows=st.integers(1, 5), several=st.booleans())
def test_a_value_comes_out_as_it_was_or_is_told(tmp_path_factory, first, further, sample, chunk_rows, several) -> None:
    folder: Path = tmp_path_factory.mktemp("jsonl")
    first, further = [{"p": "x", **row} for row in first], [{"p": "x", **row} for row in further]
    files = [first, further] if several else [first + further]
    for i, rows in enumerate(files):
        (folder / f"{i}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(input_columns, "SAMPLE_ROWS", sample)
        patch.setattr(input_columns, "FURTHER_ROWS", sample)
        try:
            check(read(folder, chunk_rows), first + further)
        except SchemaError as error:
            if not several or "all files need the same types" not in str(error):
                raise


def test_keys_that_come_late_are_told_by_name_up_to_a_number(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(input_columns, "SAMPLE_ROWS", 1)
    path = tmp_path / "a.jsonl"
    path.write_text('{"p": "x", "m": {"k": 1}}\n' + "".join(f'{{"p": "x", "k{i}": 1}}\n' for i in range(30)))
    told = read(path, 7).told
    assert len(told) == read_prompts.MOST_KEYS + 1
    assert told["the key '(others)' is left out, since no row that types are inferred from has it"] == 10
    path.write_text('{"p": "x", "m": {"k": 1}}\n{"p": "x", "m": {"new": 1}}\n')
    assert list(read(path).told) == [
        "the key 'm.new' is left out, since no row that types are inferred from has it; data.types={m: json} keeps it"
    ]
    assert read(path, types={"m": "json"}).values[1] == {"p": "x", "m": '{"new": 1}'}
    assert not read(path, schema={"p": "string"}).told, "who names the columns knows what is left out"


@pytest.mark.parametrize("key", ["messages_column", "tools_column", "template_kwargs_column"])
def test_what_differs_from_row_to_row_by_nature_is_json_text(tmp_path: Path, key: str) -> None:
    """A row's prompt does not depend on its neighbours: keys, nulls and empty objects are those of the row."""
    rows: list[Any] = [[{"role": "a", "args": {}}], [{"role": "a", "args": {"q": 1}}], '[{"role": "b"}]', {"q": "s"}]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"p": "x", "old": row}) + "\n" for row in rows))
    settings: dict[str, Any] = {key: "m", "rename": {"old": "m"}}
    values = [row["m"] for row in read(path, **settings).values]
    assert [json.loads(value) for value in values] == [*rows[:2], [{"role": "b"}], rows[3]]
    given = read(path, **settings, types={"old": "list<struct<role: string>>"})
    assert given.rows[0]["m"] == [{"role": "a"}]
