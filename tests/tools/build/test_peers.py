"""llama.cpp's programs are built from the locked source, all or none, and only where they are not there."""

from __future__ import annotations

import io
import json
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tools.build import peers
from tools.build.build import BuildError, Locked, build_env
from tools.build.compilers import AMX_OFF, Compiler, Host
from tools.build.peers import PROGRAMS, STAMP, build, is_built, source, tools

HOST = Host("Linux", "x86_64", frozenset({"avx512f", "amx_tile", "amx_int8"}))
CLANG = Compiler("clang-16", "clang++-16", "clang", "16.0.6", openmp=True)
GCC = Compiler("gcc", "g++", "gcc", "12.2.0", openmp=True)
LOCKED = Locked("1.2.3", "llama-cpp-python==1.2.3 \\\n    --hash=sha256:aa\n")
PYTHON = Path(sys.executable)


class Runs:
    """Stands in for pip, cmake and ninja: does what each would do to the files, and keeps the command lines."""

    def __init__(self, fail: str = "", programs: Sequence[str] = PROGRAMS) -> None:
        self.commands: list[list[str]] = []
        self.envs: list[Mapping[str, str]] = []
        self.fail = fail
        self.programs = programs

    def __call__(self, command: Sequence[str], env: Mapping[str, str], log: Path, title: str) -> None:
        self.commands.append(list(command))
        self.envs.append(env)
        log.write_text(f"{title}\n")
        if self.fail and self.fail in command:
            raise BuildError("it broke")
        if "download" in command:
            archive(Path(command[command.index("--dest") + 1]))
        elif "install" in command:
            folder = Path(command[command.index("--target") + 1]) / "bin"
            folder.mkdir(parents=True)
            for name in ("cmake", "ninja"):
                (folder / name).write_text("#!/bin/sh\n")
                (folder / name).chmod(0o755)
        elif "--build" in command:
            made = Path(command[command.index("--build") + 1]) / "bin"
            made.mkdir(parents=True)
            for name in self.programs:
                (made / name).touch()


def archive(folder: Path) -> None:
    with tarfile.open(folder / "llama_cpp_python-1.2.3.tar.gz", "w:gz") as packed:
        info = tarfile.TarInfo("llama_cpp_python-1.2.3/vendor/llama.cpp/CMakeLists.txt")
        packed.addfile(info, io.BytesIO(b""))


def test_the_source_is_that_of_the_lock(tmp_path):
    run = Runs()
    at = source(PYTHON, LOCKED, tmp_path, {}, run)
    assert (at / "CMakeLists.txt").is_file()
    (command,) = run.commands
    assert {"--require-hashes", "--no-deps", "--no-binary"} <= set(command)
    assert source(PYTHON, LOCKED, tmp_path, {}, run) == at
    assert len(run.commands) == 1  # it is there


def test_a_failed_download_leaves_nothing_and_says_why(tmp_path):
    with pytest.raises(BuildError, match="it broke"):
        source(PYTHON, LOCKED, tmp_path, {}, Runs(fail="download"))
    assert list((tmp_path / "src").iterdir()) == []


def test_tools_of_the_path_are_taken(tmp_path):
    folder = tmp_path / "usr"
    run = Runs()
    run(["install", "--target", str(folder)], {}, tmp_path / "log", "")
    run.commands.clear()
    found = tools(PYTHON, tmp_path, {"PATH": str(folder / "bin")}, run)
    assert found == {name: str(folder / "bin" / name) for name in ("cmake", "ninja")}
    assert run.commands == []


def test_missing_tools_come_to_a_folder_of_their_own(tmp_path):
    run = Runs()
    found = tools(PYTHON, tmp_path, {"PATH": ""}, run)
    assert found["cmake"] == str(tmp_path / "tools/bin/cmake")
    assert run.commands[0][-2:] == ["cmake", "ninja"]


def test_tools_that_cannot_be_installed_are_named_with_the_remedy(tmp_path):
    with pytest.raises(BuildError, match="apt-get install cmake ninja-build"):
        tools(PYTHON, tmp_path, {"PATH": ""}, Runs(fail="install"))


def built(folder: Path, run: Runs, compiler: Compiler = CLANG, key: str = "key") -> None:
    env = build_env(compiler, HOST, {"CMAKE_ARGS": "-DGGML_CUDA=on"})
    build(folder / "source", {"cmake": "cmake", "ninja": "/usr/bin/ninja"}, env, key, folder, run, "building")


def test_it_is_built_with_our_compiler_and_flags(tmp_path):
    run = Runs()
    built(tmp_path, run, GCC)
    configure, make = run.commands
    assert "-DCMAKE_BUILD_TYPE=Release" in configure
    assert "-DGGML_CUDA=on" in configure
    assert make[-3:] == list(PROGRAMS)
    assert (run.envs[0]["CC"], run.envs[0]["CXX"]) == ("gcc", "g++")
    assert run.envs[0]["CFLAGS"] == " ".join(AMX_OFF)


def test_what_is_built_is_known_by_its_key(tmp_path):
    assert not is_built(tmp_path / "bin", "key")
    built(tmp_path, Runs())
    assert is_built(tmp_path / "bin", "key")
    assert not is_built(tmp_path / "bin", "another")
    (tmp_path / "bin/llama-bench").unlink()
    assert not is_built(tmp_path / "bin", "key")


@pytest.mark.parametrize("run", [Runs(fail="--build"), Runs(fail="-S"), Runs(programs=PROGRAMS[:1])])
def test_a_failed_build_keeps_what_was_there(tmp_path, run):
    built(tmp_path, Runs(), key="old")
    with pytest.raises(BuildError, match=r"it broke|made no llama-batched-bench"):
        built(tmp_path, run, key="new")
    assert json.loads((tmp_path / "bin" / STAMP).read_text())["key"] == "old"


def test_nothing_is_done_where_the_programs_are_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peers, "find_compiler", lambda host, env: CLANG)
    run = Runs()
    peers.make_peers(Path(sys.prefix), tmp_path, {"PATH": ""}, run)
    assert len(run.commands) == 4  # download, tools, configure, build
    peers.make_peers(Path(sys.prefix), tmp_path, {"PATH": ""}, run)
    assert len(run.commands) == 4
    assert "already built" in capsys.readouterr().out
