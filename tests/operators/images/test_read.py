"""Pictures are read as they look, and what is no picture, too large or broken is refused by name."""

from __future__ import annotations

import os
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from operators.images.read import BadImage, image_size, read_image
from tests.operators.images.files import MOST, encoded, png, tagged_tiff
from tests.operators.images.small_pictures import FILES, LOSSLESS, PICTURE, frames, of_bytes, read, refused

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::PIL.Image.DecompressionBombWarning")


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


def test_the_limit_is_about_pixels_and_names_its_key():
    data = encoded(PICTURE, "PNG")
    assert read(data, 1200).shape == (30, 40, 3)
    assert "has 40 x 30 = 1200 pixels, more than data.image_max_pixels=1199" in refused(data, 1199)
    with pytest.raises(BadImage, match="image_max_pixels"):
        image_size(of_bytes(data), 1199)


def test_threads_read_at_the_same_time():
    pictures = [of_bytes(data) for data in (*FILES.values(), *NOT_PICTURES.values())] * 4

    def one(image: dict[str, object]) -> bytes | str:
        try:
            return read_image(image, MOST).tobytes()
        except BadImage as error:
            return str(error)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(one, pictures)) == [one(image) for image in pictures]
