"""This project's kernels are compiled beside llama.cpp's libraries, once for the same sources, and end no build."""

from __future__ import annotations

import argparse
import functools
import io
import json
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.operators.llama.kernels import library
from tests.operators.llama.kernels.test_products import check_golden
from tests.operators.llama.test_packed import said_of_a_library
from tools.build import build, kernels
from tools.build.build import LOCK, STAMP, WHEELS, BuildError, download_source, headers_folder, locked_version
from tools.build.compilers import CompilerPair, Host, _installed_pairs, this_host, try_compiler

LINUX = Host("Linux", "x86_64", frozenset({"avx2"}))
LOCKED = locked_version(LOCK)
KEPT = headers_folder(LOCKED, Path(os.environ.get("LLAMA_WHEEL_CACHE") or WHEELS))
HEADERS = ("include/ggml.h", "src/ggml-impl.h", "src/ggml-cpu/traits.h")
OTHERS = ("src/ggml-cpu/arch/x86/quants.h", "src/ggml-cuda/common.cuh", "src/ggml-impl.h/../../../../escaped.h", "a.h")


class Place:
    """An environment with llama.cpp's libraries, a cache, sources and a compiler that writes what it was told."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache, self.stamp, self.told = folder / "wheels", folder / STAMP, folder / "told"
        self.lib = folder / "lib/python{}.{}/site-packages/llama_cpp/lib".format(*sys.version_info)
        self.sources, self.cxx, self.downloads = folder / "native", folder / "c++", 0
        for each in (self.lib, self.sources):
            each.mkdir(parents=True)
        for name in ("plain", "dot_avx2", "dot_avxvnni", "dot_avx512vnni"):
            (self.sources / f"{name}.cpp").write_text(f"// {name}\n")
        self.compiler_does("for last; do :; done; echo made > $last")
        monkeypatch.setattr(sys, "prefix", str(folder))
        monkeypatch.setattr(kernels, "SOURCES", self.sources)
        monkeypatch.setattr(kernels, "_ASK", "print('1.2.3'); print('abc-dirty')")
        monkeypatch.setattr(build, "run_with_progress", lambda *_: pytest.fail("a network is used"))
        monkeypatch.setattr(build, "download_source", self.download)

    def compiler_does(self, script: str) -> None:
        self.cxx.write_text(f'#!/bin/sh\necho "$@" >> {self.told}\n{script}\n')
        self.cxx.chmod(0o755)

    def download(self, locked: object, env: object, folder: Path, log: Path) -> Path:
        self.downloads += 1
        return package(folder)

    def make(self, version: str = "12.2.0", host: Host = LINUX) -> list[list[str]]:
        """Make the kernels; return the compiler's command lines."""
        self.told.write_text("")
        compiler = CompilerPair(str(self.cxx), str(self.cxx), "gcc", version, openmp=True)
        build.make_kernels(LOCKED, compiler, host, {}, self.cache)
        return [line.split() for line in self.told.read_text().splitlines()]


@pytest.fixture
def place(tmp_path, monkeypatch) -> Place:
    return Place(tmp_path, monkeypatch)


def package(folder: Path) -> Path:
    """A source package with headers where ggml has them, and other files."""
    archive = folder / "llama_cpp_python-1.2.3.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        for name in (*HEADERS, *OTHERS, "src/ggml.c"):
            packed.addfile(tarfile.TarInfo(f"llama_cpp_python-1.2.3/vendor/llama.cpp/ggml/{name}"), io.BytesIO(b""))
    return archive


def test_a_file_has_the_instructions_of_its_name_and_what_makes_the_bits_is_given_to_all(place):
    *compiled, linked = place.make()
    by_name = {Path(words[words.index("-c") + 1]).stem: words for words in compiled}
    machine = {name: {word for word in words if word.startswith("-m")} for name, words in by_name.items()}
    assert machine.pop("plain") == set()
    assert machine == {f"dot_{word}": set(flags) for word, flags in kernels.CPU_FLAGS.items()}
    given = {f'-DKERNELS_SOURCES="{kernels.version()}"', '-DKERNELS_GGML_COMMIT="abc-dirty"', *kernels.FLAGS}
    assert all(given <= set(words) for words in by_name.values())
    assert "-ffp-contract=off" in given
    assert not any("march" in word or "fast-math" in word for words in (*compiled, linked) for word in words)
    assert "-shared" in linked
    assert not any("ggml" in word for word in linked)  # its symbols are looked up in what is loaded


