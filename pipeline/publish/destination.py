"""Destination of uploads: a folder at an fsspec URL. Only whole files are put, since there is no rename and no lock."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from pipeline.api.errors import ConfigError, PublishError, install
from pipeline.system.redaction import without_redacted, without_secrets

T = TypeVar("T")
_PERMANENT = (PermissionError, FileNotFoundError, NotADirectoryError, NotImplementedError)
"""Errors that are not retried: no permission, no bucket, a read-only file system."""
log = logging.getLogger(__name__)


class Stopped(Exception):
    """Raised during the wait before a retry when `Destination.stopped` is set."""


class Destination:
    """A folder at `url`. Paths are relative to it. Every method may raise PublishError, after `retries` retries, and
    Stopped.

    Args:
        url: for example s3://bucket/prefix, file:///folder, memory://folder.
        options: fsspec's options for the file system; secret, never logged.
        wait_s: seconds before the first retry, doubled for each next one.

    Raises:
        ConfigError: fsspec or the package for this kind of URL is missing, or the URL or the options are invalid.
    """

    def __init__(self, url: str, options: Mapping[str, Any], retries: int, wait_s: float = 1.0) -> None:
        self.url = url.rstrip("/")
        self.stopped = threading.Event()
        """Set it to end the wait before a retry at once."""
        self.moved = 0
        """Grows with every part of a file that is sent, and every call that returns."""
        self._retries = retries
        self._wait_s = wait_s
        self._options = without_redacted(options)
        self._fs, root = _open(self.url, self._options, self._shown)
        self._root = root.rstrip("/")

    def sizes(self) -> dict[str, int | None]:
        """Return the size in bytes of every file there; None if the file system does not tell."""

        def listed() -> dict[str, int | None]:
            self._fs.invalidate_cache()
            try:
                entries = self._fs.find(self._root, detail=True)
            except FileNotFoundError:
                return {}
            return {name.removeprefix(self._root).lstrip("/"): entry.get("size") for name, entry in entries.items()}

        return self._retry("list", "", listed)

    def put(self, file: Path, path: str) -> None:
        """Upload the local `file` to `path`, replacing an existing file."""
        from fsspec.callbacks import Callback

        def moved(size: object, value: object) -> None:
            self.moved += 1

        progress = Callback(hooks={"moved": moved})
        self._retry("write", path, lambda: self._fs.put_file(str(file), self._at(path), callback=progress))

    def write(self, path: str, text: str) -> None:
        self._retry("write", path, lambda: self._fs.pipe_file(self._at(path), text.encode()))

    def read(self, path: str) -> bytes:
        return self._retry("read", path, lambda: bytes(self._fs.cat_file(self._at(path))))

    def remove(self, path: str) -> None:
        self._retry("remove", path, lambda: self._fs.rm_file(self._at(path)))

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"

    def _retry(self, action: str, path: str, do: Callable[[], T]) -> T:
        """Call `do`, with retries. Exceptions may be of any type, since each file system has its own library."""
        place = f"{self.url}/{path}".rstrip("/")
        for attempt in range(self._retries + 1):
            self.moved += 1
            try:
                return do()
            except Exception as error:
                why = self._shown(f"{type(error).__name__}: {error}")
                if attempt == self._retries or isinstance(error, _PERMANENT):
                    # Without its cause: the traceback might show the library's arguments, credentials among them.
                    raise PublishError(f"cannot {action} {place}: {why}") from None
                wait_s = self._wait_s * 2**attempt
                log.debug("cannot %s %s, next try in %g s: %s", action, place, wait_s, why)
            if self.stopped.wait(wait_s):
                raise Stopped
        raise AssertionError("there is at least one try")

    def _shown(self, text: str) -> str:
        return without_secrets(text, self._options)


def _open(url: str, options: Mapping[str, Any], shown: Callable[[str], str]) -> tuple[Any, str]:
    """Return the file system of `url` and the path in it."""
    try:
        import fsspec
    except ImportError as error:
        raise ConfigError(f"output.publish={url} needs fsspec ({error}); install it: {install('remote')}") from error
    local = {"auto_mkdir": True} if url.startswith(("file://", "local://")) else {}
    try:
        filesystem: tuple[Any, str] = fsspec.core.url_to_fs(url, **local, **options)
    except ImportError as error:
        extra = "s3" if url.startswith(("s3://", "s3a://")) else "remote"
        raise ConfigError(
            f"output.publish={url}: {error}; for s3:// {install(extra)}, for others the package that fsspec names"
        ) from error
    except Exception as error:  # the library for this kind of URL may raise anything
        why = shown(f"{type(error).__name__}: {error}")
        raise ConfigError(f"output.publish={url} with output.storage_options cannot be used: {why}") from None
    return filesystem
