"""Names what a file is that is no picture, by its first bytes, for the reason of its reject."""

from __future__ import annotations

import re

HEAD = 512
"""Bytes of a file that are looked at."""

_SAVE = "save it as PNG or JPEG"
_FETCH = "fetch the picture again, if this is what a server answered"
_FRAMES = "videos are not read; make a picture of each frame that matters (PNG, JPEG), as ffmpeg does"
_MARKUP = rb"(\xef\xbb\xbf)?\s*(?=<).*?"
_KINDS = [
    (_MARKUP + rb"<(!doctype html|html|head|body)\b", "an HTML page", _FETCH),
    (_MARKUP + rb"<svg\b", "an SVG drawing", _SAVE),
    (rb"%PDF-", "a PDF", "the operator operators.pages.Pages makes a picture of each page"),
    (rb"version https://git-lfs", "a pointer of Git LFS, not the file itself", "fetch the files with `git lfs pull`"),
    (rb"....ftyp(hei|hev|mif1|msf1)", "a HEIC picture", _SAVE),
    (rb"....ftypavi", "an AVIF picture", _SAVE),
    (rb"....ftyp(M4A|M4B)", "audio", "audio is not read"),
    (rb"....ftyp|\x1aE\xdf\xa3|RIFF....AVI |FLV\x01|\x00\x00\x01\xba", "a video", _FRAMES),
    (rb"RIFF....WAVE|ID3|OggS|fLaC|\xff[\xfb\xf3\xf2]", "audio", "audio is not read"),
    (rb"\xff\x0a|\x00\x00\x00\x0cJXL ", "a JPEG XL picture", _SAVE),
    (rb"\x00\x00\x00\x0cjP  |\xff\x4f\xff\x51", "a JPEG 2000 picture", _SAVE),
    (rb"\x00\x00\x01\x00", "an icon", _SAVE),
    (rb"8BPS", "a Photoshop file", _SAVE),
    (rb"PK\x03\x04", "a ZIP archive (or an Office document)", "unpack it"),
    (rb"\x1f\x8b", "compressed with gzip", "unpack it"),
    (rb"\s*[{\[]", "JSON text", _FETCH),
]
"""Pattern of the first bytes, what it is, and what to do. The first that matches counts."""
_OURS = [
    (rb"\xff\xd8\xff", "JPEG"),
    (rb"\x89PNG\r\n", "PNG"),
    (rb"RIFF....WEBP", "WebP"),
    (rb"GIF8[79]a", "GIF"),
    (rb"II\*\x00|MM\x00\*|II\+\x00|MM\x00\+", "TIFF"),
    (rb"BM", "BMP"),
]
"""Pattern of the first bytes of each format that is read."""


def kind_of(head: bytes) -> tuple[str, str] | None:
    """Return what a file is that is no picture, and what to do; None if that is not known.

    Args:
        head: its first HEAD bytes.
    """
    found = (k for k in _KINDS if re.match(k[0], head, re.DOTALL | re.IGNORECASE))
    return next(((what, remedy) for _, what, remedy in found), None)


def format_of(head: bytes) -> str | None:
    """Return the format of pictures as which a file begins; None for one that is not read."""
    return next((name for pattern, name in _OURS if re.match(pattern, head, re.DOTALL)), None)


def not_a_picture(head: bytes) -> str:
    """Say what a file is that no decoder takes, and what to do; completes "NAME is ...". `head`: see `kind_of`."""
    if kind := kind_of(head):
        return f"{kind[0]}, which cannot be read as a picture; {kind[1]}"
    if name := format_of(head):
        return f"damaged: it begins as a {name}, but its header cannot be read; fetch or save it again"
    return "no picture in a format that is read (JPEG, PNG, WebP, BMP, GIF, TIFF); save it as PNG or JPEG"
