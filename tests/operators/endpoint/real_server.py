"""Real servers: llama-cpp-python's own, and llama-server where `make peers` has built it. No flash attention."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pipeline import PROJECT
from tools.build.peers import PROGRAMS

LLAMA_SERVER = PROJECT / ".cache/peers/bin" / PROGRAMS[0]
TINY = PROJECT / "models/tiny/tiny-q8_0.gguf"


@contextmanager
def llama_cpp_server(log: Path, model: Path = TINY) -> Iterator[str]:
    """Start the server with one slot, and give its base URL. It listens some seconds later. `log`: what it says."""
    usual = [sys.executable, "-m", "llama_cpp.server", "--n_ctx", "2048", "--verbose", "false"]
    with _started([*usual, "--model", str(model)], log) as url:
        yield url


@contextmanager
def llama_server(log: Path, *arguments: str, model: Path = TINY) -> Iterator[str]:
    """The same for llama-server, with one slot and one thread unless `arguments` say otherwise."""
    usual = ["-c", "2048", "-np", "1", "-t", "1", "-fa", "off", "--jinja", "--no-webui"]
    with _started([str(LLAMA_SERVER), "--model", str(model), *usual, *arguments], log) as url:
        yield url


@contextmanager
def _started(command: Sequence[str], log: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("w") as said:
        server = subprocess.Popen([*command, "--port", str(port)], stdout=said, stderr=said)
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.kill()
        server.wait()
