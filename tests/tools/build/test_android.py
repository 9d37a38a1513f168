"""The script for Android, with stand-ins for Termux: the steps and their order, and how each failure is told.

No phone runs it here. docs/install.md says what was run, and how.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from pipeline import PROJECT

SCRIPT = PROJECT / "tools/build/android.sh"
PHONE = "Features\t: fp asimd evtstrm fphp asimdhp asimddp i8mm"
STEPS = ["pkg install", "list", "install", "apt-get", "rm -rf /opt/pipeline", "image.sh", "job=quickstart"]
"""A word of each call of a first run, in order."""


class Termux:
    """A home, and a PATH that begins with programs that write their arguments down and do nothing."""

    def __init__(self, folder: Path):
        self.prefix, self.home = folder / "com.termux/files/usr", folder / "com.termux/files/home"
        self.log, self.bin = folder / "log", folder / "bin"
        for path in (self.prefix / "bin", self.home, self.bin):
            path.mkdir(parents=True)
        self.env = {"PATH": f"{self.bin}:{os.environ['PATH']}", "PREFIX": str(self.prefix), "HOME": str(self.home)}
        for name in ("pkg", "proot-distro"):
            self.stand_in(name)
        self.stand_in("uname", "echo aarch64")
        self.stand_in("df", "echo 'Filesystem 1024-blocks Used Available'; echo 'x 9 9 6000000 9% /data'")
        self.cpu(PHONE)

    def stand_in(self, name: str, prints: str = "") -> None:
        written = f'printf "%s\\n" "$(echo "{name} $*" | tr "\\n" " ")" >>"{self.log}"'  # at once: pipes run together
        (self.bin / name).write_text(f"#!/bin/sh\n{written}\n{prints}\n", encoding="utf-8")
        (self.bin / name).chmod(0o755)

    def cpu(self, features: str) -> None:
        """Answer `grep` of /proc/cpuinfo; every other one is real."""
        real = shutil.which("grep")
        self.stand_in(
            "grep",
            f"case $* in *Features*) echo '{features}'; [ '{features}' ] || exit 1 ;; *) exec {real} \"$@\" ;; esac",
        )

    def fails_at(self, word: str) -> None:
        for name in ("pkg", "proot-distro"):
            self.stand_in(name, f"case \"{name} $*\" in *'{word}'*) exit 1 ;; esac")

    def run(self) -> tuple[int, str, list[str]]:
        """Run the script; return its exit code, what it said on stderr, and the calls of pkg and proot-distro."""
        done = subprocess.run(["sh", str(SCRIPT)], env=self.env, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr.strip(), self.calls()

    def calls(self) -> list[str]:
        lines = self.log.read_text(encoding="utf-8").splitlines() if self.log.exists() else []
        return [line.strip() for line in lines if line.startswith(("pkg", "proot-distro"))]


@pytest.fixture
def termux(tmp_path) -> Termux:
    return Termux(tmp_path)


def test_the_steps_come_in_order_and_end_with_a_job_by_the_command_that_is_left(termux):
    code, said, calls = termux.run()
    assert (code, said) == (0, "")
    assert [step for step, call in zip(STEPS, calls, strict=True) if step not in call] == []
    assert calls[2] == "proot-distro install --name llama-batch-pipeline debian:trixie-slim"
    build, job = calls[-2], calls[-1]
    for given in (f"--bind {PROJECT}:/checkout", "BACKEND=cpu", "-DGGML_NATIVE=OFF", "/checkout /opt/pipeline"):
        assert given in build
    assert job.endswith("-- /opt/pipeline/bin/python -m pipeline job=quickstart data.limit=20")
    subprocess.run([termux.prefix / "bin/llama-batch-pipeline", "doctor"], cwd="/", env=termux.env, check=True)
    own = "proot-distro login llama-batch-pipeline --bind /:/work --work-dir /work -- "
    assert termux.calls()[-1] == f"{own}/opt/pipeline/bin/python -m pipeline doctor"


@pytest.mark.parametrize(
    ("features", "given", "march"),
    [
        (PHONE, None, "armv8.2-a+dotprod+fp16"),
        ("Features\t: fp asimd asimdhp", None, "armv8-a"),
        ("Features\t: fp asimd", None, "armv8-a"),
        ("Features\t: fp asimd", "armv9-a", "armv9-a"),
        ("", None, "armv8-a"),
    ],
)
def test_llama_cpp_is_compiled_for_instructions_that_the_phone_has_and_whose_bits_are_proven(
    termux, features, given, march
):
    termux.cpu(features)
    termux.env |= {"MARCH": given} if given else {}
    build = termux.run()[2][-2]
    assert f"-DGGML_CPU_ARM_ARCH={march} " in build


def test_a_debian_that_is_there_is_kept_whatever_storage_is_left(termux):
    termux.stand_in("proot-distro", 'if [ "$1" = list ]; then echo llama-batch-pipeline; fi')
    termux.stand_in("df", "echo head; echo 'x 9 9 1000 9% /data'")
    code, said, calls = termux.run()
    assert (code, said) == (0, "")
    assert not any(call.startswith("proot-distro install") for call in calls)


@pytest.mark.parametrize(
    ("at", "says"),
    [
        ("pkg install", "pkg cannot install proot-distro: try `pkg update`, then this again"),
        ("proot-distro install", "proot-distro (5 or later is needed) cannot install Debian: see above"),
        ("apt-get", "apt-get in Debian failed: see above"),
        ("rm -rf", "the former environment cannot be removed"),
        ("image.sh", "image.sh in Debian failed: see above"),
        ("job=quickstart", "the job failed: see above"),
    ],
)
def test_a_step_that_fails_is_the_last_and_says_so(termux, at, says):
    termux.fails_at(at)
    code, said, calls = termux.run()
    assert (code, said) == (1, f"error: {says}")
    assert at in calls[-1]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda t: t.env.pop("PREFIX"), "this is not Termux (PREFIX=): on a computer run `make`"),
        (lambda t: t.stand_in("uname", "echo armv8l"), "this is armv8l: only aarch64 has the packages that are needed"),
        (
            lambda t: t.stand_in("df", "echo head; echo 'x 9 9 3000000 9% /data'"),
            "2 GB of storage are free, 5 GB are needed",
        ),
    ],
)
def test_where_it_cannot_work_nothing_is_made(termux, change, says):
    change(termux)
    code, said, calls = termux.run()
    assert (code, said) == (1, f"error: {says}")
    assert not any("proot-distro install --name" in call for call in calls)
