"""Reading of pictures: from bytes or a file to RGB pixels, within a limit, whatever the file holds.

Pillow decodes, with the formats below and no others. The header is looked at first: a file that is larger than its
pixels could need, or a picture with more pixels than allowed, is refused before memory is taken for it. At most some
16 bytes a pixel are in use while a picture is decoded. Color profiles (ICC) are not applied, as in training.
"""

from __future__ import annotations

import io
import logging
import re
import stat
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from operators.images.kinds import HEAD, not_a_picture
from pipeline.api.errors import ConfigError, install
from pipeline.api.machine_errors import of_machine

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF")
"""Formats that are read, as Pillow calls them. Other decoders of Pillow never see a file."""
LIMIT = "data.image_max_pixels"
"""The key of the limit that `most_pixels` is."""
BYTES_PER_PIXEL, METADATA = 8, 16 << 20
"""A file may be larger than its pixels at 16 bits and four channels by so many bytes."""
_ORIENTATION, _TILE_WIDTH, _TILE_LENGTH = 274, 322, 323
_BITS, _COMPRESSION, _PHOTOMETRIC = 258, 259, 262
"""Tags of EXIF and TIFF."""
_WHITE_IS_ZERO, _FAX_OR_OLD_JPEG = 0, (2, 3, 4, 6)
"""Values of _PHOTOMETRIC and _COMPRESSION."""
MOST_SCANS = 100
"""Scans of a JPEG that is read; programs write some ten. Each is decoded over all pixels, whatever its length."""
_SCAN, _END = b"\xda", b"\xd9"
_MARKER = re.compile(rb"\xff([\xc0-\xcf\xd9-\xfe])")
"""A marker of a JPEG. All but _END stand before a segment, which says its length; those that are not here do not, and
libjpeg passes over them."""
_LARGE_TILE = 1 << 22
_LONGEST_NAME = 512
"""Characters of a path in a message."""
_HAS_EXIF = {"exif", "Raw profile type exif", "XML:com.adobe.xmp"}
_SAVE_AGAIN = "fetch it again, or open it in another program and save it anew"

T = TypeVar("T")


class BadImage(ValueError):
    """A picture that cannot be read. The message names it, says what is wrong and what to do: a reject's reason."""


def read_image(image: Mapping[str, Any], most_pixels: int) -> NDArray[np.uint8]:
    """Decode a picture. Several threads may do so at a time.

    It is turned as its EXIF orientation says. What is transparent is put on white, 12 and 16 bits are scaled to 8 (the
    higher 8 are kept), gray, palettes and CMYK become RGB.

    Args:
        image: `bytes`, the file's content, or, where that is None, `path`, a local file.
        most_pixels: the largest number of pixels that it may have.

    Returns:
        RGB: uint8 [height, width, 3].

    Raises:
        BadImage: it is missing, none of FORMATS, too large, damaged, cut off or an animation.
        OSError: the machine cannot read it (see `pipeline.api.machine_errors`).
    """
    return _with_opened(image, most_pixels, _pixels)


def image_size(image: Mapping[str, Any], most_pixels: int) -> tuple[int, int]:
    """Return (width, height) of what `read_image` gives, from the header alone. Takes and raises the same."""
    return _with_opened(image, most_pixels, _size)


def name_of(image: Mapping[str, Any]) -> str:
    """Return the path or URL of a picture in quotes, its end alone where it is long; `the picture` without one."""
    path = image.get("path")
    if not path:
        return "the picture"
    return repr(path if len(path) <= _LONGEST_NAME else f"...{path[-_LONGEST_NAME:]}")


def named(image: Mapping[str, Any], error: ValueError) -> str:
    """Return what `error` says of a picture, with its path or URL before it where it does not say that itself."""
    is_named = not image.get("path") or str(error).startswith(name_of(image))
    return str(error) if is_named else f"{name_of(image)}: {error}"


def require() -> None:
    """Raise ConfigError if Pillow is not installed."""
    if find_spec("PIL") is None:
        raise ConfigError(f"reading pictures needs Pillow: {install('images')}")


@cache
def pillow() -> Any:
    """Return PIL.Image with the decoders of FORMATS, and keep what it warns of damaged files from the terminal. Raises
    ConfigError if Pillow is not installed."""
    require()
    for name in ("Jpeg", "Mpo", "Png", "WebP", "Bmp", "Gif", "Tiff"):
        import_module(f"PIL.{name}ImagePlugin")
    warnings.filterwarnings("ignore", module=r"PIL\.")
    logging.getLogger("PIL").setLevel(logging.CRITICAL + 1)
    return import_module("PIL.Image")


