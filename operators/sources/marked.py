"""A file of which some bytes are no UTF-8, for a parser that cannot speak of these rows: the bytes come as text."""

from __future__ import annotations

import codecs
import io
import re

from operators.sources.input_file import Content
from pipeline.errors import PipelineError

MARK = "\U0010ffff"
"""A code point that is no character: the two hexadecimal digits behind it were a byte that is no UTF-8."""
_MARKED = re.compile(MARK + "([0-9a-f]{2})")


def _mark(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(f"{MARK}{byte:02x}" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("marked", _mark)


def shown(text: str) -> str:
    """`text` with the bytes that were marked in Python's notation."""
    return _MARKED.sub(r"\\x\1", text)


class MarkedFile(io.RawIOBase):
    """`content` in valid UTF-8. Nothing is marked in a file that is UTF-8.

    `failure`: why it could not be read on, which looks like its end here: a parser that reads ahead would drop what it
    has read before along with the error. Whoever uses the parser raises it, and does not trust the last rows.
    """

    def __init__(self, content: Content) -> None:
        super().__init__()
        self.failure: Exception | None = None
        self._file = content
        self._decoder = codecs.getincrementaldecoder("utf-8")("marked")
        self._ready = b""

    @property
    def position(self) -> int:
        """See Content.position."""
        return self._file.position

    def readable(self) -> bool:
        """It is."""
        return True

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes, fewer only at the end; all of them where none is given."""
        more = True
        while more and (size < 0 or len(self._ready) < size):
            data = self._read(size)
            more = bool(data)
            self._ready += self._decoder.decode(data, final=not more).encode()
        end = len(self._ready) if size < 0 else size
        taken, self._ready = self._ready[:end], self._ready[end:]
        return taken

    def _read(self, size: int) -> bytes:
        if self.failure is not None:
            return b""
        try:
            return self._file.read(size)
        except (PipelineError, OSError) as error:
            self.failure = error
            return b""

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()
