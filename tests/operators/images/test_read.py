"""Pictures are read as they look, and what is no picture, too large or broken is refused by name."""

from __future__ import annotations

import os
import random
import struct
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from operators.images.read import BadImage, image_size, read_image
from tests.operators.images.files import MOST, encoded, pixels, png, tagged_tiff

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::PIL.Image.DecompressionBombWarning")

PICTURE = pixels(40, 30)
LOSSLESS = {"PNG": {}, "BMP": {}, "TIFF": {}, "WEBP": {"lossless": True}}
FILES = {
    **{kind: encoded(PICTURE, kind, **options) for kind, options in LOSSLESS.items()},
    "JPEG": encoded(PICTURE, "JPEG", quality=95),
    "GIF": encoded(Image.fromarray(PICTURE).quantize(256), "GIF"),
}


def frames() -> list[Image.Image]:
    """Make pictures anew: one that was saved keeps how."""
    return [Image.fromarray(pixels(16, 12, seed)) for seed in range(3)]


def of_bytes(data: bytes, path: str | None = None) -> dict[str, object]:
    return {"bytes": data, "path": path}


def read(data: bytes, most: int = MOST) -> np.ndarray:
    return read_image(of_bytes(data), most)


def refused(data: bytes, most: int = MOST) -> str:
    """Return why a picture is not read."""
    with pytest.raises(BadImage) as why:
        read(data, most)
    return str(why.value)


@pytest.mark.parametrize("kind", FILES)
def test_a_picture_is_what_it_was(kind, tmp_path):
    got = read(FILES[kind])
    assert got.dtype == np.uint8
    if kind in LOSSLESS:
        assert np.array_equal(got, PICTURE)
    else:
        assert np.abs(got.astype(int) - PICTURE).mean() < 12
    file = tmp_path / "picture.txt"  # the content counts, not the ending
    file.write_bytes(FILES[kind])
    from_file = {"bytes": None, "path": str(file)}
    assert np.array_equal(read_image(from_file, MOST), got)
    assert image_size(from_file, MOST) == (40, 30)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_is_turned_as_it_says(kind, orientation):
    """Each of the eight files shows the same once turned: as it was, up to what the format loses."""
    undo = [None, 0, 3, 1, 5, 2, 6, 4][orientation - 1]  # the file has it transposed the other way
    stored = Image.fromarray(PICTURE)
    stored = stored if undo is None else stored.transpose(Image.Transpose(undo))
    exif = Image.Exif()
    exif[274] = orientation
    data = encoded(stored, kind, exif=exif, **({"lossless": True} if kind == "WEBP" else {}))
    got = read(data)
    assert image_size(of_bytes(data), MOST) == (got.shape[1], got.shape[0]) == (40, 30)
    assert np.abs(got.astype(int) - PICTURE).mean() < (12 if kind == "JPEG" else 0.001)


def test_what_is_transparent_is_white():
    clear, half = (255, 0, 0, 0), (0, 0, 0, 128)
    row = Image.new("RGBA", (2, 1))
    row.putdata([clear, half])
    assert read(encoded(row, "PNG")).tolist() == [[[255, 255, 255], [127, 127, 127]]]
    gray = Image.new("LA", (1, 1), (10, 0))
    assert read(encoded(gray, "PNG")).tolist() == [[[255, 255, 255]]]
    palette = Image.new("P", (1, 1), 1)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    assert read(encoded(palette, "PNG", transparency=1)).tolist() == [[[255, 255, 255]]]
    assert read(encoded(palette, "PNG")).tolist() == [[[255, 0, 0]]]


def test_sixteen_bits_are_scaled_to_eight_not_clipped():
    values = np.array([[0, 255, 256, 32768, 65535]], np.uint16)
    want = [[0, 0, 1, 128, 255]]
    for kind in ("PNG", "TIFF"):
        assert read(encoded(Image.fromarray(values), kind))[:, :, 0].tolist() == want, kind
    rows = b"\0" + b"".join(struct.pack(">HHH", v, v, v) for v in values[0].tolist())
    assert read(png(5, 1, 16, 2, rows))[:, :, 2].tolist() == want, "RGB of 16 bits"


def test_pixels_of_an_unknown_range_are_refused():
    assert "floating-point numbers" in refused(encoded(Image.new("F", (4, 4), 0.5), "TIFF"))
    assert "32 bits" in refused(encoded(Image.new("I", (4, 4), 70000), "TIFF"))


def gray_tiff(bits: int, data: bytes, photometric: int | None) -> bytes:
    """Write a TIFF of gray, of 2 x 1 pixels."""
    tags = {256: (3, 2), 257: (3, 1), 258: (3, bits), 259: (3, 1), 273: (4, 8), 277: (3, 1), 278: (3, 1)}
    tags[279] = (4, len(data))
    return tagged_tiff(tags if photometric is None else {**tags, 262: (3, photometric)}, data)


