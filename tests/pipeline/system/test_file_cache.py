"""Files that are made once, by one process, and kept within a bound."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace

import pytest

from pipeline import PACKAGES
from pipeline.api.errors import ConfigError
from pipeline.system.file_cache import BOUND, PLACE, FileCache, weights_cache


def writes(text: str, made: list[str] | None = None):
    def write(path: Path) -> None:
        path.write_text(text)
        if made is not None:
            made.append(text)

    return write


def never(path: Path | None = None) -> None:
    raise AssertionError("nobody else is here")


def test_a_file_is_made_once_and_found_again(tmp_path):
    cache, made = FileCache(tmp_path / "cache", 100), list[str]()
    assert cache.find("a") is None
    first = cache.make("a", 3, writes("aaa", made), never)
    assert cache.make("a", 3, writes("bbb", made), never) == first == cache.find("a")
    assert made == ["aaa"] == [first.read_text()]


def test_of_two_at_once_one_makes_it_and_the_other_waits(tmp_path):
    cache, made, waiting = FileCache(tmp_path, 100), list[str](), Event()

    def slow(path: Path) -> None:
        other.start()
        assert waiting.wait(30)  # the other has said that it waits
        writes("aaa", made)(path)

    other = Thread(target=lambda: cache.make("a", 3, writes("bbb", made), waiting.set))
    cache.make("a", 3, slow, never)
    other.join()
    assert made == ["aaa"]


def test_those_go_first_that_were_not_used_for_longest(tmp_path):
    cache = FileCache(tmp_path, 9)
    for name in ("a", "b", "c"):
        os.utime(cache.make(name, 3, writes(name * 3), never), ns=(ord(name), 1))
    changed = (tmp_path / "a").stat().st_mtime_ns
    assert cache.find("a")  # now b is the oldest
    assert (tmp_path / "a").stat().st_mtime_ns == changed, "what is known of the file is keyed by it"
    cache.make("d", 3, writes("ddd"), never)
    assert {path.name for path in cache.files()} == {"a", "c", "d"}
    assert cache.size_bytes == 9


def test_what_has_no_room_is_refused_with_the_numbers(tmp_path):
    with pytest.raises(ConfigError, match=rf"a takes 3\.0 GiB, and {tmp_path} may take 1 GiB: set {BOUND}=4 or more"):
        FileCache(tmp_path, 1 << 30).make("a", 3 << 30, never, never)
    with pytest.raises(ConfigError, match=rf"it takes {1 << 60:,} bytes, and [\d,]+ are free in {tmp_path};.*{PLACE}"):
        FileCache(tmp_path, 1 << 62).make("a", 1 << 60, never, never)


def test_files_go_for_a_full_disk_too_but_only_if_that_helps(tmp_path, monkeypatch):
    cache = FileCache(tmp_path, 100)
    for name in ("a", "b", "c"):
        os.utime(cache.make(name, 3, writes(name * 3), never), ns=(ord(name), 1))
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=2))
    with pytest.raises(ConfigError, match="no room for d"):
        cache.make("d", 12, never, never)
    assert len(cache.files()) == 3
    cache.make("d", 4, writes("dddd"), never)
    assert {path.name for path in cache.files()} == {"b", "c", "d"}


def test_a_failure_leaves_nothing(tmp_path):
    def fail(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FileCache(tmp_path, 100).make("a", 3, fail, never)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_a_process_that_is_killed_leaves_no_file_and_no_lock(tmp_path):
    program = f"""if True:
        import os, signal
        from pathlib import Path
        from pipeline.system.file_cache import FileCache
        def die(path):
            path.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
        FileCache(Path({str(tmp_path)!r}), 100).make("a", 3, die, print)
    """
    done = subprocess.run([sys.executable, "-c", program], cwd=PACKAGES, check=False)
    assert done.returncode == -signal.SIGKILL
    cache = FileCache(tmp_path, 100)
    assert cache.find("a") is None
    assert cache.files() == []
    cache.make("b", 3, writes("bbb"), never)
    assert [path.name for path in tmp_path.iterdir() if path.name != ".lock"] == ["b"], "its half file is gone"


def test_the_bound_is_taken_from_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv(PLACE, str(tmp_path))
    monkeypatch.setenv(BOUND, "0.5")
    assert weights_cache() == FileCache(tmp_path / "weights", 1 << 29)
    monkeypatch.setenv(BOUND, "much")
    with pytest.raises(ConfigError, match=f"{BOUND}=much"):
        weights_cache()