def _with_opened(image: Mapping[str, Any], most_pixels: int, use: Callable[[Image], T]) -> T:
    """Open a picture, check what its header says, and return what `use` makes of it."""
    pil = pillow()
    name = name_of(image)
    try:
        with _source(image, most_pixels) as source:
            head = source.read(HEAD)
            if not head:
                raise BadImage("is empty (0 bytes); fetch it again")
            with pil.open(source, formats=FORMATS) as picture:
                _check_header(picture, most_pixels)
                return use(picture)
    except BadImage as error:  # below they say all but the name
        raise BadImage(f"{name} {error}") from None
    except pil.UnidentifiedImageError:
        raise BadImage(f"{name} is {not_a_picture(head)}") from None
    except (pil.DecompressionBombError, pil.DecompressionBombWarning):
        what = f"{LIMIT}={most_pixels} allows, or than Pillow reads (some 178 million)"
        raise BadImage(f"{name} has more pixels than {what}; make it smaller") from None
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None and of_machine(error):
            raise
        if of_machine(error):  # Pillow was asked for absurd sizes, unless what a picture needs is not there:
            bytearray(BYTES_PER_PIXEL * most_pixels)  # then this raises MemoryError
        what = str(error) or type(error).__name__
        raise BadImage(f"{name} is damaged or cut off ({what}); {_SAVE_AGAIN}") from None


@contextmanager
def _source(image: Mapping[str, Any], most_pixels: int) -> Iterator[IO[bytes]]:
    """Open the bytes or the file of a picture. Raises BadImage if there is none, or more than pixels could need."""
    content, path = image.get("bytes"), image.get("path")
    if content is not None:
        _check_length(len(content), most_pixels)
        yield io.BytesIO(content)
        return
    if not path:
        raise BadImage("has neither bytes nor a path")
    where = Path(path)
    try:
        status = where.stat()
        if not stat.S_ISREG(status.st_mode):
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
            raise BadImage(f"is {what}; give the path of a picture's file")
        _check_length(status.st_size, most_pixels)
        file = where.open("rb")
    except (OSError, ValueError) as error:
        if isinstance(error, BadImage) or of_machine(error):
            raise
        if isinstance(error, FileNotFoundError):
            what = "is a link to a file that does not exist" if where.is_symlink() else "does not exist"
            raise BadImage(f"{what}; see data.image_root") from None
        raise BadImage(f"cannot be opened: {getattr(error, 'strerror', None) or error}") from None
    with file:
        yield file


def _check_length(length: int, most_pixels: int) -> None:
    if length > BYTES_PER_PIXEL * most_pixels + METADATA:
        raise BadImage(
            f"has {length:,} bytes, more than a picture of {LIMIT}={most_pixels} needs; make it smaller, or set the"
            " key higher"
        )


def _check_header(picture: Image, most_pixels: int) -> None:
    """Raise BadImage for more pixels than allowed and for more than one frame."""
    width, height = picture.size
    if width * height > most_pixels:
        raise BadImage(
            f"has {width} x {height} = {width * height} pixels, more than {LIMIT}={most_pixels}; make it smaller, or"
            " set the key higher"
        )
    # Tiles are decoded whole, however little of them is the picture.
    tags = getattr(picture, "tag_v2", {})
    if tags.get(_TILE_WIDTH, 0) * tags.get(_TILE_LENGTH, 0) > max(most_pixels, _LARGE_TILE):
        raise BadImage(f"has tiles of more than {LIMIT}={most_pixels} pixels (TIFF); save it anew")
    # A photo of a phone may be an MPO: a JPEG, and behind it a preview or a map of brightness.
    if getattr(picture, "is_animated", False) and picture.format != "MPO":
        several = "has several pages" if picture.format == "TIFF" else "is an animation"
        raise BadImage(f"{several} ({picture.format}); give each frame that matters as a picture of its own")


