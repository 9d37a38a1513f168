"""StateFiles: saved states on disk (`runtime.state_dir`).

Those of preempted rows beyond `runtime.swap_mb`, and snapshots of prefixes, which later attempts and runs find again.

A snapshot is a file of its own: its tokens, its state and a checksum over both, named by everything that decides the
bits of the state. A file that is damaged is removed, and the prefix is computed again.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import struct
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from operators.engine.backend.interface import Buffer, TokenIds
from operators.engine.sequence.placement import SavedCache
from pipeline.system.atomic_files import TEMPORARY_SUFFIX, removed_on_failure
from pipeline.system.disk_errors import writing

_HEAD = struct.Struct("<8sII")
"""Magic, checksum of what follows, number of tokens."""
_MAGIC = b"state 1\n"
_SUFFIX = ".state"
log = logging.getLogger("pipeline.decode")


class StateFiles:
    """The folder of a run's states. Raises StorageError where it cannot be written.

    Args:
        directory: made if it is not there; several runs may share it.
        key: equal for decoders that compute the same bits, see Decoder.state_key.
    """

    def __init__(self, directory: Path, key: str) -> None:
        self._directory = directory
        self._key = hashlib.sha256(key.encode()).hexdigest()[:16]
        with writing(directory):
            directory.mkdir(parents=True, exist_ok=True)

    def swap(self, data: Buffer) -> Buffer:
        """Return `data` as read from a file without a name, which goes with the last reference to it."""
        with writing(self._directory), tempfile.TemporaryFile(dir=self._directory) as file:
            file.write(data)
            file.flush()
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))

    def write(self, prompt: TokenIds, saved: SavedCache) -> None:
        """Write a snapshot of the tokens `prompt`, int32, unless it is there."""
        path, temporary = self._path(prompt), self._path(prompt).with_suffix(TEMPORARY_SUFFIX)
        if path.exists():
            return
        tokens = prompt.tobytes()
        with writing(path), removed_on_failure(temporary):
            with temporary.open("wb") as file:
                file.write(_HEAD.pack(_MAGIC, zlib.crc32(saved.data, zlib.crc32(tokens)), len(prompt)))
                file.write(tokens)
                file.write(saved.data)
            temporary.replace(path)

    def read(self) -> Iterator[tuple[TokenIds, SavedCache]]:
        """Yield the snapshots that are there, the oldest first; remove those that are damaged."""
        for path in sorted(self._directory.glob(f"{self._key}-*{_SUFFIX}"), key=lambda path: path.stat().st_mtime_ns):
            data = path.read_bytes()
            magic, checksum, count = _HEAD.unpack_from(data) if len(data) > _HEAD.size else (b"", 0, 0)
            rest = memoryview(data)[_HEAD.size :]
            if magic != _MAGIC or zlib.crc32(rest) != checksum or len(rest) <= 4 * count:
                log.warning("%s is damaged; it is removed, and its %d tokens are computed again", path, count)
                path.unlink(missing_ok=True)
            else:
                yield np.frombuffer(rest[: 4 * count], np.int32), SavedCache(rest[4 * count :], count)

    def remove(self, prompt: TokenIds) -> None:
        """Remove the snapshot of `prompt`, if it is there."""
        self._path(prompt).unlink(missing_ok=True)

    def _path(self, prompt: TokenIds) -> Path:
        return self._directory / f"{self._key}-{hashlib.sha256(prompt.tobytes()).hexdigest()[:24]}{_SUFFIX}"
