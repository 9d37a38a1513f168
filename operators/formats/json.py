"""JSON files: one array of objects, or lines of them, as datasets of the Hub have under the same ending.

An array becomes lines as it is read, an element each, in blocks of some bytes: so it takes no more memory than JSONL,
and its values, types and rejects are those of JSONL. An element is what stands between commas of the array, whether it
is JSON or not; its number stands where rejects have a line's.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa

from operators.formats.format import Format
from operators.formats.input_file import BOM, BUFFER_BYTES
from operators.formats.jsonl import JsonlReader
from operators.formats.lines import JSON_SPACE
from pipeline.api.errors import InputError

BLOCK_BYTES = 1 << 18
NEWLINE, BLANK, VERTICAL_TAB = 10, 32, 11
_STEPS = np.zeros(256, np.int64)
_STEPS[list(b"[{")], _STEPS[list(b"]}")] = 1, -1
_IS_MARK = bytes(byte in b'[{]},"\n' for byte in range(256))
_LIST_IN_IT = re.compile(r'"((?:[^"\\]|\\.)*)"\s*:\s*\[\s*\{')


class JsonReader(JsonlReader):
    """Reads a JSON file: an array of which each element is a row, or JSONL."""

    noun = "JSON"
    count_up_to_bytes = 1 << 27

    @contextlib.contextmanager
    def text(self) -> Iterator[tuple[io.BufferedReader, io.BufferedReader]]:
        """Open the text as lines of which each is a row, and the raw file."""
        with super().text() as (content, raw):
            if content.peek().removeprefix(BOM).lstrip(JSON_SPACE).startswith(b"["):
                self.unit = "element"
                content = io.BufferedReader(_Elements(content, str(self.file)), BUFFER_BYTES)
            yield content, raw

    def schema(self, sample_rows: int) -> pa.Schema:
        with self.text() as (content, _):
            if self.unit == "line":
                self._refuse_one_object(content)
        return super().schema(sample_rows)

    def _refuse_one_object(self, content: io.BufferedReader) -> None:
        """Raise InputError if the file is one JSON object, which may stand for a row or have a list of them in it."""
        head = content.peek()
        lines = (text for _, text, why in self.rows(content) if why is None)
        first, is_alone = next(lines, b"").decode(errors="replace"), next(lines, None) is None
        if not first.startswith("{"):
            return
        try:
            json.loads(first)
        except json.JSONDecodeError as error:
            is_alone = error.pos >= len(first)  # cut off by the line's end: an object over several lines
        except (ValueError, RecursionError):
            return
        if not is_alone:
            return
        if found := _LIST_IN_IT.search(head.decode(errors="replace")):
            what, path = f"with a list of them in '{found[1]}'", f'.["{found[1]}"][]'
        else:
            what, path = "and no list of them; for one row write data.format=jsonl if it is one line, or", "."
        raise InputError(f"{self.file} is one JSON object, {what}: make lines with `jq -c '{path}' FILE > rows.jsonl`")


class _Elements(io.RawIOBase):
    """The elements of the JSON array in `content`, one a line: without its brackets, commas and the white space around
    elements; a line break within one becomes a blank, and in a string, where JSON has none, a vertical tab, which JSON
    has no more."""

    def __init__(self, content: BinaryIO, name: str) -> None:
        super().__init__()
        self._content = content
        self._name = name
        self._ready = memoryview(b"")
        self._bytes, self._depth = 0, 0
        self._in_string = self._is_escaped = self._has_ended = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._ready:
            text = self._content.read(BLOCK_BYTES)
            if not text and self._has_ended:
                return 0
            if not text:
                raise InputError(
                    f"{self._name} is cut off: its JSON array has no end after {self._bytes:,} bytes; make or fetch it"
                    " again and run the same command"
                )
            self._ready = memoryview(self._lines(text))
            self._bytes += len(text)
        size = min(len(buffer), len(self._ready))
        buffer[:size], self._ready = self._ready[:size], self._ready[size:]
        return size

    def _lines(self, text: bytes) -> bytes:
        """Return the next text of the lines, which may end within one."""
        if self._has_ended:
            self._refuse(text, 0)
            return b""
        if not self._depth and b"[" not in text:  # a mark, and white space
            return b""
        # Without escapes each quote begins or ends a string.
        plain = b"_" + text[1:] if self._is_escaped else text
        self._is_escaped = (len(plain) - len(plain.rstrip(b"\\"))) % 2 == 1
        plain = plain.replace(b"\\\\", b"__").replace(b'\\"', b"__")
        places = np.flatnonzero(np.frombuffer(plain.translate(_IS_MARK), np.bool_))
        marks = np.frombuffer(plain, np.uint8)[places]
        in_string = (np.cumsum(marks == ord('"')) + self._in_string) % 2 == 1
        steps = np.where(in_string, 0, _STEPS[marks])
        depth = np.cumsum(steps) + self._depth
        was_within = self._depth > 1 or self._in_string
        begin = 0 if self._depth else text.index(b"[") + 1
        ends = places[(depth == 0) & (steps < 0)].tolist()[:1]
        cuts = places[(marks == ord(",")) & ~in_string & (depth == 1)].tolist() + ends
        if len(places):
            self._in_string, self._depth = bool(in_string[-1]), int(depth[-1])
        if len(breaks := places[marks == NEWLINE]):
            changed = np.frombuffer(text, np.uint8).copy()
            changed[breaks] = np.where(in_string[marks == NEWLINE], VERTICAL_TAB, BLANK)
            text = changed.tobytes()
        if ends:
            self._refuse(text, ends[0] + 1)
            self._has_ended = True
        lines = []
        for cut in cuts:
            line = text[begin:cut].rstrip(JSON_SPACE)
            lines.append(line if was_within else line.lstrip(JSON_SPACE))
            was_within, begin = False, cut + 1
        line = b"" if self._has_ended else text[begin:]
        lines.append(line if was_within else line.lstrip(JSON_SPACE))
        return b"\n".join(lines)

    def _refuse(self, text: bytes, start: int) -> None:
        """Raise InputError if there is more than white space in `text` from `start` on, behind the array."""
        if rest := text[start:].strip(JSON_SPACE):
            at = self._bytes + text.index(rest[:1], start) + 1
            raise InputError(
                f"{self._name} has text behind its JSON array, from byte {at:,} on: {rest[:40]!r}; where it is several"
                " arrays, or one that is closed too early, mend it, or make lines of it with `jq -c '.[]'`"
            )


JSON = Format("json", JsonReader, (".json",), packed=True, alone=True, hub="json")
"""Read only; `datasets` has one name for it and for JSONL."""
