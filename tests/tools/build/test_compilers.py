"""The choice of the compiler, its flags, and the key of a cached wheel; the command around them."""

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.main import main
from tools.build import build, command, doctor
from tools.build.build import CMAKE_ARGS, PACKAGE, ROOT, BuildError, build_env, build_key, locked_version, progress
from tools.build.compilers import AMX_OFF, CompilerPair, Host, NoCompilerError, find_compiler, this_host

AMX_CPU = Host("Linux", "x86_64", frozenset({"avx512f", "amx_tile", "amx_int8"}))
OLD_CPU = Host("Linux", "x86_64", frozenset({"avx2"}))
ARM = Host("Linux", "aarch64", frozenset({"asimd"}))
MAC_ARM = Host("Darwin", "arm64", frozenset())
MAC_INTEL = Host("Darwin", "x86_64", frozenset())

CLANG = CompilerPair("clang-16", "clang++-16", "clang", "16.0.6", openmp=True)
GCC_OLD = CompilerPair("gcc", "g++", "gcc", "12.2.0", openmp=True)
GCC_NEW = CompilerPair("gcc-13", "g++-13", "gcc", "13.1.0", openmp=True)


GCC = "gcc (Debian 12.2.0-14+deb12u1) 12.2.0"
LLVM = "Debian clang version 16.0.6 (15~deb12u1)"


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """Makes scripts that say and do what compilers do; the PATH has nothing else."""
    monkeypatch.setenv("PATH", str(tmp_path))

    def install(name: str, says: str, openmp: bool = True, works: bool = True) -> None:
        cxx = name.replace("clang", "clang++").replace("gcc", "g++")
        build = f"printf '#!/bin/sh\\nexit {int(not works)}\\n' > $last; /bin/chmod +x $last"
        refuse = "" if openmp else "for each; do test $each = -fopenmp && exit 1; done\n"
        for each, body in (
            (name, f"echo '{says}'\necho Copyright 2022"),
            (cxx, f"{refuse}for last; do :; done\n{build}"),
        ):
            (tmp_path / each).write_text(f"#!/bin/sh\n{body}\n")
            (tmp_path / each).chmod(0o755)

    return install


@pytest.mark.parametrize(
    ("there", "taken"),
    [
        ({"gcc": {}, "clang-16": {}}, "clang 16.0.6"),
        ({"gcc": {}, "clang-16": {"openmp": False}}, "gcc 12.2.0"),
        ({"gcc": {"openmp": False}, "clang-16": {"openmp": False}}, "clang 16.0.6"),
        ({"gcc": {}, "clang-16": {"works": False}}, "gcc 12.2.0"),
    ],
)
def test_clang_comes_first_if_it_works_with_openmp(installed, there, taken):
    for name, more in there.items():
        installed(name, LLVM if "clang" in name else GCC, **more)
    assert str(find_compiler(OLD_CPU, {})) == taken


@pytest.mark.parametrize(("host", "remedy"), [(AMX_CPU, "apt-get install"), (MAC_ARM, "xcode-select --install")])
def test_no_compiler_names_the_remedy(installed, host, remedy):
    with pytest.raises(NoCompilerError, match=remedy):
        find_compiler(host, {})


@pytest.mark.parametrize(
    ("env", "said"),
    [({"CC": "nothing", "CXX": "nothing"}, "CC=nothing CXX=nothing cannot build"), ({"CC": "gcc-13"}, "name both")],
)
def test_a_named_compiler_that_does_not_work_is_an_error(env, said):
    with pytest.raises(NoCompilerError, match=said):
        find_compiler(OLD_CPU, env)


def test_the_users_compilers_come_before_those_that_are_found(installed, tmp_path):
    installed("clang-16", LLVM)
    installed("gcc-13", GCC)
    found = find_compiler(ARM, {"CC": "gcc-13", "CXX": f"{tmp_path}/g++-13"})
    assert (found.cc, found.cxx, str(found)) == ("gcc-13", f"{tmp_path}/g++-13", "gcc 12.2.0")


@pytest.mark.parametrize(
    ("compiler", "host", "flags"),
    [
        *((GCC_OLD, host, AMX_OFF) for host in (AMX_CPU, OLD_CPU)),
        *((GCC_OLD, host, ()) for host in (ARM, MAC_ARM, MAC_INTEL)),
        *((compiler, AMX_CPU, ()) for compiler in (GCC_NEW, CLANG)),
    ],
)
def test_amx_is_switched_off_where_gcc_gets_it_wrong(compiler, host, flags):
    assert compiler.flags(host) == flags
    assert build_env(compiler, host, {})["CXXFLAGS"] == " ".join(flags)