def _turn(picture: Image) -> Any:
    """Return how to transpose a picture so that it is upright, by what its header says; None if it is."""
    # Pillow turns a TIFF itself. To look for the EXIF of a PNG that comes after the pixels it would decode them.
    if picture.format == "TIFF" or (picture.format == "PNG" and not _HAS_EXIF & picture.info.keys()):
        return None
    try:
        orientation = picture.getexif().get(_ORIENTATION, 1)
    except Exception:  # of metadata that is damaged; the pixels need not be
        return None
    turn = pillow().Transpose
    return {
        2: turn.FLIP_LEFT_RIGHT,
        3: turn.ROTATE_180,
        4: turn.FLIP_TOP_BOTTOM,
        5: turn.TRANSPOSE,
        6: turn.ROTATE_270,
        7: turn.TRANSVERSE,
        8: turn.ROTATE_90,
    }.get(orientation)


def _size(picture: Image) -> tuple[int, int]:
    turn, way = _turn(picture), pillow().Transpose
    lies = turn in (way.TRANSPOSE, way.ROTATE_270, way.TRANSVERSE, way.ROTATE_90)
    return (picture.height, picture.width) if lies else picture.size


def _pixels(picture: Image) -> NDArray[np.uint8]:
    tags = getattr(picture, "tag_v2", None)
    # Pillow takes 0 for white then, other programs for black; of a fax all do what Pillow does.
    if tags is not None and _PHOTOMETRIC not in tags and tags.get(_COMPRESSION) not in _FAX_OR_OLD_JPEG:
        raise BadImage("is a TIFF without PhotometricInterpretation: 0 may be black or white; save it anew")
    if picture.format in ("JPEG", "MPO"):
        _check_scans(picture)
    _scale_transparency(picture)
    turn = _turn(picture)
    picture.load()
    upright: Image = picture if turn is None else picture.transpose(turn)
    if upright.mode in ("I", "F"):
        kind = "whole numbers of 32 bits or with a sign" if upright.mode == "I" else "floating-point numbers"
        raise BadImage(f"has {kind} as pixels, whose range is not known; save it with 8 or 16 bits a channel")
    if upright.mode.startswith("I;16"):
        return _of_gray_16(np.asarray(upright), tags or {}, picture.info.get("transparency"))
    if upright.has_transparency_data:
        upright = upright.convert("RGBA")
        white = pillow().new("RGB", upright.size, "white")
        white.paste(upright, mask=upright.getchannel("A"))
        upright = white
    return np.asarray(upright.convert("RGB"))


def _check_scans(picture: Image) -> None:
    """Raise BadImage for a JPEG of more than MOST_SCANS scans."""
    file: Any = picture.fp  # type: ignore[attr-defined]
    file.seek(0)
    last, at_most = b"", 0
    while block := file.read(1 << 20):
        at_most += (last + block).count(b"\xff" + _SCAN)
        last = block[-1:]
    if at_most > MOST_SCANS:  # some may be of a preview, or of what comes after the picture
        file.seek(0)
        if _scans(file.read()) > MOST_SCANS:
            raise BadImage(f"is a JPEG of more than {MOST_SCANS} scans, which takes minutes to read; save it anew")


def _scans(content: bytes) -> int:
    """Count the scans of a JPEG, up to the first above MOST_SCANS."""
    count, place = 0, 0
    while count <= MOST_SCANS and (found := _MARKER.search(content, place)) and found[1] != _END:
        count += found[1] == _SCAN
        place = found.end() + int.from_bytes(content[found.end() : found.end() + 2])
    return count


def _scale_transparency(picture: Image) -> None:
    """Bring the one color of a PNG that is transparent (tRNS) to 8 bits, as the pixels are, which Pillow does not."""
    clear, tiles = picture.info.get("transparency"), getattr(picture, "tile", ())
    form = tiles[0][3] if tiles else None
    if picture.format != "PNG" or clear is None:
        return
    if form in ("L;2", "L;4"):
        picture.info["transparency"] = clear * (85 if form == "L;2" else 17)
    if form == "RGB;16B":  # of the pixels Pillow keeps 8 bits, by which they are not told from similar ones
        raise BadImage("has 16 bits a channel and a color that is transparent (tRNS); save it with an alpha channel")


def _of_gray_16(values: NDArray[Any], tags: Mapping[int, Any], clear: int | None) -> NDArray[np.uint8]:
    """Make RGB of gray of 12 or 16 bits. `tags`: of a TIFF; `clear`: the value that is transparent."""
    bits = tags.get(_BITS, 16)
    gray = (values >> ((bits if isinstance(bits, int) else bits[0]) - 8)).astype(np.uint8)
    if tags.get(_PHOTOMETRIC) == _WHITE_IS_ZERO:
        gray = ~gray
    if clear is not None:
        gray[values == clear] = 255
    return np.repeat(gray[:, :, None], 3, axis=2)
