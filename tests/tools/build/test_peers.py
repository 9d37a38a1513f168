"""llama.cpp's programs are built from the locked source, all or none, and only where they are not there."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tools.build import peers
from tools.build.build import BuildError
from tools.build.compilers import AMX_OFF, CompilerPair, Host
from tools.build.peers import PROGRAMS, STAMP, make_peers

HOST = Host("Linux", "x86_64", frozenset({"avx512f", "amx_tile", "amx_int8"}))
GCC = CompilerPair("gcc", "g++", "gcc", "12.2.0", openmp=True)


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    monkeypatch.setattr(peers, "chosen_compiler", lambda host, env: GCC)
    monkeypatch.setattr(peers, "this_host", lambda: HOST)


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
        elif "--build" in command:
            made = Path(command[command.index("--build") + 1]) / "bin"
            made.mkdir(parents=True)
            for name in self.programs:
                (made / name).touch()


def archive(folder: Path) -> None:
    with tarfile.open(folder / "llama_cpp_python-1.2.3.tar.gz", "w:gz") as packed:
        info = tarfile.TarInfo("llama_cpp_python-1.2.3/vendor/llama.cpp/CMakeLists.txt")
        packed.addfile(info, io.BytesIO(b""))


def test_it_is_built_of_the_locked_source_with_our_compiler_and_flags(tmp_path):
    run = Runs()
    make_peers(tmp_path, {"PATH": "", "CMAKE_ARGS": "-DGGML_CUDA=on"}, run)
    download, tools, configure, make = run.commands
    assert {"--require-hashes", "--no-deps", "--no-binary"} <= set(download)
    assert tools[-2:] == ["cmake", "ninja"]
    assert configure[0] == make[0] == f"{tools[tools.index('--target') + 1]}/bin/cmake"
    assert configure[configure.index("-S") + 1].endswith("llama_cpp_python-1.2.3/vendor/llama.cpp")
    assert {"-DCMAKE_BUILD_TYPE=Release", "-DGGML_CUDA=on"} <= set(configure)
    assert make[-3:] == list(PROGRAMS)
    assert (run.envs[2]["CC"], run.envs[2]["CXX"]) == ("gcc", "g++")
    assert run.envs[2]["CFLAGS"] == " ".join(AMX_OFF)
    assert {path.name for path in tmp_path.iterdir()} == {".gitignore", "bin", "build.log"}


def test_nothing_is_done_where_the_programs_are_there(tmp_path, capsys):
    run = Runs()
    make_peers(tmp_path, {"PATH": ""}, run)
    make_peers(tmp_path, {"PATH": ""}, run)
    assert len(run.commands) == 4
    assert "already built" in capsys.readouterr().out
    make_peers(tmp_path, {"PATH": "", "CFLAGS": "-O1"}, run)
    assert len(run.commands) == 8
    (tmp_path / "bin/llama-bench").unlink()
    make_peers(tmp_path, {"PATH": "", "CFLAGS": "-O1"}, run)
    assert len(run.commands) == 12


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (Runs(fail="download"), "it broke"),
        (Runs(fail="install"), "it broke"),
        (Runs(fail="-S"), "it broke"),
        (Runs(fail="--build"), "it broke"),
        (Runs(programs=PROGRAMS[:1]), "made no llama-batched-bench"),
    ],
)
def test_a_failed_build_keeps_what_was_there(tmp_path, run, says):
    make_peers(tmp_path, {"PATH": ""}, Runs())
    before = json.loads((tmp_path / "bin" / STAMP).read_text())
    with pytest.raises(BuildError, match=says):
        make_peers(tmp_path, {"PATH": "", "CFLAGS": "-O1"}, run)
    assert json.loads((tmp_path / "bin" / STAMP).read_text()) == before
    assert not list(tmp_path.glob("building-*"))
