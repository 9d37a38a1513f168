"""Build llama-cpp-python for this machine and install it: `python3 tools/build/build.py --venv .venv`.

Standard library only, and runs before anything is installed. A build takes minutes, so wheels are kept in
`.cache/wheels/<key>/` (or under $LLAMA_WHEEL_CACHE). The key holds all that decides what comes out: version, Python,
machine, compiler, flags and CPU features, because the code is compiled for exactly this CPU. pip's own cache knows
nothing of those and is not used.

CC, CXX, CFLAGS, CXXFLAGS, LDFLAGS and CMAKE_ARGS are honoured. Python's headers are not needed: the bindings are
ctypes.
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

from tools.build.compilers import Compiler, Host, NoCompilerError, find_compiler, this_host

PACKAGE = "llama-cpp-python"
CMAKE_ARGS = ("-DLLAVA_BUILD=OFF",)  # without the image parts: a third less to compile
STAMP = "llama-build.json"  # in the virtual environment: which wheel is installed and how it was built
_USER_FLAGS = ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS", "LDFLAGS")
_REPORT_EVERY_S = 15.0
_LOG_TAIL_LINES = 20


class BuildError(RuntimeError):
    """The wheel could not be made or installed; the message says what to do."""


class Locked(NamedTuple):
    """llama-cpp-python as the lock file has it; `requirement` is its entry with the hashes, word for word."""

    version: str
    requirement: str


def locked_version(lock: Path) -> Locked:
    """Read the entry of llama-cpp-python from a lock file. Raises BuildError if it has none."""
    text = lock.read_text() if lock.exists() else ""
    found = re.search(rf"^{PACKAGE}==(\S+)(?: \\\n +--hash=\S+)*", text, re.MULTILINE)
    if not found:
        raise BuildError(f"{lock} does not pin {PACKAGE}: restore it, or make it anew with `make lock`")
    return Locked(found.group(1), found.group(0) + "\n")


def build_env(compiler: Compiler, host: Host, env: Mapping[str, str]) -> dict[str, str]:
    """The environment that compiles: ours first, then what the user set, then the flags without which it crashes."""
    new = {**env, "CC": compiler.cc, "CXX": compiler.cxx}
    new["CMAKE_ARGS"] = " ".join([*CMAKE_ARGS, env.get("CMAKE_ARGS", "")]).strip()
    for name in ("CFLAGS", "CXXFLAGS"):
        new[name] = " ".join([env.get(name, ""), *compiler.flags(host)]).strip()
    new.pop("SOURCE_DATE_EPOCH", None)  # ggml takes it for a distribution's build and leaves out this CPU's features
    return new


def build_key(words: Sequence[str], host: Host, compiler: Compiler, env: Mapping[str, str], *more: str) -> str:
    """A readable name for what is built of `words` with `env` (from `build_env`): another for anything that matters."""
    flags = [compiler.cc, str(compiler.openmp), *(env.get(name, "") for name in _USER_FLAGS), *more]
    words = [*words, host.system, host.machine, f"{compiler.family}{compiler.version}"]
    return "-".join([*words, f"f{digest(flags)}", f"c{digest(sorted(host.cpu_flags))}"]).lower()


def digest(words: Sequence[str]) -> str:
    """Eight hexadecimal digits that differ for other words."""
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]


def cached_wheel(folder: Path) -> Path | None:
    """The wheel in a cache folder, if there is one."""
    return next(iter(sorted(folder.glob("*.whl"))), None)


def build_wheel(python: Path, locked: Locked, env: Mapping[str, str], folder: Path, title: str) -> Path:
    """Compile the locked version into `folder`, which appears whole or not at all. Raises BuildError if pip fails."""
    cache = folder.parent
    cache.mkdir(parents=True, exist_ok=True)
    (cache / ".gitignore").write_text("*\n")
    log = cache / f"{folder.name}.log"
    with tempfile.TemporaryDirectory(dir=cache, prefix="building-") as temporary:
        made = Path(temporary) / "wheel"
        (Path(temporary) / "requirements.txt").write_text(locked.requirement)
        options = ["-v", "--no-cache-dir", "--no-deps", "--no-binary", PACKAGE, "--wheel-dir", str(made)]
        command = [str(python), "-m", "pip", "wheel", *options, "-r", f"{temporary}/requirements.txt"]
        run_with_progress(command, env, log, title)
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    wheel = cached_wheel(folder)
    if wheel is None:
        raise BuildError(f"pip made no wheel; its log is {log}")
    return wheel


def run_with_progress(command: Sequence[str], env: Mapping[str, str], log: Path, title: str) -> None:
    """Run a long command, its output going to `log`, and say how far it is. Raises BuildError if it fails."""
    print(f"{title}: takes minutes, log in {log}", flush=True)
    began = time.monotonic()
    with log.open("w") as output:
        # A session of its own: Ctrl-C reaches us alone, and we end the compilers with it.
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
        raise BuildError(failure(log, title))


def progress(log: str) -> str:
    """How far a build log has come: ninja's last `[n/m]`, or that compiling has not begun."""
    steps = re.findall(r"^\s*\[(\d+)/(\d+)\]", log, re.MULTILINE)
    return "step {} of {}".format(*steps[-1]) if steps else "downloading and configuring"