def test_a_source_that_is_named_for_instructions_gets_them():
    named = [path for path in kernels.SOURCES.glob("*.cpp") if re.search(r"_(sse|avx|amx|fma|f16c)\w*$", path.stem)]
    assert [path.name for path in named if not kernels.cpu_flags(path)] == []


def test_headers_are_unpacked_from_the_locked_package_once_and_then_no_network_is_used(place):
    place.make()
    kept = headers_folder(LOCKED, place.cache)
    assert {path.relative_to(kept / "ggml").as_posix() for path in kept.rglob("*.h")} == set(HEADERS)
    place.make(version="13.1.0")
    assert place.downloads == 1
    assert {path.name for path in place.cache.iterdir()} == {".gitignore", kept.name}


def test_a_wheel_that_is_built_leaves_the_headers_of_its_package(tmp_path, monkeypatch):
    """One download: the wheel is made of the archive whose hash was checked."""
    ran: list[list[str]] = []

    def pip(command: Sequence[str], env: Mapping[str, str], log: Path, title: str) -> None:
        ran.append(list(command))
        if "download" in command:
            package(Path(command[command.index("--dest") + 1]))
        else:
            Path(command[command.index("--wheel-dir") + 1]).mkdir()

    monkeypatch.setattr(build, "run_with_progress", pip)
    monkeypatch.setattr(build, "download_source", functools.partial(download_source, run=pip))
    build.build_wheel(LOCKED, {}, tmp_path / "key", "building")
    assert [command[3] for command in ran] == ["download", "wheel"]
    assert {"--require-hashes", "--no-deps", "--no-binary"} <= set(ran[0])
    assert ran[1][-1].endswith("llama_cpp_python-1.2.3.tar.gz")
    assert (headers_folder(LOCKED, tmp_path) / "ggml" / HEADERS[0]).exists()


def test_the_same_sources_compiler_and_llama_cpp_are_compiled_once(place, capsys):
    assert len(place.make()) == 5
    assert place.make() == []
    assert "already compiled" in capsys.readouterr().out
    record = place.lib.parents[1] / "llama_cpp_python-1.2.3.dist-info/RECORD"
    changes = [
        lambda: (place.sources / "plain.cpp").write_text("// another\n"),
        lambda: (place.sources / "a.h").touch(),
        lambda: (place.lib / kernels.LIBRARY).unlink(),
        lambda: record.parent.mkdir() or record.write_text("another build\n"),
        lambda: place.stamp.write_text(json.dumps({"key": "of what was installed anew"})),
    ]
    for change in changes:
        change()
        assert place.make()
        assert place.make() == []
    assert place.make(version="13.1.0")
    assert json.loads(place.stamp.read_text())["key"] == "of what was installed anew"


@pytest.mark.parametrize("at", ["-c", "-shared", "header", "ggml"])
def test_what_fails_is_told_in_one_line_and_leaves_llama_cpps_kernels(place, monkeypatch, capsys, at):
    place.make()
    (place.sources / "plain.cpp").write_text("// another\n")
    said = "plain.cpp:1:1: error: it broke"
    if at == "header":
        monkeypatch.setattr(build, "headers_folder", lambda *_: place.cache / "not there")
        failed = BuildError(f"downloading failed:\n  {said}\nThe whole log: x")
        monkeypatch.setattr(build, "download_source", lambda *_: (_ for _ in ()).throw(failed))
    elif at == "ggml":
        monkeypatch.setattr(kernels, "_ASK", f"raise SystemExit({said!r})")
    else:
        place.compiler_does(f"case \"$*\" in *{at}*) echo 'In file x:' >&2; echo '{said}' >&2; exit 1 ;; esac")
    capsys.readouterr()
    place.make()
    line = f"kernels: llama.cpp's, as those of this project were not compiled: {said}\n"
    assert capsys.readouterr().out == line
    assert not (place.lib / kernels.LIBRARY).exists()
    assert "kernels" not in json.loads(place.stamp.read_text())


def compiler_of(family: str) -> CompilerPair:
    """The first compiler of the family that works here; skips the test where there is none."""
    installed = (try_compiler(*pair, openmp=False) for pair in _installed_pairs(this_host()))
    found = next((compiler for compiler in installed if compiler and compiler.family == family), None)
    return found or pytest.skip(f"no {family} is installed here")


