"""Digests of rows in SQLite databases, whose own check looks at their structure and not at the values in them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

DIGEST_BYTES = 16
_KINDS = {bytes: b"b%d:", str: b"s%d:", int: b"i%d:", type(None): b"n%d:"}


def row_digest(values: Iterable[str | bytes | int | None]) -> bytes:
    """Return a digest (BLAKE2b, 16 bytes) of the values of a row, in their order."""
    parts: list[bytes] = []
    for value in values:
        content = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")
        parts += (_KINDS[type(value)] % len(content), content)
    return hashlib.blake2b(b"".join(parts), digest_size=DIGEST_BYTES).digest()


def as_text(content: bytes) -> str:
    """Return a text of a database, as a text_factory: SQLite does not check that it is UTF-8, which damage may end."""
    return content.decode("utf-8", "surrogateescape")
