"""Build llama.cpp's own programs, to measure against: `python3 operators/llama/peers.py --venv .venv`.

llama-server, llama-batched-bench and llama-bench, from the source that the locked llama-cpp-python was built from (its
source package, with the lock's hashes) and with the compiler and flags that `operators.llama.build` chooses: the same
code as ours runs on. Standard library only. The programs come to `.cache/peers/bin/`, with a note of what they were
built with; nothing is built if that is still so. A build takes some six minutes on two cores.
"""

import argparse
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if not __package__:  # started as a script: import from the checkout, and do not let this folder's files shadow modules
    sys.path[0] = str(ROOT)

from operators.llama.build import (
    PACKAGE,
    BuildError,
    Locked,
    build_env,
    digest,
    failure,
    locked_version,
    python_of,
    run_with_progress,
)
from operators.llama.compilers import Choice, Host, NoCompilerError, choose, find_candidates, this_host

PROGRAMS = ("llama-server", "llama-batched-bench", "llama-bench")
STAMP = "peers.json"
CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DGGML_NATIVE=ON",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",
    "-DLLAMA_OPENSSL=OFF",
    "-DCMAKE_BUILD_RPATH_USE_ORIGIN=ON",  # the programs find their libraries beside them, so the folder can be moved
)
_TOOLS = ("cmake", "ninja")
_FLAGS = ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS", "LDFLAGS")
_SOURCE = Path("vendor") / "llama.cpp"

# command, environment, log file, title -> exit code
Run = Callable[[Sequence[str], Mapping[str, str], Path, str], int]


def peers_key(locked: Locked, host: Host, choice: Choice, env: Mapping[str, str]) -> str:
    """Names all that decides what comes out: version, machine, compiler, flags. `env`: from `build_env`."""
    compiler = choice.candidate
    flags = [compiler.cc, *(env.get(name, "") for name in _FLAGS), *CMAKE_OPTIONS]
    words = [locked.version, host.system, host.machine, f"{compiler.family}{compiler.version}"]
    return "-".join([*words, f"f{digest(flags)}", f"c{digest(sorted(host.cpu_flags))}"]).lower()


def is_built(folder: Path, key: str) -> bool:
    """Whether all programs are in `folder` and were built as `key` says."""
    try:
        known = json.loads((folder / STAMP).read_text())
    except (OSError, ValueError):
        return False
    return bool(known.get("key") == key) and all((folder / name).is_file() for name in PROGRAMS)


def source(python: Path, locked: Locked, cache: Path, env: Mapping[str, str], run: Run) -> Path:
    """The unpacked llama.cpp of the locked version; downloaded, with the lock's hashes, if it is not there.

    Raises:
        BuildError: the download fails, or the package holds no llama.cpp.
    """
    folder = cache / "src" / f"{PACKAGE}-{locked.version}"
    if not (folder / _SOURCE / "CMakeLists.txt").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix="unpacking-") as temporary:
            at = Path(temporary)
            archive = _download(python, locked, at, cache / "download.log", env, run)
            with tarfile.open(archive) as packed:
                if hasattr(tarfile, "data_filter"):
                    packed.extractall(at / "all", filter="data")
                else:  # Python before 3.11.4; the archive has the hash of the lock, so it can be trusted
                    packed.extractall(at / "all")
            (top,) = (at / "all").iterdir()
            shutil.rmtree(folder, ignore_errors=True)
            top.rename(folder)
    if not (folder / _SOURCE / "CMakeLists.txt").is_file():
        raise BuildError(f"{folder} has no {_SOURCE}: remove it and run `make peers` again")
    return folder / _SOURCE


def _download(python: Path, locked: Locked, folder: Path, log: Path, env: Mapping[str, str], run: Run) -> Path:
    (folder / "requirements.txt").write_text(locked.requirement)
    options = ["--no-deps", "--no-binary", PACKAGE, "--require-hashes", "--dest", str(folder)]
    command = [str(python), "-m", "pip", "download", *options, "-r", str(folder / "requirements.txt")]
    if run(command, env, log, f"downloading the source of {PACKAGE} {locked.version}"):
        raise BuildError(failure(log, f"downloading the source of {PACKAGE} {locked.version}"))
    archive = next(iter(sorted(folder.glob("*.tar.gz"))), None)
    if archive is None:
        raise BuildError(f"pip downloaded no source package; its log is {log}")
    return archive


