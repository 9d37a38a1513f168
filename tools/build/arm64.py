"""Build llama.cpp for arm64 and try it in an emulator: `.venv/bin/python tools/build/arm64.py`.

Makes in `.cache/arm64` a root folder with Debian's Python for arm64, the locked packages' arm64 wheels and, for each of
the CPUS that are named (default: dotprod), llama-cpp-python from a cross compiler; then runs in qemu-user, for each,
CHECKS: `doctor`, the job quickstart and the tests of bits. What is there already is not made again. Needs no root.
After `--` comes a command for that Python instead of the checks: `... arm64.py dotprod -- -m pipeline doctor`.
Standard library only; the Python that runs it has the version of Debian's, 3.11.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
if not __package__:  # started as a script: import from the checkout, and do not let this folder's files shadow modules
    sys.path[0] = str(ROOT)

from tools.build.build import CMAKE_ARGS, LOCK, PACKAGE, PIP, BuildError, build_wheel, exit_code, locked_version

DEBIAN = ("python3-minimal", "libpython3-stdlib", "libstdc++6", "libgomp1")
PYTHON = "usr/bin/python3.11"
CROSS = ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++")
QEMU = "qemu-aarch64-static"
NEEDED = "Debian 12: apt-get install qemu-user-static g++-aarch64-linux-gnu"
WITHOUT_WHEELS = ("antlr4-python3-runtime",)  # of the locked packages: pure Python, published as source only
GLIBC_MINORS = range(17, 37)  # Debian 12 has 2.36
CMAKE = "-DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 -DGGML_NATIVE=OFF"


class Cpu(NamedTuple):
    """The instructions that are compiled in, as GCC's -march names them, and a CPU of qemu's that has them."""

    march: str
    qemu: str


CPUS = {
    "dotprod": Cpu("armv8.2-a+dotprod+fp16", "neoverse-n1"),  # Graviton 2, Ampere Altra, Raspberry Pi 5
    "i8mm": Cpu("armv8.2-a+dotprod+fp16+i8mm", "max,sve=off"),  # Apple M2; Graviton 3 has SVE as well
    "plain": Cpu("armv8-a", "cortex-a72"),  # Graviton 1, Raspberry Pi 4
}
"""Only dotprod was run. On the others the tests of bits fail for now: operators.llama.kernels has a doubt there."""
_LAW = "tests/operators/llama/test_decoding.py::test_logits_are_the_same_to_the_bit_in_any_company"
_WAYS = "tests/test_invariance.py::test_the_same_bytes"
CHECKS = {
    "doctor": ("-m", "pipeline", "doctor"),
    "quickstart": (
        "-m",
        "pipeline",
        "job=quickstart",
        "data.limit=20",
        "progress=none",
        "output_dir=FOLDER/quickstart",
    ),
    "logits": ("-m", "pytest", "-q", "-m", "", f"{_LAW}[q8_0]", f"{_LAW}[q4_0]"),  # those of PROVEN_ON_ARM
    "bytes": ("-m", "pytest", "-q", "-m", "", f"{_WAYS}[warm-one slot]", f"{_WAYS}[warm-seven slots, shuffled]"),
}


def missing() -> list[str]:
    """Return the programs that are needed and not installed."""
    return [name for name in ("apt-get", "dpkg-deb", QEMU, *CROSS) if not shutil.which(name)]


def make_root(cache: Path) -> Path:
    """Unpack Debian's Python for arm64 and what it needs into `cache`/root; the state of apt is there too."""
    root, apt = cache / "root", cache / "apt"
    if root.exists():
        return root
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    (apt / "apt.conf").write_text(
        'APT::Architecture "arm64";\nAPT::Architectures { "arm64"; };\nAPT::Install-Recommends "false";\n'
        f'Dir::State "{apt}/state";\nDir::State::status "{apt}/status";\nDir::Cache "{apt}/cache";\n'
        'Debug::NoLocking "true";\nAPT::Sandbox::User "";\n'
    )
    env = {**os.environ, "APT_CONFIG": str(apt / "apt.conf")}
    _call(["apt-get", "-qq", "update"], env)
    _call(["apt-get", "-qq", "--yes", "--download-only", "install", *DEBIAN], env)
    unpacked = _emptied(cache / "root.unfinished")
    for package in sorted(apt.glob("cache/archives/*.deb")):
        _call(["dpkg-deb", "-x", str(package), str(unpacked)])
    return unpacked.rename(root)


