"""Files that are cut off, damaged or made to take memory or time cost their row, and no more."""

from __future__ import annotations

import random
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from operators.images.read import BadImage, image_size, read_image
from tests.operators.images.files import MOST, encoded, png, tagged_tiff
from tests.operators.images.small_pictures import FILES, PICTURE, frames, of_bytes, read, refused

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::PIL.Image.DecompressionBombWarning")


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_cut_off_is_refused(kind):
    data = FILES[kind]
    for length in (20, len(data) // 4, len(data) // 2, len(data) * 9 // 10):
        assert "save" in refused(data[:length]), length


def bombs() -> dict[str, bytes]:
    zeros = zlib.compress(b"\0" * (200 << 20), 9)
    ten = {256: (4, 10), 257: (4, 10), 258: (3, 8), 259: (3, 8), 262: (3, 1), 277: (3, 1)}
    tiles = {322: (4, 20480), 323: (4, 10240), 324: (4, 8), 325: (4, len(zeros))}
    text = b"key\0\0" + zeros
    chunk = struct.pack(">I", len(text)) + b"zTXt" + text + struct.pack(">I", zlib.crc32(b"zTXt" + text))
    canvas = b"VP8X" + struct.pack("<I", 10) + b"\0\0\0\0" + b"\xfe\x3f\0" * 2
    return {
        "20000 x 20000 pixels": png(20000, 20000, 1, 0),
        "below Pillow's own limit": png(13000, 13000, 8, 6),
        "a tile of 200 MiB": tagged_tiff({**ten, **tiles}, zeros),
        "a text of 200 MiB": png(10, 10, 8, 0, b"\0" * 110, chunk),
        "a canvas of 2 GiB": b"RIFF" + struct.pack("<I", 30) + b"WEBP" + canvas,
        "200 MiB behind a picture": encoded(PICTURE, "BMP") + bytes(200 << 20),
    }


def test_bombs_are_refused_before_they_take_memory(tmp_path):
    """Each in a process that may not have 100 MiB more than it has with Pillow."""
    for name, data in bombs().items():
        (tmp_path / name).write_bytes(data)
    script = f"""
import resource, sys
from pathlib import Path
from operators.images.read import BadImage, image_size, read_image
read_image({{"bytes": Path({str(tmp_path / "small")!r}).read_bytes(), "path": None}}, {MOST})
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for file in sorted(Path({str(tmp_path)!r}).iterdir()):
    try:
        print(file.name, read_image({{"bytes": None, "path": str(file)}}, {MOST}).shape)
    except BadImage as error:
        print(file.name, "refused")
print("MiB", (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    (tmp_path / "small").write_bytes(FILES["TIFF"])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line for line in lines[:-1] if not line.endswith("refused")] == ["small (30, 40, 3)"]
    assert int(lines[-1].split()[1]) < 40


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Change some bytes, most of them near the beginning, where headers are; or cut and join."""
    out = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 5, 20])):
        place = int(len(out) * rng.random() ** rng.choice([1, 4]))
        out[place] = rng.choice([0, 255, 127, 128, rng.randrange(256)])
    if rng.random() < 0.2:
        start, end = sorted(rng.randrange(len(out)) for _ in range(2))
        del out[start:end]
    return bytes(out)


@pytest.mark.parametrize("kind", [*FILES, "APNG", "EXIF"])
def test_damaged_files_are_pixels_or_a_bad_image(kind):
    exif = Image.Exif()
    exif[274], exif[0x010E] = 6, "words"
    data = {
        **FILES,
        "APNG": encoded(frames()[0], "PNG", save_all=True, append_images=frames()[1:]),
        "EXIF": encoded(PICTURE, "JPEG", exif=exif),
    }[kind]
    rng = random.Random(kind)
    for _ in range(100):
        hostile = of_bytes(damaged(data, rng))
        try:
            got = read_image(hostile, MOST)
        except BadImage:
            continue
        assert got.dtype == np.uint8
        assert image_size(hostile, MOST) == (got.shape[1], got.shape[0])


def test_a_jpeg_of_very_many_scans_is_refused_before_it_is_decoded():
    """Scans alone count: not what a comment has, nor what comes after the picture."""
    data = encoded(PICTURE, "JPEG", progressive=True, comment=b"\xff\xda" * 101)
    scan = data[data.rindex(b"\xff\xda") : -2]
    assert read(data[:-2] + 80 * scan + data[-2:] + b"\xff\xda" * 101).shape == (30, 40, 3)
    for hidden in (b"", b"\xff\x02\xff\xff", b"\xff\xd0\xff\xff"):  # in libjpeg's eyes no segment with a length
        assert "is a JPEG of more than 100 scans" in refused(data[:-2] + hidden + 100 * scan[:20] + data[-2:])
