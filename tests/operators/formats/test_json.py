"""JSON files: the rows of an array are those of the same lines of JSONL, however it is written and cut into blocks."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.formats import json as json_format
from operators.formats.input_file import InputFile
from operators.formats.json import JsonReader, _Elements
from operators.formats.jsonl import JsonlReader
from operators.formats.unpack import CODECS
from pipeline.api.errors import InputError
from tests.operators.formats.samples import pack
from tests.operators.sources.reading import read

TEXTS = st.text("a\\\"'[]{},: \n\té😀", max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
OBJECTS = st.fixed_dictionaries({"p": TEXTS}, optional={"n": st.integers(-9, 9), "v": VALUES}).map(json.dumps)
OTHERS = [
    '{"p": 1}',
    "7",
    '"a, b"',
    "[1, [2]]",
    "null",
    '{"p": tru}',
    '{"p": "a" "b"}',
    '{"p": "x"} {}',
    '{"p": 1, "p": 2}',
]
SPACES = st.sampled_from(["", " ", "\n", "\r\n  ", "\t"])


def rows_of(reader: JsonlReader, block_bytes: int = 1000) -> tuple[list[Any], list[tuple[int, str]]]:
    """The good rows and the bad ones, without what a row is called."""
    reader.block_bytes = block_bytes
    found = list(reader.blocks(reader.schema(1), 0, 0))
    good = [row for block in found if block.data is not None for row in block.data.to_pylist()]
    return good, [(bad.row, bad.reason.replace("each element", "each line")) for block in found for bad in block.bad]


@settings(max_examples=80, deadline=None)
@given(
    elements=st.lists(OBJECTS | st.sampled_from(OTHERS), max_size=9),
    spaces=st.lists(SPACES, min_size=3, max_size=3),
    indent=st.sampled_from([None, 0, 2]),
    ending=st.sampled_from(["", *CODECS]),
    block=st.integers(1, 60),
    start=st.integers(0, 9),
)
def test_an_array_has_the_rows_of_the_same_lines(
    tmp_path_factory, elements, spaces, indent, ending, block, start
) -> None:
    """The good and the bad, packed or not, wherever blocks are cut, and from the middle on."""
    elements = ['{"p": "first"}', *elements]
    folder = tmp_path_factory.mktemp("json")
    lines, (before, between, behind) = folder / "a.jsonl", spaces
    lines.write_text("\n".join(elements))

    def shown(element: str) -> str:
        odd = element in OTHERS
        return element if odd else json.dumps(json.loads(element), indent=indent, ensure_ascii=len(element) % 2 == 0)

    path = folder / f"a.json{ending}"
    content = f"{before}[{between}{f'{behind},{between}'.join(map(shown, elements))}{behind}]{before}".encode()
    pack(path, content) if ending else path.write_bytes(content)
    types = {"p": "string", "n": "int64", "v": "json"}
    expected = rows_of(JsonlReader(InputFile(str(lines)), types))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_format, "BLOCK_BYTES", block)
        assert rows_of(JsonReader(InputFile(str(path)), types), 1) == expected
        assert rows_of(JsonReader(InputFile(str(path)), types)) == expected
        whole, tail = (read(at, 2, start // 2, types=types).rows for at in (lines, path))
    assert tail == whole


def test_wherever_blocks_are_cut_the_elements_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    content = rb' [ {"p": "  a\\\" ]  , [ "} , 7 , {"q": [ { } , "  ", "" ]}, "x, \\" ,[ ] ] '
    for size in range(1, len(content)):
        monkeypatch.setattr(json_format, "BLOCK_BYTES", size)
        lines = io.BufferedReader(_Elements(io.BytesIO(content), "a")).read().splitlines()
        assert [json.loads(line) for line in lines if line.strip()] == json.loads(content)
        with pytest.raises(InputError, match=f"a has text behind its JSON array, from byte {len(content) + 1} on"):
            io.BufferedReader(_Elements(io.BytesIO(content + b"x"), "a")).read()


BROKEN = {
    "cut off": (
        '[{"p": "a"}, {"p": "b"}',
        "is cut off: its JSON array has no end after 23 bytes; make or fetch it",
    ),
    "cut off in a string": ('[{"p": "a"}, {"p": "]', "is cut off: its JSON array has no end after 21 bytes"),
    "two arrays": ('[{"p": "a"}]\n[{"p": "b"}]', r"has text behind its JSON array, from byte 14 on: b'\[\{"),
    "closed too early": ('[{"p": "a"}}, {"p": "b"}]', r"has text behind its JSON array, from byte 13 on: b', \{"),
    "one object": (
        '{"p": "a"}\n',
        r"is one JSON object, and no list of them.*data.format=jsonl .*`jq -c '.' FILE >",
    ),
    "one object over lines": ('{\n  "p": "a"\n}', "is one JSON object, and no list of them"),
    "one object with a list": (
        '{"version": 1, "data": [{"p": "a"}]}',
        r"""in 'data': .* `jq -c '.\["data"\]\[\]'""",
    ),
    "a list over lines": ('{\n "data": [\n  {"p": "a"}\n ]\n}\n', "is one JSON object, with a list of them in 'data'"),
    "no objects": ("[1, 2]", r"is not JSON: none of its first 2 elements is a JSON object .*: a number, not an object"),
    "no JSON": ("prompt\na\n", "is not JSON: none of its first 2 lines is a JSON object"),
    "no rows": (" [ ] ", "the input has no rows"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_array_of_rows_is_refused(tmp_path: Path, name: str) -> None:
    content, says = BROKEN[name]
    (tmp_path / "a.json").write_text(content)
    with pytest.raises(InputError, match=says):
        read(tmp_path)


def test_lines_under_the_ending_of_the_hub_are_lines(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"p": "a"}\nbad\n{"p": "b"}\n')
    found = read(tmp_path)
    assert found.values == [{"p": "a"}, {"p": "b"}]
    assert found.rejects[1].line == 2
    assert found.rejects[1].reason.endswith("; each line must be one JSON object")


def test_an_element_that_is_bad_costs_itself_and_has_its_number(tmp_path: Path) -> None:
    """Also one with a line break in a string, which would be two lines, and one that is too long."""
    (tmp_path / "a.json").write_text(
        '[\n{"p": "a"},\n{"p": "b\nc"},\n{"p": "d"}, , {"p": "%s"}, 7, {"p": "e"},]' % ("x" * 99)
    )
    reader = JsonReader(InputFile(str(tmp_path / "a.json")), {"p": "string"})
    reader.max_row_bytes = 40
    (block,) = reader.blocks(reader.schema(1), 0, 0)
    assert block.data is not None
    assert block.data["p"].to_pylist() == ["a", "d", "e"]
    assert [(bad.row, bad.reason) for bad in block.bad] == [
        (1, "not JSON: Invalid control character at at character 9; each element must be one JSON object"),
        (3, "the element has more than 40 bytes; JSON over several lines is not JSONL, and Parquet takes longer rows"),
        (4, 'a number, not an object; write it as {"prompt": ...}'),
    ]


def test_an_array_takes_the_memory_of_a_block(tmp_path: Path) -> None:
    """No more than that of it is unpacked when its first rows are there."""
    content = json.dumps([{"p": f"{i:0999}"} for i in range(20_000)]).encode()
    pack(tmp_path / "a.json.bz2", content)
    reader = JsonReader(InputFile(str(tmp_path / "a.json.bz2")), {"p": "string"})
    with reader.text() as (lines, _):
        stream: Any = lines.raw
        lines.readline()
        assert stream._bytes <= 2 * json_format.BLOCK_BYTES
        assert len(stream._ready) <= json_format.BLOCK_BYTES
