"""Object stores for tests, in memory: one that counts what is fetched, fails when it is told to, and asks for a key."""

from __future__ import annotations

import io
from typing import Any, ClassVar

import fsspec
from fsspec.implementations.memory import MemoryFileSystem

KEY = "open-sesame-4711"


class Store(MemoryFileSystem):
    """`store://`, a memory:// of its own."""

    protocol = "store"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    fetched_bytes: ClassVar[int] = 0
    fails_behind: ClassVar[int | None] = None
    """No byte behind this one of a file can be read now."""

    def __init__(self, key: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._key = key

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path.removeprefix("store://")))

    def unstrip_protocol(self, name: str) -> str:
        return f"store://{self._strip_protocol(name).lstrip('/')}"

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if mode != "rb":
            return super()._open(path, mode, **options)
        if self._key not in (None, KEY):
            raise PermissionError(f"403 for {self._key}")
        return _Counted(super()._open(path, mode, **options).getvalue())

    @classmethod
    def clear(cls) -> None:
        """Nothing is there, nothing was fetched, nothing fails."""
        cls.store.clear()
        cls.pseudo_dirs[:] = [""]
        cls.fetched_bytes, cls.fails_behind = 0, None


class _Counted(io.BytesIO):
    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        if Store.fails_behind is not None and self.tell() > Store.fails_behind:
            raise ConnectionResetError("the line went dead, signed with " + KEY)
        Store.fetched_bytes += len(data)
        return data


def put(name: str, content: bytes) -> str:
    """An object in `store://`; its URL."""
    fsspec.register_implementation("store", Store, clobber=True)
    fsspec.filesystem("store").pipe_file(f"/{name}", content)
    return f"store://{name}"
