"""Build llama-cpp-python for this machine and install it: `.venv/bin/python tools/build/build.py`.

It goes into the environment of the Python that runs this. Standard library only: it runs before anything is installed.
A build takes minutes, so wheels are kept in `.cache/wheels/<key>/` (or under $LLAMA_WHEEL_CACHE). The key holds all
that decides what comes out: version, Python, machine, compiler, flags, CPU features and the architectures of GPUs,
because the code is compiled for exactly this machine. pip's own cache knows nothing of those and is not used.

CC, CXX, CFLAGS, CXXFLAGS, LDFLAGS and CMAKE_ARGS are honoured.
"""

import argparse
import contextlib
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
if not __package__:  # started as a script: import from the checkout, and do not let this folder's files shadow modules
    sys.path[0] = str(ROOT)

from tools.build import kernels
from tools.build.backends import BACKENDS, examine, tool_version
from tools.build.compilers import (
    GOOD_CLANG,
    SOUND_GCC,
    CompilerPair,
    Host,
    NoCompilerError,
    find_compiler,
    this_host,
)

PACKAGED = ROOT / "pipeline/_project/requirements.lock"  # where a wheel of this project has it
LOCK = PACKAGED if PACKAGED.exists() else ROOT / "requirements.lock"
WHEELS = (Path("~/.cache/llama-batch-pipeline").expanduser() if PACKAGED.exists() else ROOT / ".cache") / "wheels"
PACKAGE = "llama-cpp-python"
CMAKE_ARGS = ("-DLLAVA_BUILD=ON", "-DMTMD_VIDEO=OFF")  # with libmtmd, for images: some 70 s of a core more
STAMP = "llama-build.json"  # in the virtual environment: which wheel is installed and how it was built
PIP = (sys.executable, "-m", "pip")
_USER_FLAGS = ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS", "LDFLAGS")
_REPORT_EVERY_S = 15.0
_LOG_TAIL_LINES = 20


class BuildError(RuntimeError):
    """The wheel could not be built or installed; the message says what to do."""


# command, environment, log file, title; raises BuildError if the command fails
Run = Callable[[Sequence[str], Mapping[str, str], Path, str], None]


class Locked(NamedTuple):
    """The entry of llama-cpp-python in the lock file; `requirement` is its text with the hashes."""

    version: str
    requirement: str


def locked_version(lock: Path) -> Locked:
    """Read the entry of llama-cpp-python from a lock file. Raises BuildError if it has none."""
    text = lock.read_text() if lock.exists() else ""
    match = re.search(rf"^{PACKAGE}==(\S+)(?: \\\n +--hash=\S+)*", text, re.MULTILINE)
    if not match:
        raise BuildError(f"{lock} does not pin {PACKAGE}: restore it, or make it anew with `make lock`")
    return Locked(match.group(1), match.group(0) + "\n")


