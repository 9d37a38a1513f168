"""llama.cpp as a library of this process: initialised once, its log kept instead of printed."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

import llama_cpp
from llama_cpp import llama_cpp as binding

from pipeline.api.errors import ConfigError

log = logging.getLogger("llama.cpp")
log.addHandler(logging.NullHandler())  # before a run has a log, what is wrong is told by the error that is raised
_RECENT: deque[str] = deque(maxlen=50)
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.WARNING, 4: logging.ERROR}
"""ggml's levels: debug, info, warn, error. Its info lines are our debug lines."""
_INTENDED = (
    "model default pooling_type is",
    "possible training context overflow",
    "special_eos_id is not in special_eog_ids",
    "using full-size SWA cache",
    "Qwen-VL models require",
    "try adding --image-min-tokens",
    "issues/16842",
    "tensor overrides to CPU are used with mmap",
)
"""Of its warnings those about what is meant: another pooling of encoders, room that is rounded up, and their end token;
runtime.window_cache=full; and model.image_tokens (docs/models.md)."""
_REACHED_S = 10.0
_unlogged: ContextVar[bool] = ContextVar("unlogged", default=False)


@contextmanager
def unlogged() -> Iterator[None]:
    """Drop what llama.cpp says to calls of this thread in the meantime: of one that is to fail."""
    before = _unlogged.set(True)
    try:
        yield
    finally:
        _unlogged.reset(before)


@llama_cpp.llama_log_callback
def log_callback(level: int, text: bytes, _: ctypes.c_void_p) -> None:
    """Keep a line of llama.cpp's or libmtmd's log, which may come in pieces, and write it to ours."""
    line = text.decode("utf-8", "replace").rstrip("\n")
    if line.strip(" .") and not _unlogged.get():
        _RECENT.append(line)
        intended = any(part in line for part in _INTENDED)
        log.log(logging.DEBUG if intended else _LEVELS.get(level, logging.DEBUG), "%s", line)


@functools.cache
def initialise() -> str:
    """Set the log callback and start the backends, and that of GGML_BACKEND_PATH, with the servers of LLAMA_ARG_RPC.
    The callback lives as long as this module. Raises ConfigError if that one cannot be loaded, or these not be reached.
    Returns the last error of which a backend told meanwhile, as CUDA does of a driver that is missing; "": none did.

    A build with `backend=any_cpu` has none until they are loaded: the best of the libraries libggml-cpu-*.so that lie
    beside the others. llama.cpp looks for them beside the program, which is Python's. They are asked for through
    libllama.so: a wheel has no links, so the package's own libggml.so is another copy, with backends of its own.
    """
    llama_cpp.llama_log_set(log_callback, ctypes.c_void_p(0))
    if not binding._lib.ggml_backend_reg_count():
        beside = Path(llama_cpp.__file__).parent / "lib"
        binding._lib.ggml_backend_load_all_from_path(ctypes.c_char_p(os.fsencode(beside)))
    servers = _reached_servers()
    _load_plugin()
    _add(servers)
    llama_cpp.llama_backend_init()
    return "".join(_errors()[-1:])


@functools.cache
def _load_plugin() -> None:
    """Load the backend that GGML_BACKEND_PATH names, as llama.cpp's programs do: devices that this build has not.

    Raises:
        ConfigError: it cannot be loaded.
    """
    if path := os.environ.get("GGML_BACKEND_PATH"):
        load = binding._lib.ggml_backend_load
        load.restype = ctypes.c_void_p
        if not load(ctypes.c_char_p(os.fsencode(path))):
            raise ConfigError(
                f"GGML_BACKEND_PATH={path} cannot be loaded: {last_errors(1)}. It has to be a library with a backend of"
                " ggml, of llama.cpp's version here; without the variable the devices of this build are used"
            )


def _reached_servers() -> list[bytes]:
    """Return the servers that LLAMA_ARG_RPC lists, HOST:PORT with commas, as for llama.cpp's programs.

    Raises:
        ConfigError: nobody listens at one of them, by IPv4, which is what ggml takes: it would end the process.
    """
    servers = [server.strip() for server in os.environ.get("LLAMA_ARG_RPC", "").split(",") if server.strip()]
    for server in servers:
        host, _, port = server.rpartition(":")
        try:
            with socket.socket(socket.AF_INET) as tried:
                tried.settimeout(_REACHED_S)
                tried.connect((host, int(port)))
        except (OSError, ValueError, OverflowError) as error:
            raise ConfigError(
                f"LLAMA_ARG_RPC: no server of llama.cpp (ggml-rpc-server) can be reached at {server!r}, which is to be"
                f" HOST:PORT: {error}"
            ) from error
    return [server.encode() for server in servers]


def _add(servers: list[bytes]) -> None:
    """Add the devices of `servers`. Raises ConfigError if no backend for them is there."""
    if not servers:
        return
    library = binding._lib
    for name in ("reg_by_name", "reg_get_proc_address"):
        getattr(library, f"ggml_backend_{name}").restype = ctypes.c_void_p
    registry = library.ggml_backend_reg_by_name(b"RPC")
    if not registry:
        raise ConfigError(
            "LLAMA_ARG_RPC: this llama.cpp has no RPC; `CMAKE_ARGS=-DGGML_RPC=ON python -m pipeline build` builds one"
            " that has"
        )
    found = library.ggml_backend_reg_get_proc_address(ctypes.c_void_p(registry), b"ggml_backend_rpc_add_server")
    add = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)(found)
    for server in servers:
        library.ggml_backend_register(ctypes.c_void_p(add(server)))


def forget_errors() -> None:
    """Forget the lines of earlier calls, so that `last_errors` has none of them."""
    _RECENT.clear()


def recent_lines() -> list[str]:
    """Return the last lines that llama.cpp has logged."""
    return list(_RECENT)


def last_errors(count: int = 3) -> str:
    """Return the last log lines about an error, for messages."""
    return "; ".join(_errors()[-count:]) or "llama.cpp gave no reason"


def _errors() -> list[str]:
    return [line for line in _RECENT if "error" in line or "fail" in line or "invalid" in line]
