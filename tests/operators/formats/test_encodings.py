"""Text files in other encodings: each text comes back, and bytes that an encoding has not make a bad row."""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from operators.formats.encodings import Utf8Stream, encoding_of, is_encoding
from operators.formats.unpack import CODECS
from operators.settings import DataSettings
from operators.sources.read_prompts import ReadPrompts
from tests.operators.formats.samples import pack
from tests.operators.sources.reading import drain, read

FOUND = ("utf-8-sig", "utf-16", "utf-32", "utf-16-le", "utf-16-be")
"""Encodings that a file's first bytes tell."""
NAMED = ("cp1252", "latin-1", "cp437", "shift_jis", "gb18030", "utf-7", "utf-16")
ODD = "aZ 0,;|\t'\"{}[]\\éüß€“…ž漢字ーソ表😀\x80\x85\xa0\u2028"
"""Characters that are no letters somewhere: delimiters, quotes, and those whose bytes are these in another encoding."""


def as_file(kind: str, texts: list[str], encoding: str) -> bytes:
    content = io.StringIO()
    if kind == "csv":
        csv.writer(content).writerows([("text", "n"), *((text, i) for i, text in enumerate(texts))])
    else:
        lines = (
            [json.dumps({"text": t}, ensure_ascii=False) for t in texts]
            if kind == "jsonl"
            else ["lines of a file", *texts]
        )
        content.write("".join(f"{line}\n" for line in lines))
    return content.getvalue().encode(encoding)


@pytest.mark.parametrize("kind", ["csv", "jsonl", "lines"])
@settings(max_examples=40, deadline=None)
@given(data=st.data(), packed=st.sampled_from(["", *CODECS]), seek=st.integers(0, 2))
def test_each_text_comes_back_from_every_encoding(
    tmp_path_factory, kind: str, data: Any, packed: str, seek: int
) -> None:
    """Plain and packed, and from the middle on."""
    encoding = data.draw(st.sampled_from([*FOUND, *NAMED]))
    known = [odd for odd in ODD if odd.encode(encoding, "ignore").decode(encoding) == odd]
    texts = [text.strip(" \t") or "x" for text in data.draw(st.lists(st.text(known, max_size=9), max_size=9))]
    path = tmp_path_factory.mktemp(kind) / f"a{packed}"
    content = as_file(kind, texts, encoding)
    pack(path, content) if packed else path.write_bytes(content)
    keys = {"encoding": encoding if encoding in NAMED else None, "types": "text" if kind == "csv" else None}
    found = read(path, 3, seek, format=kind, empty="ok", **keys)
    texts = ["lines of a file", *texts] if kind == "lines" else texts
    assert [row["text"] for row in found.values] == texts[3 * seek :]
    assert not found.rejects


CODED = ("cp1252", "cp1253", "utf-16-le", "utf-16-be", "utf-32-be", "shift_jis", "euc_kr", "utf-7")


@settings(max_examples=200, deadline=None)
@example(data=b"\xd2\xaa", encoding="cp1253")  # a character of UTF-8, and twice none of cp1253
@given(
    data=st.binary(max_size=40),
    encoding=st.sampled_from(CODED),
)
def test_bytes_that_an_encoding_has_not_never_become_a_text(data: bytes, encoding: str) -> None:
    """They stay bytes that UTF-8 has not, wherever they stand, and all others are what Python decodes."""
    stream = io.BufferedReader(Utf8Stream(io.BytesIO(data), encoding)).read()
    try:
        text = data.decode(encoding)
        text.encode()
    except UnicodeError:
        with pytest.raises(UnicodeDecodeError):
            stream.decode()
    else:
        assert stream.decode() == text


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.txt"])
def test_a_row_that_is_not_of_its_encoding_is_a_reject_that_says_what_to_do(tmp_path: Path, name: str) -> None:
    kind = {"csv": "csv", "jsonl": "jsonl", "txt": "lines"}[name[2:]]
    (tmp_path / name).write_bytes(as_file(kind, ["gut", "sch\xf6n", "end"], "cp1252").replace(b"end", b"\x81"))
    for encoding, bad, says in (
        (None, ["gut"], "is not UTF-8: .*; data.encoding=cp1252 reads texts of Windows and Latin-1, or"),
        ("cp1252", ["gut", "sch\xf6n"], "is not CP1252: .*; name another encoding, or convert the file to UTF-8"),
        ("latin-1", ["gut", "sch\xf6n", "\x81"], ""),
    ):
        found = read(tmp_path / name, format=kind, encoding=encoding)
        assert [row["text"] for row in found.values][-len(bad) :] == bad
        assert len(found.values) + len(found.rejects) == 3 + (kind == "lines")
        for reject in found.rejects.values():
            assert re.search(says, reject.reason)
        assert encoding != "cp1252" or "\\x81" in str(found.rejects[max(found.rejects)].record)


def test_names_are_those_of_encodings_of_texts() -> None:
    for name in ("cp1252", "windows-1252", "latin-1", "ISO-8859-15", "UTF-16", "utf8", "mac_roman", "cp037"):
        assert is_encoding(name), name
    for name in ("base64", "rot13", "zlib", "idna", "punycode", "unicode_escape", "undefined", "ansi", "", "a\0"):
        assert not is_encoding(name), name


def test_a_mark_counts_before_a_name() -> None:
    assert encoding_of(codecs.BOM_UTF8 + b"a", "cp1252") == ("utf-8", False)
    assert encoding_of(codecs.BOM_UTF16_BE + b"\0a", "cp1252") == ("utf-16", False)


@pytest.mark.parametrize("text", ["id,Frage\n1,ä€😀\n", "äöüß\n", "Жили\n", "質問\n何ですか\n", '[{"a": "😀😀"}]'])
def test_utf_16_without_a_mark_is_known_and_binary_data_are_not_taken_for_it(tmp_path: Path, text: str) -> None:
    for order in ("utf-16-le", "utf-16-be"):
        assert encoding_of(text.encode(order), None) == (order, True)
        (tmp_path / "a.txt").write_bytes(text.encode(order))
        op = ReadPrompts(DataSettings(path=str(tmp_path), format="lines"), 10)
        assert [row["text"] for row in drain(op, 10).values] == text.splitlines()
        assert op._warnings == [
            f"{tmp_path}/a.txt: read as {order}, without a mark (BOM) that says so; data.encoding sets it"
        ]
    for data in (bytes(99), b"a\0b\n", b'{"p": "x"}\0{"p": "y"}\n', struct.pack("<9i", *range(9)), b"PAR1\0\0\0\0"):
        assert encoding_of(data, None) == ("utf-8", False)
