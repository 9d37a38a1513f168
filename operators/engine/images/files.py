"""EncodedFiles: what was computed for images, kept in the user's cache for runs that ask other questions about them."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from operators.engine.backend.images import Encoded
from pipeline.system.atomic_files import TEMPORARY_SUFFIX
from pipeline.system.file_cache import cache_folder

MIB = 1 << 20
_DIGEST_BYTES = 16
_KEPT = 0.9
"""Share of the bound that is left when the oldest files are removed."""
_LARGEST = 0.02
"""Share of the bound that a file may have: few larger ones would drive out all others."""
_FOLDER, _OURS = "encoded_images", re.compile(r"[0-9a-f]{30}(\.\d+)?\.(npz|tmp)")
"""Names: nothing else is counted or removed."""
log = logging.getLogger("pipeline.images")


class EncodedFiles:
    """A folder with a file for each image, of `most_bytes` together; those that were not used for longest go first.
    There are thousands, so that it is not counted anew for each, as pipeline.system.file_cache does for few large ones.

    Processes may share it: a file is complete when it has its name, and one that is damaged is made anew. Where the
    folder cannot be written there are just no files; that is logged once.

    Args:
        identity: what the content depends on beside the image: the encoder, and the code that computes it.
    """

    def __init__(self, identity: str, most_bytes: int) -> None:
        self._folder = cache_folder() / _FOLDER
        self._identity = identity.encode()
        self._most_bytes = most_bytes
        self._bytes = sum(size for _, size, _ in self._files())
        self._written = 0
        self._has_told = False

    def read(self, digest: bytes) -> list[Encoded] | None:
        """Return what was computed for the image with this digest; None if there is no such file, or it is damaged."""
        path = self._path(digest)
        try:
            data = path.read_bytes()
        except OSError:
            return None
        with suppress(OSError):  # a folder of others, that can be read
            path.touch()
        content, checked = data[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        if hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest() != checked:
            return None
        with np.load(io.BytesIO(content)) as arrays:
            positions = arrays["positions"].tolist()
            return [
                Encoded(arrays[f"embeddings{i}"], arrays.get(f"offsets{i}"), count) for i, count in enumerate(positions)
            ]

    def write(self, digest: bytes, blocks: Sequence[Encoded]) -> None:
        """Keep what was computed for the image with this digest, unless it is large. A run writes no more than the
        bound: beyond, it would only drive out what it has written."""
        arrays: dict[str, Any] = {f"embeddings{i}": block.embeddings for i, block in enumerate(blocks)}
        arrays |= {f"offsets{i}": block.offsets for i, block in enumerate(blocks) if block.offsets is not None}
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, positions=np.array([block.positions for block in blocks]), **arrays)
        content = file.getvalue()
        data = content + hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
        if len(data) > _LARGEST * self._most_bytes or self._written + len(data) > self._most_bytes:
            return
        path = self._path(digest)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_suffix(f".{os.getpid()}{TEMPORARY_SUFFIX}")
            temporary.write_bytes(data)
            temporary.replace(path)
            self._bytes += len(data)
            self._written += len(data)
            if self._bytes > self._most_bytes:
                self._make_room()
        except OSError as error:
            if not self._has_told:
                log.warning("what is computed for images is not kept in %s: %s", self._folder, error)
            self._has_told = True

    def _path(self, digest: bytes) -> Path:
        name = hashlib.blake2b(self._identity + digest, digest_size=_DIGEST_BYTES).hexdigest()
        return self._folder / name[:2] / f"{name[2:]}.npz"

    def _files(self) -> list[tuple[int, int, Path]]:
        """Return when each file was used last, its bytes, and its path; also of files that a killed process left."""
        found = []
        for path in self._folder.glob("[0-9a-f][0-9a-f]/*"):
            if not _OURS.fullmatch(path.name):
                continue
            try:
                status = path.stat()
            except OSError:  # another process has removed it
                continue
            found.append((status.st_mtime_ns, status.st_size, path))
        return found

    def _make_room(self) -> None:
        files = sorted(self._files())
        self._bytes = sum(size for _, size, _ in files)
        for _, size, path in files:
            if self._bytes <= _KEPT * self._most_bytes:
                break
            path.unlink(missing_ok=True)
            self._bytes -= size
