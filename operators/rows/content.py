"""A content id of a file, independent of its path and times."""

from __future__ import annotations

import hashlib
from pathlib import Path

WHOLE_UP_TO_BYTES = 1 << 30
SAMPLE_BYTES = 1 << 20
SAMPLES = 256
SAMPLED = "sampled:"
"""Prefix of the id of a file that is not hashed as a whole."""


def content_id(path: Path, whole_up_to_bytes: int = WHOLE_UP_TO_BYTES) -> str:
    """Return `sha256:` and the hash of the whole file, or for a larger one `sampled:`, its size and a hash of samples.

    The samples are SAMPLES evenly spaced blocks of SAMPLE_BYTES, the first at the start and the last at the end, so
    that a file of any size costs 256 MiB of reading. A change between two samples that keeps the size goes unseen.
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
