"""What names the content of a file, wherever it lies and whatever its times say."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

WHOLE_UP_TO_BYTES = 1 << 30
SAMPLE_BYTES = 1 << 20
SAMPLES = 256
SAMPLED = "sampled:"
"""How the id of a file begins that is not hashed as a whole."""


@dataclass(frozen=True)
class Stamp:
    """What changes when a file is written to: cheap to look at again.

    Args:
        size_bytes: of the file as it lies there.
        changed_ns: its modification time; 0 where its place says instead
        tag: what it holds (an object store's ETag or checksum).
    """

    size_bytes: int
    changed_ns: int = 0
    tag: str = ""

    @classmethod
    def of(cls, path: Path) -> Stamp:
        """The file's stamp now.

        Raises:
            OSError: it is not there, or may not be looked at.
        """
        status = path.stat()
        return cls(status.st_size, status.st_mtime_ns)

    @property
    def changed_utc(self) -> str:
        """The modification time, ISO 8601."""
        return datetime.fromtimestamp(self.changed_ns / 1e9, UTC).isoformat(timespec="microseconds")


def content_id(path: Path, whole_up_to_bytes: int = WHOLE_UP_TO_BYTES) -> str:
    """`sha256:` and the hash of the whole file; of a larger one `sampled:`, its size and the hash of samples.

    The samples are SAMPLES evenly spaced blocks of SAMPLE_BYTES, the first at the start and the last at the end, so
    that a file of any size costs 256 MiB of reading. A change between two samples that keeps the size goes unseen.

    Raises:
        OSError: the file cannot be read.
    """
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= whole_up_to_bytes:
            return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
        digest = hashlib.sha256()
        for i in range(SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * i // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
        return f"{SAMPLED}{size}:{digest.hexdigest()}"
