"""Inputs that are nearly right, and the law that the command line keeps whatever it is given."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import yaml

from pipeline import PROJECT
from pipeline.cli.main import main
from pipeline.config.jobs import JOBS
from pipeline.config.keys import CONF

CODES = {0, 2, 3, 4, 5}
"""1 is left for what nobody has foreseen."""
JUNK: tuple[Any, ...] = (
    *(None, True, 0, -1, 3.5, 10**30, -(10**30), 1e308, float("nan"), float("inf"), "", "x", "read", "a b", "???"),
    *(
        "${nope}",
        "${data}",
        "${",
        "${oc.env:NOT_SET}",
        "${project:}",
        "x" * 5000,
        "\x00",
        "é\ud7ff",
        "../x",
        "/",
        "null",
    ),
    *([], [1, "a"], ["read"], [[]], {}, {"a": {"b": 1}}, {"_target_": "os.getcwd"}, {1: 2}),
    *("operators.filter.Filter", "operators.union.Union", "operators.settings:check", "nothing.here", ".", "a..b"),
)
TABLE = pa.table(
    {
        "prompt": ["a", "bb", None, "é" * 9] * 5,
        "n": list(range(20)),
        "x": [0.5] * 20,
        "m": [[{"role": "user", "content": "hi"}]] * 20,
    }
)
INSERTED = (b"\x00", b"\xff\xff\xff\xff", b'"', b"\n", b"{", b"[" * 300, b"\\ud800", b"9" * 50)
COPY_JOB = """
nodes:
  read:
    op: {_target_: operators.sources.read_prompts.ReadPrompts, data: "${data}", chunk_rows: "${chunk_rows}"}
  write:
    inputs: read
    op: {_target_: operators.sinks.write_rows.WriteRows, output: "${output}"}
"""
RENDER_JOB = """
defaults:
  - override /flow: generate
  - override /model: fake
