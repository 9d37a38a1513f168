"""Build llama.cpp's own programs, to measure against: `.venv/bin/python tools/build/peers.py`.

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
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if not __package__:  # started as a script: import from the checkout, and do not let this folder's files shadow modules
    sys.path[0] = str(ROOT)

from tools.build.build import (
    PIP,
    BuildError,
    Run,
    build_env,
    build_key,
    chosen_compiler,
    download_source,
    exit_code,
    ignored_folder,
    locked_version,
    read_stamp,
    run_with_progress,
)
from tools.build.compilers import this_host

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


def make_peers(cache: Path, env: Mapping[str, str], run: Run = run_with_progress) -> None:
    """Build the programs into `cache`/bin, all or none, unless they are there. Raises BuildError or NoCompilerError."""
    locked, host = locked_version(ROOT / "requirements.lock"), this_host()
    compiler = chosen_compiler(host, env)
    compiling = build_env(compiler, host, env)
    key = build_key([locked.version], host, compiler, compiling, *CMAKE_OPTIONS)
    if read_stamp(cache / "bin" / STAMP).get("key") == key and not _absent(cache / "bin"):
        print(f"already built: {cache / 'bin'}")
        return
    ignored_folder(cache)
    with tempfile.TemporaryDirectory(dir=cache, prefix="building-") as temporary:
        built, tools, log = Path(temporary) / "build", f"{temporary}/tools", cache / "build.log"
        archive = download_source(locked, compiling, Path(temporary), log, run)
        shutil.unpack_archive(archive, f"{temporary}/source")  # trusted: its hash was checked against the lock
        (source,) = Path(temporary).glob("source/*/vendor/llama.cpp")
        command = [*PIP, "install", "--quiet", "--target", tools, "cmake", "ninja"]
        run(command, compiling, log, "installing cmake and ninja for this build")
        compiling |= {"PYTHONPATH": tools}  # what pip installs of them are scripts that need their own packages
        cmake, ninja = f"{tools}/bin/cmake", f"{tools}/bin/ninja"
        configure = [cmake, "-S", str(source), "-B", str(built), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        options = [*CMAKE_OPTIONS, *shlex.split(compiling["CMAKE_ARGS"])]
        run([*configure, *options], compiling, log, "configuring llama.cpp")
        command = [cmake, "--build", str(built), "--target", *PROGRAMS]
        run(command, compiling, log, f"building {', '.join(PROGRAMS)} with {compiler}")
        if absent := _absent(built / "bin"):
            raise BuildError(f"the build made no {', '.join(absent)}; its log is {log}")
        (built / "bin" / STAMP).write_text(json.dumps({"key": key, "options": CMAKE_OPTIONS}, indent=1) + "\n")
        shutil.rmtree(cache / "bin", ignore_errors=True)
        (built / "bin").rename(cache / "bin")
    print(f"built: {cache / 'bin'}")


def _absent(folder: Path) -> list[str]:
    return [name for name in PROGRAMS if not (folder / name).is_file()]


def main(argv: Sequence[str]) -> int:
    """Run the command. Returns 0 if the programs are there, 1 with the reason on stderr if not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=ROOT / ".cache" / "peers", help="where the programs go")
    arguments = parser.parse_args(argv)
    return exit_code(lambda: make_peers(arguments.cache.absolute(), os.environ))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