def failure(log: Path, what: str) -> str:
    """What to say when `what` failed: the first error in `log`, its last lines, and what to do."""
    lines = log.read_text(errors="replace").splitlines()
    errors = [line for line in lines[:-_LOG_TAIL_LINES] if re.search(r"\berror\b", line, re.IGNORECASE)]
    shown = "\n".join(f"  {line}" for line in [*errors[:1], *lines[-_LOG_TAIL_LINES:]])
    return (
        f"{what} failed:\n{shown}\nThe whole log: {log}\n"
        "If the download failed, try again; if the compiler failed, name another one with CC=... CXX=..."
    )


def install(python: Path, wheel: Path, stamp: Path, details: dict[str, Any]) -> bool:
    """Install `wheel` unless the stamp says that it is installed already; False if there was nothing to do."""
    known = read_stamp(stamp)
    if known.get("key") == details["key"] and known.get("record") == record(stamp.parent) != "":
        return False
    stamp.unlink(missing_ok=True)
    options = ["--quiet", "--no-deps", "--no-index", "--force-reinstall", "--disable-pip-version-check"]
    done = subprocess.run(
        [str(python), "-m", "pip", "install", *options, str(wheel)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise BuildError(f"installing {wheel} failed:\n{done.stdout}{done.stderr}")
    stamp.write_text(json.dumps({**details, "record": record(stamp.parent)}, indent=1) + "\n")
    return True


def read_stamp(stamp: Path) -> dict[str, Any]:
    """How the installed build was made, as `install` wrote it; empty if it was not made by this project."""
    try:
        found = json.loads(stamp.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def record(venv: Path) -> str:
    """Digest of the installed package's list of files and their hashes, so another build has another; '' if missing."""
    found = sorted(venv.glob("lib/python3*/site-packages/llama_cpp_python-*.dist-info/RECORD"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in found)).hexdigest() if found else ""


def python_of(venv: Path) -> tuple[Path, str]:
    """The Python of a virtual environment and its tag, such as cp311. Raises BuildError if it does not run."""
    python = venv.absolute() / "bin" / "python"  # not resolved: the link is what makes it this environment's Python
    code = "import sys; print('cp%d%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"{venv} is no working virtual environment ({error}): make one with `make`") from error
    return python, done.stdout.strip()


def wheel_cache(env: Mapping[str, str]) -> Path:
    """Where built wheels are kept: $LLAMA_WHEEL_CACHE, or .cache/wheels in the checkout."""
    return Path(env.get("LLAMA_WHEEL_CACHE") or ROOT / ".cache" / "wheels").absolute()


def run(arguments: argparse.Namespace, env: Mapping[str, str]) -> None:
    """Choose, build unless cached, install unless installed. Raises BuildError or NoCompilerError."""
    python, tag = python_of(arguments.venv)
    locked, host = locked_version(ROOT / "requirements.lock"), this_host()
    compiler = find_compiler(host, env)
    compiling = build_env(compiler, host, env)
    key = build_key([PACKAGE, locked.version, tag], host, compiler, compiling)
    folder, stamp = wheel_cache(env) / key, arguments.venv.absolute() / STAMP
    print(compiler_line(compiler, host), flush=True)
    if arguments.dry_run:
        print(f"wheel: {folder} ({'there' if cached_wheel(folder) else 'not built yet'})")
        return
    if arguments.rebuild:
        stamp.unlink(missing_ok=True)
    wheel = None if arguments.rebuild else cached_wheel(folder)
    title = f"building {PACKAGE} {locked.version} with {compiler}"
    wheel = wheel or build_wheel(python, locked, compiling, folder, title)
    details = {  # what `doctor` tells about the build
        "key": key,
        "version": locked.version,
        "compiler": str(compiler),
        "why": compiler.why(host),
        "faster": compiler.faster(host),
        **{name: compiling.get(name, "") for name in ("CC", "CXX", *_USER_FLAGS)},
    }
    print(
        f"{PACKAGE} {locked.version}: {'installed' if install(python, wheel, stamp, details) else 'already installed'}"
    )


def compiler_line(compiler: Compiler, host: Host) -> str:
    """The compiler, what it makes, and what would be faster."""
    faster = compiler.faster(host)
    return f"compiler: {compiler}, {compiler.why(host)}" + (f"; faster: {faster}" if faster else "")


def exit_code(work: Callable[[], None]) -> int:
    """Do the work of a command; 0, or 1 with the reason on stderr. An interrupt ends the compilers first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through `finally`, which ends the compilers
    try:
        work()
    except (BuildError, NoCompilerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (OSError, subprocess.SubprocessError) as error:
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nerror: interrupted; what was there before is kept", file=sys.stderr)
        return 130
    return 0


def main(argv: Sequence[str]) -> int:
    """Command line; 0 if the wheel is installed, 1 with the reason on stderr if not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=Path(".venv"), help="virtual environment to install into")
    parser.add_argument("--rebuild", action="store_true", help="compile anew even if a wheel is cached")
    parser.add_argument("--dry-run", action="store_true", help="only say which compiler and which wheel")
    arguments = parser.parse_args(argv)
    return exit_code(lambda: run(arguments, os.environ))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