nodes: {render: {op: {template_file: "%s"}}}
"""


def broken_law(arguments: Sequence[str]) -> str | None:
    """What is wrong with how `python -m pipeline` ends; None if it keeps the law.

    The law: an exit code that is documented, and where it is an error, a line on stderr that begins with `error:`,
    and no traceback.
    """
    said, out = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(out):
            code = int(main(list(arguments)))
    except BaseException as error:
        return f"{type(error).__name__} came through: {error}"
    text = said.getvalue()
    if code not in CODES:
        return f"it ended with {code}: {(text + out.getvalue())[-2000:]}"
    if "Traceback" in text:
        return f"it printed a traceback: {text[-2000:]}"
    if code == 2 and not any(line.startswith("error:") for line in (text + out.getvalue()).splitlines()):
        return f"it did not say what is wrong: {text[-2000:]} {out.getvalue()[-2000:]}"
    return None


def jobs() -> Iterator[tuple[str, Any]]:
    """The jobs that ship, also with the nodes of their flow written out, so that these can be damaged too."""
    for path in sorted(JOBS.glob("*.yaml")):
        job = yaml.safe_load(path.read_text(encoding="utf-8"))
        yield path.stem, job
        flow = next((d["override /flow"] for d in job.get("defaults", []) if "override /flow" in d), None)
        if flow is not None:
            whole = copy.deepcopy(job)
            whole["defaults"] = [d for d in job["defaults"] if "override /flow" not in d]
            nodes = yaml.safe_load((CONF / "flow/generate.yaml").read_text(encoding="utf-8"))["nodes"]
            whole["nodes"] = nodes
            yield f"{path.stem} written out", whole


def damaged_job(job: Any, random: Random) -> Any:
    """`job` with one to four things deleted, replaced, renamed, repeated, exchanged or pointed elsewhere."""
    job = copy.deepcopy(job)
    for _ in range(random.randint(1, 4)):
        places = list(_places(job))
        if not places:
            break
        holder, key = places[random.randrange(len(places))]
        other_holder, other = places[random.randrange(len(places))]
        kind = random.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind in (1, 2):
            holder[key] = copy.deepcopy(JUNK[random.randrange(len(JUNK))])
        elif kind == 3 and isinstance(holder, dict):
            holder[f"{key}x"] = holder.pop(key) if random.randrange(2) else copy.deepcopy(holder[key])
        elif kind == 4:
            holder[key] = copy.deepcopy(other_holder[other])
        elif isinstance(job.get("nodes"), dict) and job["nodes"]:
            names = list(job["nodes"])
            node = job["nodes"][names[random.randrange(len(names))]]
            if isinstance(node, dict):
                node["inputs"] = names[random.randrange(len(names))]
    return job


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inside:
        yield value, key
        yield from _places(child)


def damaged_bytes(data: bytes, random: Random) -> bytes:
    """`data` with some bytes changed, cut out, put in or repeated; sometimes noise."""
    if random.randrange(10) == 0:
        return random.randbytes(random.randrange(2000))
    found = bytearray(data)
    for _ in range(random.choice([1, 1, 2, 5, 40])):
        at = random.randrange(len(found) + 1)
        kind = random.randrange(5)
        if kind == 0:
            found[at : at + 1] = random.randbytes(1)
        elif kind == 1:
            del found[at : at + random.choice([1, 4, 100])]
        elif kind == 2:
            found[at:at] = random.choice(INSERTED)
        elif kind == 3:
            found[at : at + 8] = struct.pack("<Q", random.choice([0, 1 << 31, 1 << 40, 1 << 60, (1 << 64) - 1]))
        else:
            found[at:at] = found[at // 2 : at]
    return bytes(found[: random.randrange(len(found) + 1)] if random.randrange(8) == 0 else found)


def seeds(folder: Path) -> dict[str, Path]:
    """A small and valid file of each kind."""
    paths = {kind: folder / f"seed.{kind}" for kind in ("parquet", "arrow", "arrows", "jsonl", "csv")}
    pq.write_table(TABLE, paths["parquet"], row_group_size=7)
    with pa.OSFile(str(paths["arrow"]), "wb") as file, pa.ipc.new_file(file, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=6)
    with pa.OSFile(str(paths["arrows"]), "wb") as file, pa.ipc.new_stream(file, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=6)
    paths["jsonl"].write_text("".join(json.dumps(row) + "\n" for row in TABLE.to_pylist()), encoding="utf-8")
    pa.csv.write_csv(TABLE.drop_columns(["m"]), paths["csv"])
    paths["gguf"] = PROJECT / "models/tiny/tiny-q8_0.gguf"
    return paths


def arguments_of(kind: str, random: Random, folder: Path, seed: Path | None = None) -> list[str]:
    """A command line that reads a damaged input of `kind`, written to `folder`."""
    quick = [f"output_dir={folder}/out", "overwrite=true", "progress=none", "report=false", "max_error_rate=1"]
    path = folder / f"damaged.{kind}"
    if kind == "job":
        found = list(jobs())
        path = folder / "damaged.yaml"
        job = damaged_job(found[random.randrange(len(found))][1], random)
        path.write_text(yaml.safe_dump(job, allow_unicode=True), encoding="utf-8", errors="surrogatepass")
        return [f"job={path}", "dry_run=plan", *quick]
    if seed is not None:
        data = seed.read_bytes()
        if kind == "gguf":  # what is damaged should be its header
            data = damaged_bytes(data[: 1 << random.randrange(5, 17)], random) + data[1 << 17 :]
            path.write_bytes(data)
            return ["job=quickstart", f"model.path={path}", "dry_run=plan", *quick]
        path.write_bytes(damaged_bytes(data, random))
        (folder / "copy.yaml").write_text(COPY_JOB, encoding="utf-8")
        return [f"job={folder}/copy.yaml", f"data.path={path}", "chunk_rows=8", *quick]
    text = TEXTS[kind](random)
    path.write_text(text, encoding="utf-8", errors="surrogatepass")
    if kind == "template":
        (folder / "render.yaml").write_text(RENDER_JOB % path, encoding="utf-8")
        small = ["data.limit=2", "sampling.max_tokens=2", "store.enabled=false"]
        return [f"job={folder}/render.yaml", f"data.path={JOBS}/data/quickstart.jsonl", *small, *quick]
    (folder / "structured.yaml").write_text(
        yaml.safe_dump({"defaults": [{"override /flow": "generate"}], "sampling": {"structured": {kind: text}}}),
        encoding="utf-8",
    )
    return [f"job={folder}/structured.yaml", f"data.path={JOBS}/data/quickstart.jsonl", "dry_run=plan", *quick]


def _joined(words: Sequence[str], most: int = 30) -> Callable[[Random], str]:
    return lambda random: "".join(random.choice(words) for _ in range(random.randrange(1, most)))


SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "a": {"type": "string", "minLength": 1, "maxLength": 99999999, "pattern": "(a{9}){9}"},
            "b": {"anyOf": [{"type": "integer", "minimum": -5}, {"$ref": "#/$defs/c"}]},
        },
        "required": ["a"],
        "additionalProperties": False,
        "$defs": {"c": {"type": "array", "items": {"$ref": "#/$defs/c"}}},
    }
).encode()


TEXTS: dict[str, Callable[[Random], str]] = {
    "template": _joined(
        (
            *("{{ prompt }}", "{{ ", " }}", "{% for i in prompt %}", "{% endfor %}", "{% if prompt %}", "{% endif %}"),
            *("{% set x = prompt ~ prompt %}", "{{ x }}", "prompt", "|upper", "|list", "(", ")", "[", "]", "1", "'a'"),
            *(
                "{% macro m(a) %}",
                "{% endmacro %}",
                "{{ m(1) }}",
                "{% raw %}",
                "{# #}",
                "{%",
                "%}",
                " in ",
                "\x00",
                "é",
            ),
            *("{% for i in range(99999) %}", "{% break %}", "{{ loop.length }}", "~", "+", "*", "999999999", " loop "),
        )
    ),
    "regex": _joined(
        ("a", "b*", "(", ")", "[", "]", "[a-z]{2}", "{9999}", "|", "\\d", "\\", "^", "$", "(?:", "é", ".", "+")
    ),
    "grammar": _joined(
        ("start: ", "a", '"b"', "\n", "root ::= ", "|", "(", ")", "/x/", "[a-z]", "::=", "%json {", "}", " ")
    ),
    "json_schema": lambda random: damaged_bytes(SCHEMA, random).decode("latin-1"),
}