def test_it_says_what_would_be_faster_only_where_it_would():
    assert "with AMX prompts 2.2 times" in GCC_OLD.why(AMX_CPU)
    assert "faster: install a recent clang" in replace(GCC_NEW, openmp=False).why(ARM)
    fine = [GCC_OLD.why(OLD_CPU), GCC_NEW.why(AMX_CPU), replace(CLANG, openmp=False).why(MAC_ARM)]
    assert not [said for said in fine if "install" in said]


def test_the_users_flags_stay_and_ours_come_last():
    user = {"CMAKE_ARGS": "-DGGML_CUDA=on", "CFLAGS": "-O1", "SOURCE_DATE_EPOCH": "0", "HOME": "h"}
    env = build_env(GCC_OLD, AMX_CPU, user)
    assert env["CMAKE_ARGS"] == " ".join([*CMAKE_ARGS, "-DGGML_CUDA=on"])
    assert env["CFLAGS"] == "-O1 " + " ".join(AMX_OFF)
    assert (env["CC"], env["CXX"], env["HOME"]) == ("gcc", "g++", "h")
    assert "SOURCE_DATE_EPOCH" not in env  # ggml would leave out the features of this CPU


def key(words=(PACKAGE, "0.3.36", "cp311"), host=AMX_CPU, compiler=CLANG, **user):
    return build_key(words, host, compiler, build_env(compiler, host, user))


@pytest.mark.parametrize(
    "change",
    [
        {"words": (PACKAGE, "0.3.37", "cp311")},
        {"words": (PACKAGE, "0.3.36", "cp312")},
        {"host": replace(AMX_CPU, cpu_flags=AMX_CPU.cpu_flags | {"avx512_fp16"})},
        {"host": replace(AMX_CPU, machine="aarch64")},
        {"compiler": GCC_NEW},
        {"compiler": replace(CLANG, version="16.0.7")},
        {"compiler": replace(CLANG, openmp=False)},
        {"CMAKE_ARGS": "-DGGML_CUDA=on"},
        {"CXXFLAGS": "-O1"},
    ],
)
def test_another_build_has_another_key(change):
    assert key(**change) != key() == key()


def test_a_key_is_readable():
    assert key().startswith("llama-cpp-python-0.3.36-cp311-linux-x86_64-clang16.0.6-")


def test_what_is_installed_is_known_by_its_stamp(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(build, "chosen_compiler", lambda host, env: CLANG)
    monkeypatch.setattr(build, "build_wheel", lambda *_: pytest.fail("built"))
    monkeypatch.setattr(build, "make_kernels", lambda *_: None)
    folder = tmp_path / "lib/python3.11/site-packages/llama_cpp_python-0.3.36.dist-info"
    folder.mkdir(parents=True)
    (folder / "RECORD").write_text("a file,its hash,9\n")
    words = [PACKAGE, locked_version(ROOT / "requirements.lock").version, "cp{}{}".format(*sys.version_info)]
    stamp = {"key": build_key(words, this_host(), CLANG, build_env(CLANG, this_host(), {})), "record": build.record()}
    (tmp_path / build.STAMP).write_text(json.dumps(stamp))
    again = argparse.Namespace(rebuild=False, dry_run=False)
    build.run(again, {"LLAMA_WHEEL_CACHE": str(tmp_path / "no wheel is there")})
    assert "already installed" in capsys.readouterr().out
    (folder / "RECORD").write_text("a file,another hash,9\n")
    with pytest.raises(pytest.fail.Exception, match="built"):
        build.run(again, {"LLAMA_WHEEL_CACHE": str(tmp_path / "no wheel is there")})


def test_progress_is_the_last_step_of_ninja():
    assert progress("Collecting x\n") == "downloading and configuring"
    assert progress("  [1/140] cc a.c\n  [2/140] cc b.c\n") == "step 2 of 140"


def test_the_locked_entry_keeps_its_hashes(tmp_path):
    lock = tmp_path / "requirements.lock"
    lock.write_text("numpy==2.4.6\n")
    with pytest.raises(BuildError, match="make lock"):
        locked_version(lock)
    entry = "llama-cpp-python==0.3.36 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\n"
    lock.write_text(f"jinja2==3.1.6\n{entry}    # via us\nnumpy==2.4.6\n")
    assert locked_version(lock) == ("0.3.36", entry)


@pytest.mark.parametrize("name", ["build.py", "peers.py"])
def test_it_runs_before_anything_is_installed(name):
    """-I -S: no site-packages, no PYTHONPATH."""
    script = Path("tools") / "build" / name
    done = subprocess.run([sys.executable, "-I", "-S", script, "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout


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
