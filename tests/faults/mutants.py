"""Model files that are well formed and have wrong values, and runs with them in processes that may die."""

from __future__ import annotations

import math
import os
import shutil
import signal
import struct
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from operators.llama.gguf_check import ARRAY, FLOAT32, FORMS, STRING, check_gguf
from pipeline import PROJECT
from pipeline.api.runtime import Resources
from pipeline.config.compose import composed, register
from pipeline.config.jobs import find_job
from pipeline.runs.run import run_job
from pipeline.settings import JobSettings

FAMILIES = PROJECT / "tests/families"
JOBS = {"reranker": "rerank", "classifier": "classify_head"} | dict.fromkeys(
    ("bert", "modernbert", "nomic-bert", "xlm-roberta"), "embed"
)
"""Of the encoders; `generate` of all others."""
WORDS = (b"gpt2", b"llama", b"bert", b"t5", b"rwkv", b"no_vocab", b"default", b"yarn", b"qwen3", b"mamba", b"gemma3")
"""Kinds of tokenizers, architectures and others that llama.cpp knows."""
CODES = frozenset((0, 2, 3))
LIMIT_S = 200
_COUNTS = struct.Struct("<4sIQQ")


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def models() -> list[Path]:
    return sorted([*FAMILIES.glob("*.gguf"), *FAMILIES.glob("encoders/*.gguf")])