def test_gray_of_a_tiff_is_as_its_tags_say():
    twelve, sixteen = b"\xff\xf0\x10\0", struct.pack("<HH", 0xFFFF, 0x0100)
    assert read(gray_tiff(12, twelve, 1))[0].tolist() == [[255] * 3, [1] * 3]
    assert read(gray_tiff(16, sixteen, 1))[0].tolist() == [[255] * 3, [1] * 3]
    assert read(gray_tiff(16, sixteen, 0))[0].tolist() == [[0] * 3, [254] * 3]
    assert read(gray_tiff(8, b"\xff\x01", 0))[0].tolist() == [[0] * 3, [254] * 3]
    for bits, data in ((16, sixteen), (8, b"\xff\x01")):
        assert "0 may be black or white" in refused(gray_tiff(bits, data, None))


def test_the_transparent_color_of_a_png_is_white_whatever_its_bits():
    def with_clear(depth: int, color: int, row: bytes, clear: bytes) -> bytes:
        chunk = struct.pack(">I", len(clear)) + b"tRNS" + clear + struct.pack(">I", zlib.crc32(b"tRNS" + clear))
        return png(2, 1, depth, color, b"\0" + row, chunk)

    for depth, row in ((2, b"\x60"), (4, b"\x12"), (8, b"\1\2"), (16, b"\0\1\0\2")):
        other = {2: 170, 4: 34, 8: 2, 16: 0}[depth]
        assert read(with_clear(depth, 0, row, b"\0\1"))[0].tolist() == [[255] * 3, [other] * 3], depth
    assert read(with_clear(8, 2, b"\1\1\1\2\2\2", b"\0\1" * 3))[0].tolist() == [[255] * 3, [2] * 3]
    assert "save it with an alpha channel" in refused(with_clear(16, 2, b"\0\1" * 6, b"\0\1" * 3))


def test_ink_becomes_light():
    got = read(encoded(Image.new("CMYK", (8, 8), (0, 255, 255, 0)), "JPEG"))[4, 4].tolist()
    assert got[0] > 240, "cyan 0, magenta and yellow full: red"
    assert max(got[1:]) < 15


def test_a_photo_with_a_preview_behind_it_is_the_photo():
    first, *others = frames()
    data = encoded(first, "MPO", save_all=True, append_images=others, quality=95)
    assert np.abs(read(data).astype(int) - np.asarray(first)).mean() < 12


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WEBP", "TIFF"])
def test_more_than_one_frame_is_refused_by_name(kind):
    first, *others = frames()
    why = refused(encoded(first, kind, save_all=True, append_images=others))
    assert ("several pages (TIFF)" if kind == "TIFF" else f"is an animation ({kind})") in why
    assert "a picture of its own" in why


NOT_PICTURES = {
    "an SVG drawing": b"<?xml version='1.0'?>\n<!-- made by -->\n<svg xmlns='http://www.w3.org/2000/svg'/>",
    "an HTML page": b"<!DOCTYPE html><html><body>404</body></html>",
    "a PDF": b"%PDF-1.7\n",
    "a HEIC picture": b"\0\0\0\x18ftypheic\0\0\0\0",
    "an AVIF picture": b"\0\0\0\x18ftypavif\0\0\0\0",
    "a video": b"\0\0\0\x18ftypisom\0\0\0\0",
    "audio is not read": b"ID3\4\0\0\0",
    "`git lfs pull`": b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n",
    "JSON text": b'{"error": "not found"}',
    "begins as a PNG": b"\x89PNG\r\n\x1a\n" + b"\0" * 30,
    "no picture in a format that is read": b"hello",
    "(0 bytes)": b"",
}


@pytest.mark.parametrize("what", NOT_PICTURES)
def test_what_is_no_picture_is_named(what):
    assert what in refused(NOT_PICTURES[what])


def test_a_file_that_is_not_there_is_named(tmp_path):
    link, pipe = tmp_path / "link.png", tmp_path / "pipe.png"
    link.symlink_to(tmp_path / "gone.png")
    os.mkfifo(pipe)
    for path, why in [
        (tmp_path / "none.png", "does not exist"),
        (link, "is a link to a file that does not exist"),
        (tmp_path, "is a folder"),
        (pipe, "is no regular file"),
        (tmp_path / ("n" * 300), "cannot be opened"),
        ("a\0b", "cannot be opened"),
    ]:
        with pytest.raises(BadImage, match=why) as error:
            read_image({"bytes": None, "path": str(path)}, MOST)
        assert repr(str(path)) in str(error.value)
    with pytest.raises(BadImage, match="neither bytes nor a path"):
        read_image({"bytes": None, "path": None}, MOST)


@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_is_cut_off_is_refused(kind):
    data = FILES[kind]
    for length in (20, len(data) // 4, len(data) // 2, len(data) * 9 // 10):
        assert "save" in refused(data[:length]), length


def test_the_limit_is_about_pixels_and_names_its_key():
    data = encoded(PICTURE, "PNG")
    assert read(data, 1200).shape == (30, 40, 3)
    assert "has 40 x 30 = 1200 pixels, more than data.image_max_pixels=1199" in refused(data, 1199)
    with pytest.raises(BadImage, match="image_max_pixels"):
        image_size(of_bytes(data), 1199)


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


def test_threads_read_at_the_same_time():
    pictures = [of_bytes(data) for data in (*FILES.values(), *NOT_PICTURES.values())] * 4

    def one(image: dict[str, object]) -> bytes | str:
        try:
            return read_image(image, MOST).tobytes()
        except BadImage as error:
            return str(error)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(one, pictures)) == [one(image) for image in pictures]
