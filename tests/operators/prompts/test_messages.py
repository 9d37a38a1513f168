"""Conversations: as nested columns of each format and as JSON text, with contents of texts or of parts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from operators.prompts.messages import NoPrompt, conversation, require_messages
from pipeline.api.errors import SchemaError
from tests.operators.sources.reading import read

PLAIN = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "text", "text": "there"}]}]
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}]
TOOL = [{"role": "assistant", "tool_calls": [{"id": "1"}]}, {"role": "tool", "content": "4"}]


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (PLAIN, PLAIN),
        (json.dumps(PLAIN), PLAIN),
        (PARTS, [{"role": "user", "content": "Hi\nthere"}]),
        (json.dumps(PARTS), [{"role": "user", "content": "Hi\nthere"}]),
        ([{"role": "user", "content": ["Hi", None, "there"]}], [{"role": "user", "content": "Hi\nthere"}]),
        ([{"role": "user", "content": "a", "name": None}], [{"role": "user", "content": "a"}]),
        (TOOL, TOOL),
    ],
)
def test_what_a_conversation_may_be(value: Any, wanted: Any) -> None:
    assert conversation(value, "messages") == wanted


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (None, "column 'm' is null; give it messages or drop the row"),
        ([], "column 'm' has no messages"),
        ("hello", "column 'm' is text that is not JSON (Expecting value at character 1); write the list"),
        ('{"role": "user"}', "column 'm' holds an object; messages are a list"),
        ("[" * 100_000, "column 'm' is JSON that cannot be read"),
        (["x"], "message 0 of column 'm' is a text"),
        ([None], "message 0 of column 'm' has no role"),
        ([{"role": "user"}], "message 0 of column 'm' has no content"),
        ([{"role": 1, "content": "x"}], "message 0 of column 'm' has a role that is a number"),
        ([*PLAIN, {"role": "user", "content": 3}], "message 2 of column 'm' has a content that is a number"),
        (IMAGE, "message 0 of column 'm' has a part of type 'image_url', and only text can be read; drop the part"),
        ([{"role": "user", "content": [{"type": "text"}]}], "has a part of type 'text'"),
        ([{"role": "user", "content": [7]}], "has a part that is a number"),
    ],
)
def test_what_is_none_is_refused_with_the_message_and_the_reason(value: Any, says: str) -> None:
    with pytest.raises(NoPrompt, match=r"^\w") as caught:
        conversation(value, "m")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "kind", [pa.int64(), pa.list_(pa.string()), pa.list_(pa.struct([("role", pa.string())])), pa.list_(pa.int64())]
)
def test_a_column_that_can_hold_none_is_refused_before_anything_runs(kind: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"column 'm' has type .*; messages are list<struct<"):
        require_messages(pa.schema([("m", kind)]), "m")


def write(path: Path, conversations: list[Any]) -> dict[str, Any]:
    """The conversations in a file; the settings of `data` that reading it takes."""
    nested = [{"id": i, "messages": messages} for i, messages in enumerate(conversations)]
    as_text = [{"id": i, "messages": json.dumps(messages)} for i, messages in enumerate(conversations)]
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in nested))
        return {"schema": {"id": "int64", "messages": "json"}}
    if path.suffix == ".csv":
        pl.DataFrame(as_text).write_csv(path)
    elif path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(nested), path)
    else:
        pa.feather.write_feather(pa.Table.from_pylist(as_text), path)
    return {}


def conversations(path: Path, **data: Any) -> list[Any]:
    """What the rows of a file hold: messages, or why they are none."""
    found: list[Any] = []
    for row in read(path, **data).values:
        try:
            found.append(conversation(row["messages"], "messages"))
        except ValueError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.arrow"])
def test_texts_and_parts_may_be_mixed_in_one_file(tmp_path: Path, name: str) -> None:
    data = write(tmp_path / name, [PLAIN, PARTS, IMAGE])
    plain, parts, image = conversations(tmp_path / name, **data)
    assert (plain, parts) == (PLAIN, [{"role": "user", "content": "Hi\nthere"}])
    assert "a part of type 'image_url'" in image


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_nested_parts_need_no_schema(tmp_path: Path, suffix: str) -> None:
    both = [{"role": "user", "content": [*PARTS[0]["content"], *IMAGE[0]["content"]]}]
    write(tmp_path / f"a.{suffix}", [PARTS, IMAGE, both])
    parts, image, mixed = conversations(tmp_path / f"a.{suffix}")
    assert parts == [{"role": "user", "content": "Hi\nthere"}]
    assert image == mixed != parts


def test_a_line_that_is_no_json_is_a_reject_as_it_stands_where_others_become_text(tmp_path: Path) -> None:
    lines = '{"id": 1, "messages": [1.50]}', '{"id": 2, "messages": [', '{"id": "x", "messages": []}'
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    found = read(tmp_path / "a.jsonl", schema={"id": "int64", "messages": "json"})
    assert found.values == [{"id": 1, "messages": "[1.5]"}]
    assert [(r.line, r.record) for r in found.rejects.values()] == [(2, lines[1]), (3, lines[2])]
