"""Compressed files of every format: read as they are unpacked, one behind another, damaged, cut off."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from operators.formats.input_file import InputFile
from operators.formats.jsonl import JsonlReader
from operators.formats.unpack import CODECS
from operators.settings import DataSettings
from operators.sources.files import find_files
from operators.sources.read_prompts import ReadPrompts
from pipeline.api.errors import InputError
from pipeline.api.protocols import ListInbox
from pipeline.api.records import Batch
from tests.operators.formats.samples import ROWS, SUFFIXES, make, pack
from tests.operators.sources.reading import read

PACKED = [suffix for suffix in SUFFIXES if f".{suffix.rpartition('.')[2]}" in CODECS]


IN_ARCHIVES = pytest.mark.parametrize("path", PACKED, indirect=True)


@IN_ARCHIVES
def test_archives_one_after_another_in_a_file_are_one_file(path: Path) -> None:
    with InputFile(str(path)).unpacked() as (content, _):
        plain = content.read()
    middle = len(plain) // 2
    path.write_bytes(b"".join(pack(path, part) for part in (plain[:middle], plain[middle:])))
    assert read(path).values == ROWS


@pytest.mark.parametrize("name", ["rows.jsonl.gz", "rows.jsonl.bz2", "rows.jsonl.xz"])
def test_zeros_behind_an_archive_are_no_part_of_it(tmp_path: Path, name: str) -> None:
    data = make(tmp_path / name).read_bytes()
    for zeros in (1, 500, 1 << 20):
        (tmp_path / name).write_bytes(data + bytes(zeros))
        assert read(tmp_path, 7, seek=1).values == ROWS[7:]
        (tmp_path / name).write_bytes(data + data + bytes(zeros))
        assert read(tmp_path).values == ROWS * 2


@IN_ARCHIVES
@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda data: data[:-3], r"damaged or cut off near byte \d+: (Truncated|Compressed file ended)"),
        (lambda data: b"{}\n" + data, "damaged or cut off near byte .*; it begins like JSON"),
        (lambda data: data + b"?" + data, "damaged or cut off near byte "),
        (lambda data: b"", "is empty, which no (gzip|zstd|bzip2|xz) archive is"),
    ],
)
def test_an_archive_that_is_none_names_file_and_byte(path: Path, damage, says: str) -> None:
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InputError, match=rf"{path.name} (is )?.*{says}|{path.name} {says}"):
        read(path)


@pytest.mark.parametrize("name", [*(f"rows.jsonl{ending}" for ending in CODECS), "rows.csv.gz", "rows.csv.zst"])
def test_of_an_archive_that_is_cut_off_the_chunks_before_the_cut_are_whole(tmp_path: Path, name: str) -> None:
    path, noise = tmp_path / name, random.Random(0)
    texts = [f"{noise.getrandbits(800):x}" for _ in range(20_000)]
    lines = [json.dumps({"p": t}) for t in texts] if "jsonl" in name else ["p", *texts]
    packed = pack(path, "\n".join(lines).encode())
    path.write_bytes(packed[: len(packed) // 10 * 9])
    op = ReadPrompts(DataSettings(path=str(path), schema={"p": "string"}), 1000)
    op.plan()
    items = op.run(ListInbox())
    seen: list[str] = []

    def take() -> None:
        for item in items:
            seen.extend(item.data.column("p").to_pylist() if isinstance(item, Batch) else [])

    with pytest.raises(
        InputError, match=rf"{name} is damaged or cut off near byte [1-9][\d,]+: (Truncated|Compressed file ended)"
    ):
        take()
    assert len(seen) > 5000  # bzip2 has blocks of 900 kB
    assert seen == texts[: len(seen)]


@pytest.mark.parametrize("suffix", CODECS)
def test_an_archive_is_unpacked_as_it_is_read_which_is_how_far_it_is(tmp_path: Path, suffix: str) -> None:
    path, noise = tmp_path / f"rows.jsonl{suffix}", random.Random(0)
    size = len(pack(path, b"".join(b'{"p": "%x"}\n' % noise.getrandbits(40_000) for _ in range(600))))
    reader = JsonlReader(InputFile(str(path)), {"p": "string"})
    blocks = reader.blocks(reader.schema(1), 0, 0)
    next(blocks)
    assert 0 < reader.bytes_read < size / 3
    assert 0 < sum(block.rows for block in blocks) < 600
    assert reader.bytes_read == size


def test_formats_that_compress_inside_are_not_packed_again(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet.gz"
    pack(path, b"PAR1")
    with pytest.raises(InputError, match="compressed as a whole, which parquet files do inside; unpack it"):
        find_files(DataSettings(path=str(path)))
    (tmp_path / "b.jsonl").write_text('{"p": 1}\n')
    assert [file.name for file in find_files(DataSettings(path=str(tmp_path)))] == ["b.jsonl"]
