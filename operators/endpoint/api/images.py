"""Images of rows in the bodies of requests: as marks until a body is sent, then as parts with `data:` URLs."""

from __future__ import annotations

import base64
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from operators.endpoint.api.checks import NotSent
from operators.images.columns import IMAGE_MARK, most_pixels, title_of
from operators.images.read import BadImage, image_size, named, read_image
from pipeline.api.machine_errors import of_machine

IMAGE_TOKENS = 1000
"""An estimate of the tokens of an image, for limits of tokens per minute."""
JPEG_QUALITY = 95
_KINDS = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG\r\n": "image/png", b"GIF8": "image/gif"}
"""By their first bytes, the types of images that all servers read."""
_ORIENTATION = 0x0112
T = TypeVar("T")
_ENCODED = json.JSONEncoder(ensure_ascii=False).encode


class BodyImages:
    """The images of a row's request.

    Args:
        images: in the order of their marks, as `columns.IMAGE` has them.
        field: of the column that has them, as `columns.limited` marks it.

    Attributes:
        digest: of the content of their files; it stands for them in the key of the row's answer.

    Raises:
        BadImage: one cannot be read.
    """

    def __init__(self, images: Sequence[Mapping[str, Any]], field: pa.Field) -> None:
        self._images, self._field, self._most_pixels = images, field, most_pixels(field)
        self._digests = [self._of_image(number, self._checked) for number in range(len(images))]
        self.digest = _digest_of(b"".join(self._digests))

    def body(self, marked: bytes) -> bytes:
        """Return the body that is sent, given the one with marks. Raises NotSent for a file that has
        changed, or that cannot be decoded."""
        body = json.loads(marked)
        try:
            urls = iter([self._of_image(number, self._url) for number in range(len(self._images))])
        except BadImage as error:
            raise NotSent(str(error)) from None
        for message in body["messages"]:
            if isinstance(text := message.get("content"), str) and IMAGE_MARK in text:
                message["content"] = list(_parts(text, urls))
        return _ENCODED(body).encode()

    def _of_image(self, number: int, make: Callable[[int], T]) -> T:
        """Return what `make` makes of an image. Raises BadImage, which names it."""
        try:
            return make(number)
        except BadImage as error:
            title = title_of(self._field, number + 1, len(self._images))
            raise BadImage(f"{title}{named(self._images[number], error)}") from None

    def _checked(self, number: int) -> bytes:
        """Return the digest of an image's content, if its header can be read."""
        image_size(self._images[number], self._most_pixels)
        return _digest_of(_content(self._images[number]))

    def _url(self, number: int) -> str:
        content = _content(self._images[number])
        if _digest_of(content) != self._digests[number]:
            raise BadImage("the file of the image has changed since the row was read")
        return data_url({**self._images[number], "bytes": content}, self._most_pixels)


def data_url(image: Mapping[str, Any], most_pixels: int) -> str:
    """Return the `data:` URL of an image whose bytes are there. What not all servers read is encoded anew: WebP, BMP
    and TIFF as PNG, and a JPEG that is turned by its metadata, which servers do not look at, upright as JPEG. Raises
    BadImage for one that cannot be decoded."""
    content: bytes = image["bytes"]
    pixels = read_image(image, most_pixels)
    kind = next((kind for head, kind in _KINDS.items() if content.startswith(head)), None)
    is_turned = kind == "image/jpeg" and _is_turned(content)
    if kind is None or is_turned:
        from PIL import Image

        file = io.BytesIO()
        picture = Image.fromarray(pixels)
        if is_turned:
            picture.save(file, "JPEG", quality=JPEG_QUALITY)
        else:
            kind = "image/png"
            picture.save(file, "PNG", compress_level=1)
        content = file.getvalue()
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _parts(text: str, urls: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Yield the parts of a content: the texts between its marks, and an image at each."""
    for number, piece in enumerate(text.split(IMAGE_MARK)):
        if number:
            yield {"type": "image_url", "image_url": {"url": next(urls)}}
        if piece:
            yield {"type": "text", "text": piece}


def _digest_of(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _content(image: Mapping[str, Any]) -> bytes:
    """Return the content of an image's file."""
    if image["bytes"] is not None:
        return bytes(image["bytes"])
    try:
        return Path(image["path"]).read_bytes()
    except OSError as error:
        if of_machine(error):
            raise
        raise BadImage(f"the image cannot be read: {error.strerror}") from None


def _is_turned(content: bytes) -> bool:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=("JPEG",)) as picture:
            return bool(picture.getexif().get(_ORIENTATION, 1) != 1)
    except Exception:  # of metadata that is damaged: the server decides
        return False
