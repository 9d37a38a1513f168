"""A backend gives its flags to CMake, and its tools are checked before anything is compiled."""

import argparse
import sys

import pytest

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.main import main
from tools.build import build, command, doctor
from tools.build.backends import BACKENDS, tool_version
from tools.build.compilers import CompilerPair, Host, NoCompilerError

GCC = CompilerPair("gcc-13", "g++-13", "gcc", "13.1.0", openmp=True)
GPUS = {"cuda", "vulkan", "metal", "hip"}
WITH_TOOLS = sorted(name for name, backend in BACKENDS.items() if backend.tool)


@pytest.fixture
def tools(tmp_path, monkeypatch):
    """Makes the tool of a backend, which exits with a code; the PATH has nothing else."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def there(name: str, code: int = 0, says: str = "release 12.4") -> None:
        path = tmp_path / BACKENDS[name].tool[0]
        path.write_text(f"#!/bin/sh\necho {says}\nexit {code}\n")
        path.chmod(0o755)

    return there


def test_those_that_compute_on_a_gpu_are_proved_there():
    assert {name for name, backend in BACKENDS.items() if backend.is_gpu} == GPUS


@pytest.mark.parametrize("name", WITH_TOOLS)
def test_a_tool_that_is_missing_or_broken_is_named_with_what_to_install(tools, name):
    with pytest.raises(NoCompilerError, match=f"backend={name} needs .*{BACKENDS[name].tool[0]} is not found"):
        tool_version(name)
    tools(name, code=1)
    with pytest.raises(NoCompilerError, match=f"backend={name} needs .*does not work"):
        tool_version(name)
    tools(name)
    assert tool_version(name) == "release 12.4"


@pytest.mark.parametrize("name", BACKENDS)
def test_the_flags_reach_cmake_and_each_version_has_a_wheel_of_its_own(tools, monkeypatch, tmp_path, name):
    built: dict[str, dict[str, str]] = {}
    monkeypatch.setattr(build, "chosen_compiler", lambda host, env: GCC)
    monkeypatch.setattr(build, "build_wheel", lambda locked, env, folder, title: built.update({folder.name: env}))
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for says in ("release 12.4", "release 12.8"):
        if name in WITH_TOOLS:
            tools(name, says=says)
        with pytest.raises(IndexError):  # there is no wheel to install
            build.run(argparse.Namespace(rebuild=True, dry_run=False), {"CMAKE_ARGS": "-DMINE=1"}, name)
    flags = BACKENDS[name].flags.split()
    assert all(env["CMAKE_ARGS"].split() == ["-DLLAVA_BUILD=OFF", *flags, "-DMINE=1"] for env in built.values())
    assert len(built) == (2 if name in WITH_TOOLS else 1)


def test_a_compiler_that_gets_amx_wrong_builds_no_kernels_for_a_cpu_that_has_it(monkeypatch):
    old = CompilerPair("gcc", "g++", "gcc", "12.2.0", openmp=True)
    monkeypatch.setattr(build, "chosen_compiler", lambda host, env: old)
    monkeypatch.setattr(build, "this_host", lambda: Host("Linux", "x86_64", frozenset()))
    with pytest.raises(NoCompilerError, match="backend=any_cpu needs GCC 13 or later"):
        build.run(argparse.Namespace(rebuild=False, dry_run=True), {}, "any_cpu")


@pytest.mark.parametrize(("ended", "proved"), [(0, 7), (1, 1)])
def test_a_build_is_proved_and_its_doctor_has_the_last_word(monkeypatch, ended, proved):
    asked = []
    monkeypatch.setattr(command, "run", lambda given, env, backend: asked.append((given.rebuild, backend)))
    monkeypatch.setattr(command, "exit_code", lambda work: work() or ended)
    monkeypatch.setattr(doctor, "main", lambda argv: 7)
    assert command.main(["backend=vulkan", "rebuild=true"]) == proved
    assert asked == [(True, "vulkan")]


@pytest.mark.parametrize(
    ("word", "says"), [("backend=gpu", "there are cpu, any_cpu, cuda"), ("fast=true", "write python -m")]
)
def test_what_is_no_setting_is_told(word, says):
    with pytest.raises(ConfigError, match=says):
        command.main([word])


def test_dry_run_builds_nothing(monkeypatch, capsys):
    monkeypatch.setattr(build, "build_wheel", lambda *_: pytest.fail("built"))
    assert main(["build", "dry_run=true"]) == ExitCode.DONE
    assert "wheel: " in capsys.readouterr().out
