"""Build llama-cpp-python for this machine and install it: `python3 operators/llama/build.py --venv .venv`.

Standard library only, and runs before anything is installed. The compiler is chosen by `operators.llama.compilers`.
A build takes minutes, so wheels are kept in `.cache/wheels/<key>/` (or under $LLAMA_WHEEL_CACHE). The key holds all
that decides what comes out: version, Python, machine, compiler, flags and CPU features, because the code is compiled
for exactly this CPU. pip's own cache knows nothing of those and is not used.

CC, CXX, CFLAGS, CXXFLAGS, LDFLAGS and CMAKE_ARGS are honoured. Python's headers are not needed: the bindings are
ctypes.
"""

import argparse
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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
if not __package__:  # started as a script: import from the checkout, and do not let this folder's files shadow modules
    sys.path[0] = str(ROOT)

from operators.llama.compilers import Choice, Host, NoCompilerError, choose, find_candidates, this_host

PACKAGE = "llama-cpp-python"
CMAKE_ARGS = ("-DLLAVA_BUILD=OFF",)  # without the image parts: a third less to compile
STAMP = "llama-build.json"  # in the virtual environment: which wheel is installed and how it was built
_USER_FLAGS = ("CMAKE_ARGS", "CFLAGS", "CXXFLAGS", "LDFLAGS")
_REPORT_EVERY_S = 15.0
_LOG_TAIL_LINES = 20


class BuildError(RuntimeError):
    """The wheel could not be made or installed; the message says what to do."""


@dataclass(frozen=True)
class Locked:
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


def build_env(choice: Choice, env: Mapping[str, str]) -> dict[str, str]:
    """The environment that compiles: ours first, then what the user set, then the flags without which it crashes."""
    new = dict(env)
    new["CC"], new["CXX"] = choice.candidate.cc, choice.candidate.cxx
    new["CMAKE_ARGS"] = " ".join([*CMAKE_ARGS, env.get("CMAKE_ARGS", "")]).strip()
    for name in ("CFLAGS", "CXXFLAGS"):
        new[name] = " ".join([env.get(name, ""), *choice.flags]).strip()
    new.pop("SOURCE_DATE_EPOCH", None)  # ggml takes it for a distribution's build and leaves out this CPU's features
    return new


def wheel_key(version: str, python_tag: str, host: Host, choice: Choice, env: Mapping[str, str]) -> str:
    """Folder name of the wheel built with `env` (from `build_env`): readable, and another for anything that matters."""
    compiler = choice.candidate
    flags = [compiler.cc, str(compiler.openmp), *(env.get(name, "") for name in _USER_FLAGS)]
    words = [PACKAGE, version, python_tag, host.system, host.machine, f"{compiler.family}{compiler.version}"]
    return "-".join([*words, f"f{digest(flags)}", f"c{digest(sorted(host.cpu_flags))}"]).lower()


def digest(words: Sequence[str]) -> str:
    """Eight hexadecimal digits that differ for other words."""
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]


def cached_wheel(folder: Path) -> Path | None:
    """The wheel in a cache folder, if there is one."""
    return next(iter(sorted(folder.glob("*.whl"))), None)


def build_wheel(python: Path, locked: Locked, choice: Choice, env: Mapping[str, str], folder: Path) -> Path:
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
        code = run_with_progress(command, env, log, f"building {PACKAGE} {locked.version} with {choice.candidate}")
        if code != 0:
            raise BuildError(failure(log, f"building {PACKAGE}"))
        shutil.rmtree(folder, ignore_errors=True)
        made.rename(folder)
    wheel = cached_wheel(folder)
    if wheel is None:
        raise BuildError(f"pip made no wheel; its log is {log}")
    return wheel


def run_with_progress(command: Sequence[str], env: Mapping[str, str], log: Path, title: str) -> int:
    """Run a long command, its output going to `log`, and say how far it is; its exit code."""
    started = time.monotonic()
    with log.open("w") as output:
        # A session of its own: Ctrl-C reaches us alone, and we end the compilers with it.
        child = subprocess.Popen(command, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        _watch(child, log, title, started)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGTERM)
            child.wait()
    return child.returncode


def _watch(child: "subprocess.Popen[bytes]", log: Path, title: str, started: float) -> None:
    """Say how far the build is until it ends: in place on a terminal, else a line every 15 s."""
    terminal = sys.stdout.isatty()
    print(f"{title}: takes minutes, log in {log}", flush=True)
    said = started
    while child.poll() is None:
        time.sleep(1)
        now = time.monotonic()
        if terminal or now - said >= _REPORT_EVERY_S:
            said = now
            line = f"  {progress(log.read_text(errors='replace'))}, {_minutes(now - started)}"
            print(f"\r{line:<60}" if terminal else line, end="" if terminal else "\n", flush=True)
    print(f"{os.linesep if terminal else ''}  finished after {_minutes(time.monotonic() - started)}", flush=True)


def progress(log: str) -> str:
    """How far a build log has come: ninja's last `[n/m]`, or that compiling has not begun."""
    steps = re.findall(r"^\s*\[(\d+)/(\d+)\]", log, re.MULTILINE)
    return "step {} of {}".format(*steps[-1]) if steps else "downloading and configuring"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d} min"


def failure(log: Path, what: str) -> str:
    """What to say when `what` failed: the first error in `log`, its last lines, and what to do."""
    lines = log.read_text(errors="replace").splitlines()
    first = next((n for n, line in enumerate(lines) if re.search(r"\berror\b", line, re.IGNORECASE)), len(lines))
    cause = lines[first : min(first + 6, len(lines) - _LOG_TAIL_LINES)]  # the first error; most that follow are echoes
    shown = "\n".join(f"  {line}" for line in [*cause, "..." if cause else "", *lines[-_LOG_TAIL_LINES:]])
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
    choice = choose(host, find_candidates(host, env))
    compiling = build_env(choice, env)
    key = wheel_key(locked.version, tag, host, choice, compiling)
    folder = wheel_cache(env) / key
    print(choice, flush=True)
    if arguments.dry_run:
        print(f"wheel: {folder} ({'there' if cached_wheel(folder) else 'not built yet'})")
        return
    wheel = None if arguments.rebuild else cached_wheel(folder)
    stamp = arguments.venv.absolute() / STAMP
    if arguments.rebuild:
        stamp.unlink(missing_ok=True)
    wheel = wheel or build_wheel(python, locked, choice, compiling, folder)
    new = install(python, wheel, stamp, {"key": key, **_details(locked, host, choice, compiling)})
    print(f"{PACKAGE} {locked.version}: {'installed' if new else 'already installed'}")


def _details(locked: Locked, host: Host, choice: Choice, env: Mapping[str, str]) -> dict[str, Any]:
    """What `doctor` tells about the build."""
    return {
        "version": locked.version,
        "compiler": str(choice.candidate),
        "why": choice.why,
        "faster": choice.faster,
        "cpu_has_amx": host.has_amx,
        **{name: env.get(name, "") for name in ("CC", "CXX", *_USER_FLAGS)},
    }


def main(argv: Sequence[str]) -> int:
    """Command line; 0 if the wheel is installed, 1 with the reason on stderr if not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--venv", type=Path, default=Path(".venv"), help="virtual environment to install into")
    parser.add_argument("--rebuild", action="store_true", help="compile anew even if a wheel is cached")
    parser.add_argument("--dry-run", action="store_true", help="only say which compiler and which wheel")
    arguments = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # leave through `finally`, which ends the compilers
    try:
        run(arguments, os.environ)
    except (BuildError, NoCompilerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nerror: interrupted; nothing was installed", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