@dataclass
class File:
    """A GGUF file in pieces. `keys`: name, type, items' type or None, items; `tensors`: name, lengths, type, place."""

    keys: list[tuple[bytes, int, int | None, list[bytes]]]
    tensors: list[tuple[bytes, list[int], int, bytes, int]]

    @staticmethod
    def read(path: Path) -> File:
        contents, whole = check_gguf(path), path.read_bytes()
        keys: list[tuple[bytes, int, int | None, list[bytes]]] = []
        for name, value in contents.values.items():
            items, at = [], value.at
            for _ in range(1 if value.n_items is None else value.n_items):
                size = FORMS[value.kind].size if value.kind in FORMS else 8 + struct.unpack_from("<Q", whole, at)[0]
                items.append(whole[at : at + size])
                at += size
            is_array = value.n_items is not None
            keys.append((name, ARRAY if is_array else value.kind, value.kind if is_array else None, items))
        start = -(-contents.end // 32) * 32
        tensors = [
            (
                name,
                [*found.lengths],
                found.kind,
                whole[start + found.offset :][: _bytes_of(found.kind, found.lengths)],
                0,
            )
            for name, found in contents.tensors.items()
        ]
        return File(keys, tensors)

    def written(self) -> bytes:
        """The file; weights of other lengths or of another type are cut off, or have zeros behind them."""
        head = [_COUNTS.pack(b"GGUF", 3, len(self.tensors), len(self.keys))]
        for name, kind, item, items in self.keys:
            count = b"" if item is None else struct.pack("<IQ", item, len(items))
            head += [text(name), struct.pack("<I", kind), count, *items]
        data = b""
        for name, lengths, kind, weights, shift in self.tensors:
            place = (len(data) + shift) % (1 << 64)
            head += [text(name), struct.pack(f"<I{len(lengths)}QIQ", len(lengths), *lengths, kind, place)]
            size = _bytes_of(kind, lengths)
            data += weights[:size].ljust(size, b"\0") if size < 1 << 24 else weights
            data += bytes(-len(data) % 32)
        joined = b"".join(head)
        return joined + bytes(-len(joined) % 32) + data


def _bytes_of(kind: int, lengths: Sequence[int]) -> int:
    try:
        values, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
    except ValueError:  # there is no such type
        values, size = 1, 4
    return math.prod(lengths) // values * size


def mutate(file: File, random: Random) -> str:
    """Change one value; return what was done."""
    if file.tensors and random.random() < 0.25:
        return _mutate_tensor(file, random)
    i = random.randrange(len(file.keys))
    name, kind, item, items = file.keys[i]
    what = random.choice(("value", "value", "value", "type", "gone", "item", "twice", "fewer", "more"))
    if what == "gone":
        del file.keys[i]
    elif what == "type":
        other = random.choice([*FORMS, STRING])
        value = text(b"7") if other == STRING else bytes(FORMS[other].size - 1) + b"\1"
        file.keys[i] = (name, other, None, [value]) if random.random() < 0.7 else (name, ARRAY, other, [value] * 3)
    elif item is None or not items:
        file.keys[i] = (name, kind, item, [_other(kind if item is None else item, items[0] if items else b"", random)])
    else:
        items = list(items)
        at = random.randrange(len(items))
        if what in ("value", "item"):
            items[at] = _other(item, items[at], random)
        elif what == "twice":
            items[at] = random.choice(items)
        elif what == "fewer":
            del items[at:]
        else:
            items += items[-1:] * random.choice((1, 7))
        file.keys[i] = (name, kind, item, items)
    return f"{name.decode()}: {what} {file.keys[i][1:3] if i < len(file.keys) else ''}"


def _other(kind: int, value: bytes, random: Random) -> bytes:
    """Another value of the same type."""
    if kind == STRING:
        old = value[8:]
        return text(random.choice((b"", b"x", old[:-1], old * 2, old[::-1], b"\xff\xfe", b"<0x0", b"linear", *WORDS)))
    form = FORMS.get(kind, FORMS[4])
    if kind in (FLOAT32, 12):
        (old,) = form.unpack(value)
        number = random.choice((0.0, 1.0, -1.0, old * 2, old / 2, -old, 1e30, 1e-30, float("nan"), float("inf"), 7.3))
        return form.pack(number)
    bits = 8 * form.size
    (old,) = form.unpack(value or bytes(form.size))
    choices = (0, 1, 2, 3, -1, 1 << (bits - 1), (1 << (bits - 1)) - 1, 2 * old, old // 2, old + 1, old - 1)
    number = random.choice((*choices, random.randrange(1000), random.getrandbits(bits)))
    return (number % (1 << bits)).to_bytes(form.size, "little")


def _mutate_tensor(file: File, random: Random) -> str:
    i = random.randrange(len(file.tensors))
    name, lengths, kind, weights, shift = file.tensors[i]
    what = random.choice(("length", "swapped", "dimension", "kind", "place", "gone", "name", "weights"))
    lengths = list(lengths)
    if what == "length" and lengths:
        at = random.randrange(len(lengths))
        lengths[at] = random.choice((0, 1, lengths[at] * 2, lengths[at] // 2, lengths[at] + 1, 1 << 40, 1 << 63))
    elif what == "swapped":
        lengths.reverse()
    elif what == "dimension":
        lengths = random.choice((lengths[:-1], [*lengths, 1], [*lengths, 2], []))
    elif what == "kind":
        kind = random.choice((0, 1, 2, 6, 8, 12, 14, 20, 24, 26, 30, 34, 39, 40, 41, 999, 4, 1 << 31))
    elif what == "place":
        shift = random.choice((-32, 1, 32, 1 << 40, -(1 << 20)))
    elif what == "name":
        name = random.choice((name + b"x", file.tensors[0][0], b"", name.replace(b"blk.0", b"blk.99")))
    elif what == "weights":
        weights = random.choice((b"", b"\xff" * len(weights), weights[::-1], random.randbytes(len(weights))))
    file.tensors[i] = (name, lengths, kind, weights, shift)
    if what == "gone":
        del file.tensors[i]
    return f"{name.decode()}: {what} {lengths} {kind} {shift}"


def sweep(first: int, count: int, changes: int = 1) -> Iterator[tuple[str, int, str]]:
    """Run `count` mutants, from the seed `first` on; yield what each was, how its process ended, and what it said."""
    register()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs: dict[str, JobSettings] = {}
        for seed in range(first, first + count):
            random = Random(seed)
            path = random.choice(models())
            file = File.read(path)
            done = "; ".join(mutate(file, random) for _ in range(changes))
            job = JOBS.get(path.stem, "generate")
            if job not in jobs:
                jobs[job] = _settings(job, folder)
            (folder / "model.gguf").write_bytes(file.written())
            shutil.rmtree(folder / "out", ignore_errors=True)
            code, said = _forked(jobs[job])
            yield f"seed {seed}, {path.stem}, {done}", code, said


def _settings(job: str, folder: Path) -> JobSettings:
    rows = folder / "rows.jsonl"
    rows.write_text('{"prompt": "The quick brown"}\n{"prompt": "\\u00e9 12 \\u4e16"}\n')
    values: dict[str, Any] = {"model.path": str(folder / "model.gguf"), "output_dir": str(folder / "out")}
    values |= {"runtime.threads": 1, "runtime.slots": 4, "runtime.max_sequence_tokens": 64}
    values |= {"progress": "none", "report": False}
    values |= {} if job == "rerank" else {"data.path": str(rows)}
    values |= {"sampling.max_tokens": 4} if job == "generate" else {}
    return composed(find_job(job), {}, values)


def _forked(settings: JobSettings) -> tuple[int, str]:
    with tempfile.TemporaryFile("w+b") as output:
        pid = os.fork()
        if pid == 0:
            code = 99
            try:
                signal.alarm(LIMIT_S)
                for target in (1, 2):
                    os.dup2(output.fileno(), target)
                from pipeline.cli.run import print_error

                try:
                    code = int(run_job(settings, Resources()))
                except Exception as error:
                    code = int(print_error(error))
                sys.stdout.flush()
                sys.stderr.flush()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        output.seek(0)
        return code, output.read().decode("utf-8", "replace")


def main(first: str, count: str, changes: str = "1") -> int:
    """Run mutants and print those that break the law; returns 1 if there is one."""
    codes: Counter[str] = Counter()
    for what, code, said in sweep(int(first), int(count), int(changes)):
        probed = " (probe)" if "ends llama.cpp" in said else ""
        codes[f"{code}{probed}"] += 1
        if code not in CODES or "Traceback" in said:
            print("BROKEN", code, what, said[-600:], flush=True)
        elif probed and "-v" in os.environ.get("MUTANTS", ""):
            print(what, said[-300:], flush=True)
    print(dict(codes))
    return int(any(int(key.split()[0]) not in CODES for key in codes))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
