"""Build llama.cpp's own programs, to measure against: `python3 tools/build/peers.py --venv .venv`.

llama-server, llama-batched-bench and llama-bench, from the source that the locked llama-cpp-python was built from (its
source package, with the lock's hashes) and with the compiler and flags that `tools.build.build` chooses: the same
code as ours runs on. Standard library only. The programs come to `.cache/peers/bin/`, with a note of what they were
built with; nothing is built if that is still so. A build takes some six minutes on two cores.
"""

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if not __package__:  # started as a script: import from the checkout, and do not let this folder's files shadow modules
    sys.path[0] = str(ROOT)

from tools.build.build import (
    PACKAGE,
    BuildError,
    Locked,
    build_env,
    build_key,
    compiler_line,
    exit_code,
    locked_version,
    python_of,
    read_stamp,
    run_with_progress,
)
from tools.build.compilers import find_compiler, this_host

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
_SOURCE = Path("vendor") / "llama.cpp"

# command, environment, log file, title; raises BuildError if the command fails
Run = Callable[[Sequence[str], Mapping[str, str], Path, str], None]


def is_built(folder: Path, key: str) -> bool:
    """Whether all programs are in `folder` and were built as `key` says."""
    return read_stamp(folder / STAMP).get("key") == key and all((folder / name).is_file() for name in PROGRAMS)


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
            (at / "requirements.txt").write_text(locked.requirement)
            options = ["--no-deps", "--no-binary", PACKAGE, "--require-hashes", "--dest", str(at)]
            command = [str(python), "-m", "pip", "download", *options, "-r", str(at / "requirements.txt")]
            run(command, env, cache / "download.log", f"downloading the source of {PACKAGE} {locked.version}")
            for archive in at.glob("*.tar.gz"):
                shutil.unpack_archive(archive, at / "all")  # it has the hash of the lock, so it can be trusted
                shutil.rmtree(folder, ignore_errors=True)
                next((at / "all").iterdir()).rename(folder)
    if not (folder / _SOURCE / "CMakeLists.txt").is_file():
        raise BuildError(f"{folder} has no {_SOURCE}: remove it and run `make peers` again")
    return folder / _SOURCE


def tools(python: Path, cache: Path, env: Mapping[str, str], run: Run) -> dict[str, str]:
    """The paths of cmake and ninja: on PATH, or from the package index in a folder of their own.

    Raises:
        BuildError: they cannot be installed.
    """
    folder = cache / "tools"
    path = os.pathsep.join([env.get("PATH", ""), str(folder / "bin")])
    if missing := [name for name in _TOOLS if shutil.which(name, path=path) is None]:
        command = [str(python), "-m", "pip", "install", "--quiet", "--upgrade", "--target", str(folder), *missing]
        try:
            run(command, env, cache / "tools.log", f"installing {' and '.join(missing)}")
        except BuildError as error:
            raise BuildError(
                f"{error}\nOr install them yourself (Debian, Ubuntu: apt-get install cmake ninja-build)"
            ) from error
    return {name: shutil.which(name, path=path) or name for name in _TOOLS}


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
    run(configure, env, log, "configuring llama.cpp")
    run([found["cmake"], "--build", str(folder), "--target", *PROGRAMS], env, log, title)
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
    compiler = find_compiler(host, env)
    compiling = build_env(compiler, host, env)
    key = build_key([locked.version], host, compiler, compiling, *CMAKE_OPTIONS)
    print(compiler_line(compiler, host), flush=True)
    if is_built(cache / "bin", key):
        print(f"already built: {cache / 'bin'}")
        return
    python, _ = python_of(venv)
    cache.mkdir(parents=True, exist_ok=True)
    (cache / ".gitignore").write_text("*\n")
    at = source(python, locked, cache, compiling, run)
    found = tools(python, cache, compiling, run)
    build(at, found, compiling, key, cache, run, f"building {', '.join(PROGRAMS)} with {compiler}")
    print(f"built: {cache / 'bin'}")


def main(argv: Sequence[str]) -> int:
    """Command line; 0 if the programs are there, 1 with the reason on stderr if not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=Path(".venv"), help="virtual environment whose pip downloads")
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "peers", help="where the programs go")
    arguments = parser.parse_args(argv)
    return exit_code(lambda: make_peers(arguments.venv, arguments.cache.absolute(), os.environ))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