@pytest.fixture
def compiled(tmp_path):
    """Compiles the sources by a compiler of that family, and returns the library."""
    (tmp_path / "libggml-base.so").symlink_to(
        next(Path(sys.prefix).glob("lib/python3*/*/llama_cpp/lib/libggml-base.so"))
    )

    def compile_by(family: str) -> Path:
        kernels.compile_into(tmp_path, compiler_of(family), KEPT)
        return Path(tmp_path / kernels.LIBRARY)

    return compile_by


@pytest.mark.laws
@pytest.mark.skipif(not kernels.are_for(this_host()), reason="there are kernels for Linux on x86-64 only")
@pytest.mark.skipif(not KEPT.exists(), reason="ggml's headers are not kept here: `make llama` fetches them")
@pytest.mark.parametrize("family", ["gcc", "clang"])
def test_the_sources_compile_and_no_file_shares_code_that_needs_instructions(compiled, monkeypatch, family):
    """By each compiler that is installed, to the same bits. Of a weak symbol the linker keeps one for all files: a CPU
    without its instructions would crash."""
    shared: dict[str, list[str]] = {}

    def spied(commands: list[list[str]]) -> None:
        run_at_once(commands)
        for command in commands:
            source = Path(command[command.index("-c") + 1])
            symbols = output(["nm", "-C", command[-1]]).splitlines() if kernels.cpu_flags(source) else []
            shared[source.name] = [line for line in symbols if re.search(r" [WVu] ", line)]

    output, run_at_once = kernels._output, kernels._run_at_once
    monkeypatch.setattr(kernels, "_run_at_once", spied)
    monkeypatch.setattr(library, "PATH", compiled(family))
    assert len(shared) == len(list(kernels.SOURCES.glob("*.cpp"))) > 0
    assert {name: found for name, found in shared.items() if found} == {}
    for kind in library.KINDS:
        check_golden(kind)


@pytest.mark.laws
@pytest.mark.skipif(not kernels.are_for(this_host()), reason="there are kernels for Linux on x86-64 only")
@pytest.mark.skipif(not KEPT.exists(), reason="ggml's headers are not kept here: `make llama` fetches them")
def test_a_library_whose_products_are_wrong_is_left_out(compiled, monkeypatch, tmp_path):
    """Wrong in all sets of instructions alike: by llama.cpp's own values in double precision."""
    sources = Path(shutil.copytree(kernels.SOURCES, tmp_path / "native"))
    packs = (sources / "pack.cpp").read_text()
    (sources / "pack.cpp").write_text(packs.replace("0x80808080", "0x80808081"))
    monkeypatch.setattr(kernels, "SOURCES", sources)
    lines, tensors = said_of_a_library(compiled("gcc"))
    assert tensors == 0
    assert "they failed their test: the products of q8_0 by" in lines[0]


@pytest.mark.parametrize("host", [Host("Linux", "aarch64", frozenset()), Host("Darwin", "x86_64", frozenset())])
def test_elsewhere_nothing_is_compiled_and_it_is_said(place, host, capsys):
    assert place.make(host=host) == []
    assert capsys.readouterr().out.startswith("kernels: llama.cpp's, ")
    assert list(place.lib.iterdir()) == []


@pytest.mark.parametrize("backend", ["cpu", "any_cpu", "vulkan"])
@pytest.mark.parametrize("installed", [True, False])
def test_every_build_makes_them_after_llama_cpp(tmp_path, monkeypatch, backend, installed):
    asked = []
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(build, "tool_version", lambda _: "")
    monkeypatch.setattr(build, "examine", lambda *_: "")
    monkeypatch.setattr(build, "chosen_compiler", lambda host, env: CompilerPair("c", "c", "gcc", "13.1", openmp=True))
    monkeypatch.setattr(build, "build_key", lambda *_: "key")
    monkeypatch.setattr(build, "record", lambda: "record")
    monkeypatch.setattr(build, "install", lambda *_: asked.append("installed"))
    monkeypatch.setattr(build, "make_kernels", lambda *_: asked.append("kernels"))
    (tmp_path / "key").mkdir()
    (tmp_path / "key/a.whl").touch()
    if installed:
        (tmp_path / STAMP).write_text(json.dumps({"key": "key", "record": "record"}))
    given = argparse.Namespace(rebuild=False, dry_run=False)
    build.run(given, {"LLAMA_WHEEL_CACHE": str(tmp_path)}, backend)
    assert asked == ["kernels"] if installed else ["installed", "kernels"]
