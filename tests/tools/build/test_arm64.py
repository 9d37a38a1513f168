"""llama.cpp for arm64 in an emulator: what is needed is named, and where it is made the checks hold."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from pipeline import PROJECT
from tools.build import arm64
from tools.build.build import LOCK, PACKAGE, locked_version

CACHE = PROJECT / ".cache/arm64"
UNMADE = "nothing is made for it: `.venv/bin/python tools/build/arm64.py` takes some 40 minutes"
LOCAL = pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="Debian 12's arm64 packages are for Python 3.11")


@LOCAL
def test_what_is_not_installed_is_named_with_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert arm64.main(["--cache", str(tmp_path / "cache")]) == 1
    assert "not installed: apt-get, dpkg-deb, qemu-aarch64-static" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()


def test_a_cpu_that_is_not_known_is_refused(capsys):
    with pytest.raises(SystemExit):
        arm64.main(["sparc"])
    assert "no CPU is called sparc; there are dotprod" in capsys.readouterr().err


def test_every_locked_package_is_taken_in_all_its_versions_but_llama(monkeypatch, tmp_path):
    """numpy is in the lock file once for each range of Python versions; pip chooses."""
    taken: list[str] = []
    monkeypatch.setattr(arm64, "_call", lambda command: taken.append(Path(command[-1]).read_text(encoding="utf-8")))
    arm64.make_packages(tmp_path)
    wheels, sources = taken
    lines = [line for line in LOCK.read_text(encoding="utf-8").splitlines() if "==" in line and line[0] not in " #"]
    assert {line for line in (wheels + sources).splitlines() if line[0] not in " #"} == {
        line for line in lines if not line.startswith(f"{PACKAGE}==")
    }
    assert wheels.count("\nnumpy==") == 2
    assert sources.startswith("antlr4-python3-runtime==")


@pytest.fixture
def made(tmp_path) -> Path:
    """A cache with a root, packages and a wheel, all of which stand in for those that take long."""
    for folder in ("root", "packages"):
        (tmp_path / folder).mkdir()
    wheel = tmp_path / "wheels" / f"{PACKAGE}-{locked_version(LOCK).version}-{arm64.CPUS['dotprod'].march}"
    wheel.mkdir(parents=True)
    with zipfile.ZipFile(wheel / "a.whl", "w") as archive:
        archive.writestr("llama_cpp/__init__.py", "")
    return tmp_path


def test_its_python_is_emulated_and_so_are_its_children(made, monkeypatch):
    """argv[0] is what Python takes for sys.executable."""
    python = arm64.make_python(made, "dotprod")
    (made / arm64.QEMU).write_text('#!/bin/sh\necho "$QEMU_CPU" "$@"\n')
    (made / arm64.QEMU).chmod(0o755)
    monkeypatch.setenv("PATH", str(made), prepend=":")
    said = subprocess.run([python, "-c", "pass"], capture_output=True, text=True, check=True).stdout.split()
    root = made / "root"
    expected = ["neoverse-n1", "-0", str(python), "-L", str(root), f"{root}/{arm64.PYTHON}", "-c", "pass"]
    assert said == expected
    site = made / "dotprod/lib/python3.11/site-packages"
    assert (site / "llama_cpp/__init__.py").exists()
    assert (site / "packages.pth").read_text() == f"{made / 'packages'}\n"


@LOCAL
@pytest.mark.laws
@pytest.mark.skipif(bool(arm64.missing()), reason=f"not installed: {', '.join(arm64.missing())}; {arm64.NEEDED}")
@pytest.mark.skipif(not (CACHE / "dotprod").exists(), reason=UNMADE)
def test_the_doctor_the_quickstart_and_the_bits_hold_on_arm64():
    assert arm64.main(["dotprod"]) == 0
