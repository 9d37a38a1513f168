"""A model file that is none, or is damaged, is refused with the reason: before anything else, and without memory."""

from __future__ import annotations

import json
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline import PROJECT
from tests.pipeline.command_line import ended

TINY = PROJECT / "models/tiny/tiny-q8_0.gguf"
ADDRESS_SPACE_BYTES = 3 << 30
HEADER = struct.Struct("<4sIQQ")
STRING, ARRAY, UINT32 = 8, 9, 4
CHILD = """
import contextlib, io, json, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[1]),) * 2)
from hydra import compose, initialize_config_dir
from pipeline.api.runtime import Resources
from pipeline.cli.main import main
from pipeline.cli.run import CONF, print_error
from pipeline.config.compose import settings_of
from pipeline.runs.run import run_job

def as_main_does(path):
    config.model.path, config.output_dir = path, f"{path}.out"
    try:
        return run_job(settings_of(config), Resources())
    except Exception as error:
        return print_error(error)

for number, path in enumerate(sys.argv[2:]):
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        if number == 0:
            code = main(["job=quickstart", f"model.path={path}", f"output_dir={path}.out", "progress=none"])
            with initialize_config_dir(str(CONF), version_base="1.3"):
                config = compose("config", ["job=quickstart", "progress=none"])
        else:
            code = as_main_does(path)
    print("RESULT", json.dumps([path, code, said.getvalue()]), flush=True)
"""
"""The command line for the first file; for the others the job is not composed again, which takes most of the time."""


def header(tensors: int = 0, keys: int = 0, version: int = 3) -> bytes:
    return HEADER.pack(b"GGUF", version, tensors, keys)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def key(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def array(item: int, count: int, values: bytes = b"") -> bytes:
    return struct.pack("<IQ", item, count) + values


def of_type(name: bytes, value: bytes) -> bytes:
    return header(keys=2) + key(b"general.architecture", STRING, text(b"llama")) + key(name, STRING, text(value))


def of_tiny(change: Callable[[bytes], bytes]) -> bytes:
    return change(TINY.read_bytes())


FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "empty": (lambda: b"", "an empty file"),
    "four bytes": (lambda: b"GGUF", "ends inside its header"),
    "zip": (lambda: b"PK\x03\x04 a zip", "not a GGUF model"),
    "noise": (lambda: b"GGUF" + bytes(range(256)) * 40, "GGUF version"),
    "header cut off": (lambda: of_tiny(lambda data: data[:5000]), "copied or fetched whole"),
    "weights cut off": (lambda: of_tiny(lambda data: data[: len(data) * 9 // 10]), "could not be loaded"),
    "2^60 tensors": (lambda: header(tensors=1 << 60), "1152921504606846976 tensors"),
    "2^20 tensors that are not there": (lambda: header(tensors=1 << 20), "copied or fetched whole"),
    "2^40 keys": (lambda: header(keys=1 << 40), "1099511627776 keys"),
    "2^60 bytes of text": (
        lambda: header(keys=1) + text(b"general.architecture") + struct.pack("<IQ", STRING, 1 << 60),
        "claims 1152921504606846976 bytes",
    ),
    "2^35 bytes of text": (
        lambda: header(keys=1) + text(b"general.architecture") + struct.pack("<IQ", STRING, 1 << 35),
        "claims 34359738368 bytes",
    ),
    "a name of 2^60 bytes": (lambda: header(keys=1) + struct.pack("<Q", 1 << 60), "bytes of a name"),
    "2^60 numbers": (lambda: header(keys=1) + key(b"a", ARRAY, array(UINT32, 1 << 60)), "it is damaged"),
    "2^60 tokens": (
        lambda: header(keys=1) + key(b"tokenizer.ggml.tokens", ARRAY, array(STRING, 1 << 60)),
        "strings in an array",
    ),
    "tokens that are a number": (
        lambda: header(keys=1) + key(b"tokenizer.ggml.tokens", UINT32, bytes(4)),
        "must be of type 9",
    ),
    "scores for other tokens": (
        lambda: (
            header(keys=2)
            + key(b"tokenizer.ggml.tokens", ARRAY, array(STRING, 1, text(b"a")))
            + key(b"tokenizer.ggml.scores", ARRAY, array(6, 2, bytes(8)))
        ),
        "has 2 values for 1 tokens",
    ),
    "an alignment of 0": (lambda: header(keys=1) + key(b"general.alignment", UINT32, bytes(4)), "no power of two"),
    "a type that there is not": (lambda: header(keys=1) + key(b"a", 77, b""), "type 77"),
    "a list of lists": (lambda: header(keys=1) + key(b"a", ARRAY, array(ARRAY, 1)), "an array of type 9"),
    "version 1": (lambda: header(version=1), "GGUF version 1"),
    "version 4": (lambda: header(version=4), "GGUF version 4"),
    "the other byte order": (lambda: header(version=3 << 24), "the other byte order"),
    "a LoRA adapter": (lambda: of_type(b"general.type", b"adapter"), "is a LoRA adapter (general.type=adapter)"),
    "an adapter of no type": (lambda: of_type(b"adapter.type", b"lora"), "is a LoRA adapter"),
    "a projector": (lambda: of_type(b"general.type", b"mmproj"), "reads images or sounds (general.type=mmproj)"),
    "an importance matrix": (lambda: of_type(b"general.type", b"imatrix"), "is an importance matrix"),
    "a context of 0": (
        lambda: of_tiny(lambda data: re.sub(rb"(\.context_length....)....", rb"\1\0\0\0\0", data, flags=re.DOTALL)),
        "context_length is 0, and must be from 1 to",
    ),
    "no keys": (lambda: header() + bytes(100), "could not be loaded"),
    "another architecture": (
        lambda: of_tiny(
            lambda data: data.replace(architecture_of(data), text(b"?" * (len(architecture_of(data)) - 8)))
        ),
        "unknown model architecture",
    ),
}


def architecture_of(data: bytes) -> bytes:
    """The value of the key, with its length in front."""
    start = data.index(b"general.architecture") + len(b"general.architecture") + 4
    (length,) = struct.unpack_from("<Q", data, start)
    return data[start : start + 8 + length]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory) -> dict[str, tuple[int, str, bool]]:
    """For each file: exit code, what was said on stderr, and whether an output directory was begun."""
    folder = tmp_path_factory.mktemp("models")
    paths = {name: folder / f"{i}.gguf" for i, name in enumerate([*FILES, "a directory"])}
    for name, (content, _) in FILES.items():
        paths[name].write_bytes(content())
    paths["a directory"].mkdir()
    done = ended(PROJECT, sys.executable, "-c", CHILD, str(ADDRESS_SPACE_BYTES), *map(str, paths.values()))
    results = [json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert len(results) == len(paths), f"the process ended with {done.returncode} after {results[-1:]}: {done.stderr}"
    found = {path: (code, said, Path(f"{path}.out").exists()) for path, code, said in results}
    return {name: found[str(path)] for name, path in paths.items()}


@pytest.mark.parametrize("name", [*FILES, "a directory"])
def test_it_is_refused_before_anything_else(outcomes, name):
    code, said, begun = outcomes[name]
    wanted = FILES[name][1] if name in FILES else "is a directory"
    assert code == 2
    assert said.startswith("error: ")
    assert wanted in said
    assert "Traceback" not in said
    assert not begun