def make_packages(cache: Path) -> Path:
    """Install the locked packages but llama-cpp-python, in their wheels for arm64, into `cache`/packages."""
    packages = cache / "packages"
    if packages.exists():
        return packages
    entries = list(re.finditer(r"^([\w.-]+)==.*(?:\n +.*)*\n", LOCK.read_text(), re.MULTILINE))
    published = {entry[1] for entry in entries} - {PACKAGE, *WITHOUT_WHEELS}
    unfinished = _emptied(cache / "packages.unfinished")
    platforms = [f"--platform=manylinux_2_{minor}_aarch64" for minor in GLIBC_MINORS]
    wheels = ["--only-binary=:all:", "--python-version=3.11", "--platform=manylinux2014_aarch64", *platforms]
    for names, options in ((published, wheels), (set(WITHOUT_WHEELS), [])):
        listed = cache / "requirements.txt"
        listed.write_text("".join(entry[0] for entry in entries if entry[1] in names))
        given = ["--quiet", "--no-deps", "--require-hashes", "--target", str(unfinished), *options, "-r", str(listed)]
        _call([*PIP, "install", "--disable-pip-version-check", *given])
    return unfinished.rename(packages)


def make_python(cache: Path, name: str) -> Path:
    """Compile llama-cpp-python for CPUS[name], and return the Python, run in the emulator, that has it."""
    root, packages, place, cpu = make_root(cache), make_packages(cache), cache / name, CPUS[name]
    locked = locked_version(LOCK)
    wheel = cache / "wheels" / f"{PACKAGE}-{locked.version}-{cpu.march}"
    if not wheel.exists():
        flags = " ".join([*CMAKE_ARGS, CMAKE, f"-DGGML_CPU_ARM_ARCH={cpu.march}"])
        env = {**os.environ, "CC": CROSS[0], "CXX": CROSS[1], "CMAKE_ARGS": flags}
        env["_PYTHON_HOST_PLATFORM"] = "linux-aarch64"  # for the wheel's name
        build_wheel(locked, env, wheel, f"building {PACKAGE} {locked.version} for {cpu.march}")
    site = _emptied(place) / "lib/python3.11/site-packages"
    with zipfile.ZipFile(next(wheel.glob("*.whl"))) as archive:
        archive.extractall(site)
    (site / "packages.pth").write_text(f"{packages}\n")
    (place / "pyvenv.cfg").write_text(f"home = {root}/usr/bin\ninclude-system-site-packages = false\n")
    python = place / "bin/python"
    python.parent.mkdir()
    # Python takes its name, and so its environment and sys.executable, from argv[0]: children come here again.
    emulated = f'QEMU_CPU={cpu.qemu} exec {QEMU} -0 "$0" -L {root} {root}/{PYTHON} "$@"'
    python.write_text(f"#!/bin/sh\n{emulated}\n")
    python.chmod(0o755)
    return python


def _emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _call(command: Sequence[str], env: dict[str, str] | None = None) -> None:
    process = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if process.returncode:
        raise BuildError(f"{' '.join(command[:4])} ... failed:\n{process.stdout[-2000:]}")


def run(cache: Path, names: Sequence[str], command: Sequence[str]) -> None:
    """Make what is missing, and run `command`, or all CHECKS, on each of the CPUs. Raises BuildError if one fails."""
    if sys.version_info[:2] != (3, 11):
        raise BuildError(f"needs Python 3.11, as Debian 12's arm64 packages have; this is {sys.version.split()[0]}")
    if absent := missing():
        raise BuildError(f"not installed: {', '.join(absent)} ({NEEDED})")
    cache.mkdir(parents=True, exist_ok=True)
    (cache / ".gitignore").write_text("*\n")
    failed = []
    for name in names:
        python = make_python(cache, name)
        for check, given in {"command": command}.items() if command else CHECKS.items():
            print(f"== {name} ({CPUS[name].march} on {CPUS[name].qemu}): {check}", flush=True)
            began = time.monotonic()
            words = [word.replace("FOLDER", str(cache / name)) for word in given]
            code = subprocess.run([python, *words], cwd=ROOT, check=False).returncode
            print(f"== {name}: {check} ended with {code} after {time.monotonic() - began:.0f} s", flush=True)
            failed += [f"{name}: {check}"] if code else []
    if failed:
        raise BuildError(f"failed: {', '.join(failed)}")


def main(argv: Sequence[str]) -> int:
    """Run the command. Returns 0 if all is well, 1 with the reason on stderr if not."""
    end = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cpus", nargs="*", default=["dotprod"], help=f"of {', '.join(CPUS)} (default: dotprod)")
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "arm64", help="where all is made")
    arguments = parser.parse_args(argv[:end])
    if unknown := set(arguments.cpus) - CPUS.keys():
        parser.error(f"no CPU is called {', '.join(unknown)}; there are {', '.join(CPUS)}")
    return exit_code(lambda: run(arguments.cache.absolute(), arguments.cpus, argv[end + 1 :]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
