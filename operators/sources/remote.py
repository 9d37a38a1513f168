"""Files at URLs, through fsspec: s3://, gs://, hf://, https://, memory:// and other installed file systems.

A read that fails is tried again by the file system itself (s3fs five times, with growing pauses; huggingface_hub and
gcsfs alike; plain https not): a second layer here would only multiply the waits. What it gives up on ends the run with
SourceError, and the same command goes on. Nothing is fetched as a whole: files are read in ranges of BLOCK_BYTES.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from operators.formats.input_file import BUFFER_BYTES, DIRECTORY, FILE, Stamp, Storage
from pipeline.api.errors import ConfigError, InputError, PipelineError, SourceError, install
from pipeline.system.redaction import clean_url, has_password, without_redacted, without_secrets

BLOCK_BYTES = 4 << 20
"""Bytes per request, and bytes to read ahead."""
EXTRAS: Mapping[str, str] = {"s3": "s3", "s3a": "s3", "hf": "hub"}
"""Extra of this project that installs a file system, by URL scheme."""
TAGS = [
    *["ETag", "etag", "md5Hash", "crc32c", "sha256", "blob_id", "content_md5", "Content-MD5", "Digest", "checksum"],
    *["LastModified", "Last-Modified", "last_modified", "mtime", "modified", "updated", "created"],
]
"""Names that file systems give to a value that changes with the content, best first, and to the time of change."""
REFUSED = {
    *["NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "ProfileNotFound"],
    *["ParamValidationError", "HFValidationError", "ValueError", "TypeError", "NotImplementedError"],
    *["BadZipFile", "ReadError", "IsADirectoryError"],
}
"""Errors that another try does not mend, by the names of their classes: the libraries may not be installed."""


def remote(url: str, options: Mapping[str, Any]) -> tuple[RemoteStorage, str]:
    """Return the storage that `url` names, and the path of `url` there; open the archive of a chain (zip://a::b.zip).

    Raises:
        ConfigError: nothing that is installed reads such URLs, or it does not take these `storage_options`.
        InputError: the archive is not there, or is none.
        SourceError: a network does not answer.
    """
    name, options = f"data.path={clean_url(url)}", without_redacted(options)
    if has_password(url):
        raise ConfigError(f"{name} has a password in it; give it with data.storage_options=")
    try:
        import fsspec
    except ImportError as error:
        raise ConfigError(f"{name} needs fsspec ({error}): {install('remote')}") from error
    try:
        fs, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        extra = EXTRAS.get(url.partition(":")[0].lower())
        remedy = f": {install(extra)}" if extra else ""
        raise ConfigError(f"{name} needs another package: {error}{remedy}") from error
    except Exception as error:  # opens an archive, too; each file system raises its own classes
        why = without_secrets(str(error), options)
        if isinstance(error, ValueError | TypeError):
            raise ConfigError(f"{name} with these data.storage_options: {why}") from None
        if isinstance(error, FileNotFoundError):
            raise InputError(f"{name} does not exist: {why}; see to its name") from None
        raise _explained(name, error, options) from None
    return RemoteStorage(fs, options), path


class RemoteStorage(Storage):
    """A file system of fsspec. Messages never show the values of its `storage_options`."""

    def __init__(self, fs: Any, options: Mapping[str, Any]) -> None:
        self._fs = fs
        self._options = options

    def shown(self, path: str) -> str:
        return clean_url(str(self._fs.unstrip_protocol(path)))

    def kind(self, path: str) -> str | None:
        with suppress(_Missing), self.explaining(path):
            return _kind(self._fs.info(path))
        return None

    def listing(self, path: str) -> Mapping[str, str | None]:
        with self.explaining(path):
            entries = self._fs.ls(path, detail=True)
        return {entry["name"]: self._resolved(entry) for entry in entries}

    def matches(self, pattern: str) -> Mapping[str, str | None]:
        with self.explaining(pattern):
            entries = self._fs.glob(pattern, detail=True)
        return {name: self._resolved(entry) for name, entry in entries.items()}

    def _resolved(self, entry: Mapping[str, Any]) -> str | None:
        """Return the kind of what is listed; of a link, of what it leads to."""
        is_link = entry["type"] == "link" or entry.get("islink")
        return self.kind(entry["name"]) or "a link to what is not there" if is_link else _kind(entry)

    def open(self, path: str) -> io.BufferedReader:
        with self.explaining(path):
            file = self._fs.open(path, "rb", block_size=BLOCK_BYTES, cache_type="readahead")
        return io.BufferedReader(_Remote(file, self, path), BUFFER_BYTES)

    def stamp(self, path: str) -> Stamp:
        """Return the size, and the ETag or checksum, or else the time of change if there is one.

        Reading an object only to hash it would cost as much as the job's own reading. So an object that was copied
        within a store may count as another one, and where a server tells the size alone, a change that keeps it goes
        unseen.
        """
        with self.explaining(path):
            self._fs.invalidate_cache()  # cached listings would describe the old object
            info = self._fs.info(path)
        tag = next((f"{key} {info[key]}" for key in TAGS if info.get(key)), "")
        tag = f"sha256 {info['lfs']['sha256']}" if isinstance(info.get("lfs"), Mapping) else tag
        return Stamp(int(info.get("size") or 0), tag)

    def content_id(self, path: str, stamp: Stamp) -> str:
        return stamp.tag or "known by its size alone"

    def local(self, path: str) -> Path | None:
        return None

    @contextmanager
    def explaining(self, path: str) -> Iterator[None]:
        """Convert all errors to pipeline errors, without their causes, which may quote signed URLs and keys."""
        try:
            yield
        except PipelineError:
            raise
        except FileNotFoundError:
            raise _Missing(f"{self.shown(path)} is not there; see to its name and run the same command again") from None
        except Exception as error:  # each file system has classes of its own
            raise _explained(self.shown(path), error, self._options) from None


class _Missing(InputError): ...


def _kind(entry: Mapping[str, Any]) -> str:
    return str(entry["type"]) if entry["type"] in (FILE, DIRECTORY) else "no regular file"


def _explained(shown: str, error: Exception, options: Mapping[str, Any]) -> PipelineError:
    why = without_secrets(f"{type(error).__name__}: {error}".strip(), options)
    names = {cls.__name__ for cls in type(error).__mro__ if cls is not OSError}
    if isinstance(error, PermissionError):
        return InputError(
            f"{shown} may not be read ({why}); give other credentials (the environment, or data.storage_options)"
            " and run the same command again"
        )
    if names & REFUSED or (isinstance(error, OSError) and error.errno == errno.EINVAL):
        return InputError(f"{shown} cannot be read: {why}; see to the address, the credentials and storage_options")
    if "FileExpired" in names:
        return InputError(f"{shown} was written to while the run was reading it; begin anew with overwrite=true")
    return SourceError(f"{shown} cannot be reached: {why}; what is finished is kept, run the same command again")


class _Remote(io.RawIOBase):
    """An open file of fsspec whose errors name the file and the remedy."""

    def __init__(self, file: Any, storage: RemoteStorage, path: str) -> None:
        super().__init__()
        self._file = file
        self._explaining = partial(storage.explaining, path)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def readinto(self, buffer: Any) -> int:
        with self._explaining():
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with self._explaining():
            self._file.seek(offset, whence)
        return self.tell()

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
