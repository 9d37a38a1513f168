"""llama-cpp-python's own server with the small model: one slot, no flash attention."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pipeline import PROJECT

TINY = PROJECT / "models/tiny/tiny-q8_0.gguf"


@contextmanager
def llama_cpp_server(log: Path, model: Path = TINY) -> Iterator[str]:
    """Start the server, and give its base URL. It listens some seconds later. `log`: gets what it says."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "llama_cpp.server", "--model", str(model), "--port", str(port), "--n_ctx", "2048"]
    with log.open("w") as said:
        server = subprocess.Popen([*command, "--verbose", "false"], stdout=said, stderr=said)
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        server.kill()
        server.wait()