def tools(python: Path, cache: Path, env: Mapping[str, str], run: Run) -> dict[str, str]:
    """Where cmake and ninja are: on PATH, or from the package index in a folder of their own.

    Raises:
        BuildError: they cannot be installed.
    """
    folder = cache / "tools"
    path = os.pathsep.join([env.get("PATH", ""), str(folder / "bin")])
    missing = [name for name in _TOOLS if shutil.which(name, path=path) is None]
    if missing:
        log = cache / "tools.log"
        command = [str(python), "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(folder), *missing]
        if run(command, env, log, f"installing {' and '.join(missing)}"):
            raise BuildError(
                f"{failure(log, 'installing ' + ' and '.join(missing))}\n"
                "Or install them yourself (Debian, Ubuntu: apt-get install cmake ninja-build)"
            )
    found = {name: shutil.which(name, path=path) for name in _TOOLS}
    if absent := [name for name, at in found.items() if at is None]:
        raise BuildError(f"there is no {' and no '.join(absent)}: apt-get install cmake ninja-build")
    return {name: str(at) for name, at in found.items()}


def build(
    at: Path, found: Mapping[str, str], env: Mapping[str, str], key: str, cache: Path, run: Run, title: str
) -> None:
    """Configure and compile the source in `at`; the programs and their libraries come to `cache`/bin, all or none.

    Raises:
        BuildError: cmake or a compiler fails.
    """
    folder, log = cache / f"build-{key}", cache / "build.log"
    # What pip installs of cmake and ninja are scripts that need their own packages.
    env = {**env, "PYTHONPATH": str(cache / "tools")} if str(cache) in found["cmake"] + found["ninja"] else env
    make = f"-DCMAKE_MAKE_PROGRAM={found['ninja']}"
    options = [make, *CMAKE_OPTIONS, *shlex.split(env.get("CMAKE_ARGS", ""))]
    configure = [found["cmake"], "-S", str(at), "-B", str(folder), "-G", "Ninja", *options]
    if run(configure, env, log, "configuring llama.cpp"):
        raise BuildError(failure(log, "configuring llama.cpp"))
    if run([found["cmake"], "--build", str(folder), "--target", *PROGRAMS], env, log, title):
        raise BuildError(failure(log, "building llama.cpp's programs"))
    made = folder / "bin"
    absent = [name for name in PROGRAMS if not (made / name).is_file()]
    if absent:
        raise BuildError(f"the build made no {', '.join(absent)}; its log is {log}")
    (made / STAMP).write_text(json.dumps({"key": key, "options": CMAKE_OPTIONS}, indent=1) + "\n")
    shutil.rmtree(cache / "bin", ignore_errors=True)
    made.rename(cache / "bin")
    shutil.rmtree(folder)


def make_peers(venv: Path, cache: Path, env: Mapping[str, str], run: Run = run_with_progress) -> None:
    """Build the programs unless they are there. Raises BuildError or NoCompilerError."""
    locked, host = locked_version(ROOT / "requirements.lock"), this_host()
    choice = choose(host, find_candidates(host, env))
    compiling = build_env(choice, env)
    key = peers_key(locked, host, choice, compiling)
    print(choice, flush=True)
    if is_built(cache / "bin", key):
        print(f"already built: {cache / 'bin'}")
        return
    python, _ = python_of(venv)
    cache.mkdir(parents=True, exist_ok=True)
    (cache / ".gitignore").write_text("*\n")
    at = source(python, locked, cache, compiling, run)
    found = tools(python, cache, compiling, run)
    build(at, found, compiling, key, cache, run, f"building {', '.join(PROGRAMS)} with {choice.candidate}")
    print(f"built: {cache / 'bin'}")


def main(argv: Sequence[str]) -> int:
    """Command line; 0 if the programs are there, 1 with the reason on stderr if not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=Path(".venv"), help="virtual environment whose pip downloads")
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "peers", help="where the programs go")
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through `finally`, which ends the compilers
    try:
        make_peers(arguments.venv, arguments.cache.absolute(), os.environ)
    except (BuildError, NoCompilerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (OSError, subprocess.SubprocessError, tarfile.TarError) as error:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nerror: interrupted; what was there before is kept", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