def build_env(compiler: CompilerPair, host: Host, env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for compiling: our flags, then the user's, then those without which the code crashes."""
    new = {**env, "CC": compiler.cc, "CXX": compiler.cxx}
    new["CMAKE_ARGS"] = " ".join([*CMAKE_ARGS, env.get("CMAKE_ARGS", "")]).strip()
    for name in ("CFLAGS", "CXXFLAGS"):
        new[name] = " ".join([env.get(name, ""), *compiler.flags(host)]).strip()
    new.pop("SOURCE_DATE_EPOCH", None)  # ggml takes it for a distribution's build and leaves out this CPU's features
    return new


def build_key(words: Sequence[str], host: Host, compiler: CompilerPair, env: Mapping[str, str], *more: str) -> str:
    """Return a readable key for a build of `words` with `env` (from `build_env`): another for every difference."""
    flags = [compiler.cc, str(compiler.openmp), *(env.get(name, "") for name in _USER_FLAGS), *more]
    words = [*words, host.system, host.machine, f"{compiler.family}{compiler.version}"]
    return "-".join([*words, f"f{_digest(flags)}", f"c{_digest(sorted(host.cpu_flags))}"]).lower()


def _digest(words: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]


def build_wheel(locked: Locked, env: Mapping[str, str], folder: Path, title: str) -> None:
    """Compile the locked version into `folder`, which appears whole or not at all. Raises BuildError if pip fails."""
    cache = ignored_folder(folder.parent)
    with tempfile.TemporaryDirectory(dir=cache, prefix="building-") as temporary:
        built, log = Path(temporary) / "wheel", cache / f"{folder.name}.log"
        archive = download_source(locked, env, Path(temporary), log)
        options = ["-v", "--no-cache-dir", "--no-deps", "--wheel-dir", str(built)]
        run_with_progress([*PIP, "wheel", *options, str(archive)], env, log, title)
        shutil.rmtree(folder, ignore_errors=True)
        built.rename(folder)
        kernels.keep_headers(archive, headers_folder(locked, cache))


def headers_folder(locked: Locked, cache: Path) -> Path:
    """Return where ggml's headers from the locked source package are kept in `cache`, beside the wheels."""
    return cache / f"{PACKAGE}-{locked.version}-headers-{_digest([locked.requirement])}"


def ignored_folder(path: Path) -> Path:
    """Make a folder that git ignores."""
    path.mkdir(parents=True, exist_ok=True)
    (path / ".gitignore").write_text("*\n")
    return path


def run_with_progress(command: Sequence[str], env: Mapping[str, str], log: Path, title: str) -> None:
    """Run a long command with its output going to `log`, and show its progress. Raises BuildError if it fails."""
    print(f"{title}: takes minutes, log in {log}", flush=True)
    began = time.monotonic()
    with log.open("w") as output:
        # A session of its own: Ctrl-C reaches only this process, which then ends the compilers.
        child = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        while child.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(_REPORT_EVERY_S)
            minutes, seconds = divmod(int(time.monotonic() - began), 60)
            print(f"  {progress(log.read_text(errors='replace'))}, {minutes}:{seconds:02d} min", flush=True)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
            child.wait()
    if child.returncode:
        lines = log.read_text(errors="replace").splitlines()
        errors = [line for line in lines[:-_LOG_TAIL_LINES] if re.search(r"\berror\b", line, re.IGNORECASE)]
        shown = "\n".join(f"  {line}" for line in [*errors[:1], *lines[-_LOG_TAIL_LINES:]])
        raise BuildError(
            f"{title} failed:\n{shown}\nThe whole log: {log}\n"
            "If the download failed, try again; if the compiler failed, name another one with CC=... CXX=..."
        )


def download_source(
    locked: Locked, env: Mapping[str, str], folder: Path, log: Path, run: Run = run_with_progress
) -> Path:
    """Download the locked source package into `folder`, and return the archive, whose hash is that of the lock."""
    listed, options = folder / "requirements.txt", ["--no-deps", "--no-binary", PACKAGE, "--require-hashes"]
    listed.write_text(locked.requirement)
    command = [*PIP, "download", *options, "--dest", str(folder), "-r", str(listed)]
    run(command, env, log, f"downloading the source of {PACKAGE} {locked.version}")
    (archive,) = folder.glob("*.tar.gz")
    return archive


def progress(log: str) -> str:
    """Return the progress of a build from its log: ninja's last `[n/m]`, or that compiling has not begun."""
    steps = re.findall(r"^\s*\[(\d+)/(\d+)\]", log, re.MULTILINE)
    return "step {} of {}".format(*steps[-1]) if steps else "downloading and configuring"


def install(wheel: Path, details: dict[str, Any]) -> None:
    """Install `wheel` into this environment, and record `details` in its stamp."""
    stamp = Path(sys.prefix) / STAMP
    stamp.unlink(missing_ok=True)
    options = ["--quiet", "--no-deps", "--no-index", "--force-reinstall", "--disable-pip-version-check"]
    process = subprocess.run([*PIP, "install", *options, str(wheel)], capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise BuildError(f"installing {wheel} failed:\n{process.stdout}{process.stderr}")
    stamp.write_text(json.dumps({**details, "record": record()}, indent=1) + "\n")


def read_stamp(stamp: Path) -> dict[str, Any]:
    """Read the record that `install` wrote of the installed build; empty if this project did not make it."""
    try:
        details = json.loads(stamp.read_text())
    except (OSError, ValueError):
        return {}
    return details if isinstance(details, dict) else {}


def record() -> str:
    """Return a digest of the installed package's file list and hashes; '' if it is missing."""
    paths = sorted(Path(sys.prefix).glob("lib/python3*/site-packages/llama_cpp_python-*.dist-info/RECORD"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest() if paths else ""


def run(arguments: argparse.Namespace, env: Mapping[str, str], backend: str = "cpu") -> None:
    """Choose, build unless cached, install unless installed. Raises BuildError or NoCompilerError."""
    tool = tool_version(backend)
    env = {**env, "CMAKE_ARGS": f"{BACKENDS[backend].flags} {env.get('CMAKE_ARGS', '')}".strip()}
    locked, host = locked_version(LOCK), this_host()
    compiler = chosen_compiler(host, env)
    if backend == "any_cpu" and compiler.flags(host):
        raise NoCompilerError(f"backend=any_cpu needs GCC {SOUND_GCC} or later, or {GOOD_CLANG}")
    compiling = build_env(compiler, host, env)
    architectures = examine(backend, tool, compiling, compiler.cxx)
    words = [PACKAGE, locked.version, "cp{}{}".format(*sys.version_info)]
    key = build_key(words, host, compiler, compiling, *filter(None, [tool, architectures]))
    folder = Path(env.get("LLAMA_WHEEL_CACHE") or WHEELS).absolute() / key
    wheels, installed = sorted(folder.glob("*.whl")), read_stamp(Path(sys.prefix) / STAMP)
    if arguments.dry_run:
        print(f"wheel: {folder} ({'there' if wheels else 'not built yet'})")
        return
    if sys.prefix == sys.base_prefix:
        raise BuildError(f"{sys.executable} is the system's Python: run this with that of a virtual environment")
    if not arguments.rebuild and installed.get("key") == key and installed.get("record") == record() != "":
        print(f"{PACKAGE} {locked.version}: already installed")
    else:
        if arguments.rebuild or not wheels:
            build_wheel(locked, compiling, folder, f"building {PACKAGE} {locked.version} with {compiler}")
            wheels = sorted(folder.glob("*.whl"))
        details = {  # what `doctor` tells about the build
            "key": key,
            "backend": backend,
            "version": locked.version,
            "compiler": str(compiler),
            "why": compiler.why(host),
            **{name: compiling.get(name, "") for name in ("CC", "CXX", *_USER_FLAGS)},
        }
        install(wheels[0], details)
        print(f"{PACKAGE} {locked.version}: installed")
    make_kernels(locked, compiler, host, compiling, folder.parent)


def make_kernels(locked: Locked, compiler: CompilerPair, host: Host, env: Mapping[str, str], cache: Path) -> None:
    """Compile this project's kernels beside the installed llama.cpp, unless they are there, and say how it ended: where
    it fails llama.cpp's kernels are used."""
    if not kernels.are_for(host):
        print("kernels: llama.cpp's, as this project has some for Linux on x86-64 only")
        return
    stamp, site = Path(sys.prefix) / STAMP, "lib/python{}.{}/site-packages".format(*sys.version_info)
    details, place = read_stamp(stamp), Path(sys.prefix, site, "llama_cpp/lib")
    made_of = _digest([compiler.cxx, locked.requirement, record()])
    key = f"{kernels.version()}-{compiler.family}{compiler.version}-{made_of}"
    if details.pop("kernels", "") == key and (place / kernels.LIBRARY).exists():
        print("kernels of this project: already compiled")
        return
    try:
        if not (headers := headers_folder(locked, cache)).exists():  # of a wheel that was kept without them
            with tempfile.TemporaryDirectory(dir=ignored_folder(cache), prefix="headers-") as temporary:
                archive = download_source(locked, env, Path(temporary), cache / f"{headers.name}.log")
                kernels.keep_headers(archive, headers)
        kernels.compile_into(place, compiler, headers)
        details["kernels"] = key
        print("kernels of this project: compiled")
    except (BuildError, kernels.KernelsError, OSError) as error:
        (place / kernels.LIBRARY).unlink(missing_ok=True)
        print(f"kernels: llama.cpp's, as those of this project were not compiled: {kernels.reason(str(error))}")
    stamp.write_text(json.dumps(details, indent=1) + "\n")


def chosen_compiler(host: Host, env: Mapping[str, str]) -> CompilerPair:
    """Find the compiler, and print which build it makes."""
    compiler = find_compiler(host, env)
    print(f"compiler: {compiler}, {compiler.why(host)}", flush=True)
    return compiler


def exit_code(work: Callable[[], None]) -> int:
    """Run `work` and return 0, or 1 with the reason on stderr. An interrupt ends the compilers first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through `finally`, which ends the compilers
    try:
        work()
    except (BuildError, NoCompilerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nerror: interrupted; what was there before is kept", file=sys.stderr)
        return 130
    return 0


def main(argv: Sequence[str]) -> int:
    """Run the command. Returns 0 if the wheel is installed, 1 with the reason on stderr if not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rebuild", action="store_true", help="compile anew even if a wheel is cached")
    parser.add_argument("--dry-run", action="store_true", help="only say which compiler and which wheel")
    parser.add_argument("--backend", default="cpu", help=f"one of {', '.join(BACKENDS)} (default: cpu)")
    arguments = parser.parse_args(argv)
    return exit_code(lambda: run(arguments, os.environ, arguments.backend))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
