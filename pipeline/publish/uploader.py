"""Upload the committed files of a run to a URL, during the run and at its end.

manifest.json at the URL lists the files that a reader may use. Until all of them are uploaded it lists none.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pipeline.api.errors import ConfigError, ExitCode, PublishError
from pipeline.api.groups import OutputFields
from pipeline.publish.destination import Destination, Stopped
from pipeline.publish.newest_parts import check_format, listed, newest_parts
from pipeline.run_dir.manifest import as_text, digest, empty_manifest, manifest
from pipeline.run_dir.names import CARD, MANIFEST, is_part
from pipeline.run_dir.state import RunState, RunStatus, ShardRecord
from pipeline.settings import AGAIN, JobSettings
from pipeline.system.atomic_files import sha256_of
from pipeline.system.deadlines import ENDING_S, Overran, within
from pipeline.system.failpoints import Failpoint, reached
from pipeline.system.signals import stopped_by_signals
from pipeline.system.terminal import say

AT_ONCE = 64
"""Files to upload that are read from state.sqlite at a time, which bounds memory."""
LEAVE_S = 5.0
"""Seconds that an unfinished run waits for the current upload."""
NEWEST = " (newest rows)"
"""Behind the path of a file, where it is recorded that a copy was uploaded in its place."""
LEAVING = "leaving the uploads; the same command uploads the rest. Press Ctrl-C again to leave at once"
log = logging.getLogger(__name__)


def destination_of(settings: JobSettings) -> Destination | None:
    """Return the destination of `output.publish`; None if it is not set.

    Raises:
        ConfigError: the URL or its options are invalid, or such results cannot be published.
    """
    output: OutputFields | None = settings.output
    if output is None or output.publish is None:
        return None
    check_format(settings, output.format)
    return Destination(output.publish, output.storage_options, output.retries)


class Publisher:
    """Uploads committed files in a thread of its own, which asks state.sqlite for missing files. So nothing queues up
    in memory, and commits do not wait.

    Args:
        state: of the run, which has begun; records what was uploaded.
        takes_again: files may have rows of which newer ones came (`append_changed=again`), and are published without.
    """

    def __init__(self, directory: Path, state: RunState, place: Destination, *, takes_again: bool = False) -> None:
        self._directory = directory
        self._takes_again = takes_again
        self._state = state
        self._place = place
        self._fingerprint = digest(state.fingerprint or {})
        self._wake = threading.Event()
        self._finishing = self._complete = False
        self.failure: str | None = None
        """Reason why `finish` could not publish everything; else None."""
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="upload", daemon=True)

    def _claim(self, *, overwrite: bool) -> None:
        """Claim the destination for this run with an empty manifest. Does nothing if this run has claimed it already.
        Raises ConfigError if the destination holds other files and `overwrite` is not set, or it cannot be written."""
        if self._state.published(self._place.url, MANIFEST) is not None and self._is_still_ours():
            return
        try:
            sizes = self._place.sizes()
            earlier = self._place.read(MANIFEST) if MANIFEST in sizes else None
            if earlier is not None and not overwrite and _fingerprint(earlier) == self._fingerprint:
                self._state.note_published(self._place.url, MANIFEST, hashlib.sha256(earlier).hexdigest())
                return
            if sizes and not overwrite:
                raise ConfigError(
                    f"output.publish={self._place.url} holds other files (for example {min(sizes)});"
                    " give an empty place, or overwrite=true to replace what a run has put there"
                )
            self._write_manifest(as_text(empty_manifest(self._state)), Failpoint.DESTINATION_CLAIMED)
        except PublishError as error:
            raise ConfigError(f"output.publish cannot be used: {error}; nothing has been generated") from None

    def _is_still_ours(self) -> bool:
        """Return False if another run has claimed the destination since. One without a readable manifest counts as
        ours: the uploads will fail if it is unreachable."""
        try:
            return bool(_fingerprint(self._place.read(MANIFEST)) == self._fingerprint)
        except PublishError:
            return True

    def begin(self, *, overwrite: bool) -> None:
        """Claim the destination and start the thread, which uploads missing files now and after each call of
        `committed`. Raises ConfigError, as `_claim`."""
        self._claim(overwrite=overwrite)
        self._thread.start()
        self._wake.set()

    def committed(self) -> None:
        """Wake the thread after a commit."""
        self._wake.set()

    def finish(self, limit_s: float = ENDING_S) -> ExitCode:
        """Upload the rest of a finished run and then the manifest. Prints the result. Returns FAILED if an upload
        failed or nothing was moved for `limit_s` seconds, INTERRUPTED after a signal."""
        log.debug("uploading the rest to %s", self._place.url)
        with stopped_by_signals(self._place.stopped.set, LEAVING):
            self._finishing = True
            self._wake.set()
            try:
                within(limit_s, "the upload", self._until_uploaded, lambda: self._place.moved)
            except Overran as error:
                self._error = error
        if self._place.stopped.is_set():
            return ExitCode.INTERRUPTED
        if self._complete:
            files = len(self._state.shards())
            say([f"published   {files:,} file{'s' * (files != 1)} at {self._place.url}, listed in its {MANIFEST}"])
            return ExitCode.DONE
        missing = len(self._state.unpublished(self._place.url, 1_000_000))
        self.failure = (
            f"the run is done and its results are whole in {self._directory}, but {missing} files and the manifest are"
            f" not at {self._place.url}: {self._error}"
        )
        log.error("%s\nThe same command uploads what is missing and generates nothing", self.failure)
        return ExitCode.FAILED

    def _until_uploaded(self) -> None:
        while self._thread.is_alive() and not self._place.stopped.is_set():
            self._thread.join(0.1)

    def say_unfinished(self) -> None:
        """Print that an unfinished run has published nothing yet."""
        say([f"published   nothing yet: {MANIFEST} at {self._place.url} lists no file until the run is done"])

    def stop(self) -> None:
        """Stop the thread. The current upload has LEAVE_S to end."""
        self._place.stopped.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(LEAVE_S)

    def _run(self) -> None:
        while not self._place.stopped.is_set():
            self._wake.wait()
            self._wake.clear()
            finishing = self._finishing
            try:
                self._upload_missing()
                if finishing:
                    self._complete_place()
                    self._complete = True
            except Stopped:
                return
            except PublishError as error:
                self._error = error
                log.warning("%s; it is tried again with the next chunk, and at the end of the run", error)
            except BaseException as error:  # kept for `finish`: an exception in a thread would go unnoticed
                self._error = error
                log.debug("the uploads ended", exc_info=error)
                return
            if finishing:
                return

    def _upload_missing(self) -> None:
        while missing := self._state.unpublished(self._place.url, AT_ONCE):
            for shard in missing:
                if self._place.stopped.is_set():
                    raise Stopped
                if self._takes_again:  # what was in its place is replaced
                    self._state.forget_published([shard.path + NEWEST], self._place.url)
                self._put(shard.path, shard.sha256)

    def _put(self, path: str, sha256: str, copy: Path | None = None) -> None:
        """Upload a file of the run, or a `copy` in its place, and record that."""
        self._place.put(copy or self._directory / path, path)
        log.debug("uploaded %s", path)
        reached(Failpoint.FILE_UPLOADED)
        self._state.note_published(self._place.url, path + NEWEST if copy else path, sha256)

    def _complete_place(self) -> None:
        """Check that all uploaded files are there, upload missing ones again, remove those of an earlier run, and write
        the manifest."""
        shards = {shard.path: shard for shard in self._state.shards()}
        sizes = self._place.sizes()
        copied = {path for path in shards if self._takes_again and self._copy_at_place(path) is not None}
        lost = [p for p, s in shards.items() if p not in copied and sizes.get(p, -1) not in (s.size_bytes, None)]
        if lost:
            log.warning("%s: uploading again what is not there as it was (files: %d)", self._place.url, len(lost))
            self._state.forget_published(lost, self._place.url)
            self._upload_missing()
        for path in sorted(path for path in sizes if is_part(path) and path not in shards):
            log.debug("removing %s: it is of an earlier run", path)
            self._place.remove(path)
        copies = self._publish_newest(sizes) if self._takes_again else {}
        card = self._directory / CARD
        if card.exists() and (CARD not in sizes or self._state.published(self._place.url, CARD) != sha256_of(card)):
            self._put(CARD, sha256_of(card))
        text = as_text(listed(manifest(self._state, RunStatus.DONE), copies))
        if MANIFEST not in sizes or self._state.published(self._place.url, MANIFEST) != _sha256(text):
            self._write_manifest(text, Failpoint.MANIFEST_UPLOADED)

    def _publish_newest(self, sizes: Mapping[str, int | None]) -> dict[str, ShardRecord]:
        """Replace what is published of files with superseded rows by copies without these; return their records."""
        copies = {}
        for copy, file in newest_parts(self._directory, self._state):
            copies[copy.path] = copy
            is_there = sizes.get(copy.path, -1) in (copy.size_bytes, None)
            if not is_there or self._copy_at_place(copy.path) != copy.sha256:
                self._put(copy.path, copy.sha256, file)
        return copies

    def _copy_at_place(self, path: str) -> str | None:
        """Return the SHA-256 of the copy that was uploaded in place of a file; None if none was."""
        return self._state.published(self._place.url, path + NEWEST)

    def _write_manifest(self, text: str, failpoint: Failpoint) -> None:
        self._place.write(MANIFEST, text)
        reached(failpoint)
        self._state.note_published(self._place.url, MANIFEST, _sha256(text))


@contextmanager
def publishing(
    settings: JobSettings, directory: Path, state: RunState, place: Destination | None, *, later: bool = False
) -> Iterator[Publisher | None]:
    """Upload committed files to `place` during the block; yields None if `place` is None. `later`: the block calls
    `begin`, once nothing can be refused any more."""
    if place is None:
        yield None
        return
    publisher = Publisher(directory, state, place, takes_again=settings.append_changed == AGAIN)
    try:
        if not later:
            publisher.begin(overwrite=settings.overwrite)
        yield publisher
    finally:
        publisher.stop()


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _fingerprint(text: bytes) -> Any:
    """Return the fingerprint's hash in a manifest; None if it has none."""
    try:
        return json.loads(text)["fingerprint"]["sha256"]
    except (ValueError, KeyError, TypeError):
        return None
