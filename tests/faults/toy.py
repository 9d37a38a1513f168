"""A job that comes to every failpoint in a tenth of a second: two sinks, rejects, operators that remember, and a
Generate without weights, whose rows have adapters."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import yaml

from operators.images.columns import IMAGE_MARK, MOST_PIXELS, PROMPT_IMAGES, limited
from operators.rows.token_lists import PROMPT_TEXT
from operators.settings import DataSettings, OutputSettings
from pipeline.api.protocols import Operator
from pipeline.api.records import Batch, Output, add_columns
from pipeline.api.runtime import Resources
from pipeline.cli.verify import main as verify
from pipeline.runs.run import run_job
from pipeline.settings import JobSettings, NodeSettings
from tests.operators.images.files import png

ROWS = 300
NODES = f"""
numbers: {{op: {{_target_: tests.pipeline.job_ops.Numbers, rows: {ROWS}, chunk_rows: 40, batch_rows: 20}}}}
square: {{inputs: numbers, op: {{_target_: tests.pipeline.job_ops.Square, bad: [3, 4, 101]}}}}
squares:
  inputs: square
  op: {{_target_: operators.sinks.write_rows.WriteRows, output: {{}}, directory: squares}}
keyed: {{inputs: square, op: {{_target_: operators.map.Map, columns: {{key: "x % 250"}}}}}}
distinct: {{inputs: keyed, op: {{_target_: operators.dedup.Dedup, columns: [key]}}}}
prompts: {{inputs: distinct, op: {{_target_: tests.faults.toy.Prompts}}}}
generate:
  inputs: prompts
  op:
    _target_: operators.generate.Generate
    model: {{loader: "operators.engine.backend.fake:load", adapters: {{one: a.gguf, two: b.gguf}}}}
    data: {{adapter_column: adapter}}
    sampling: {{max_tokens: 4}}
    decode: {{}}
    runtime: {{slots: 8, threads: 1}}
    store: {{}}
write: {{inputs: generate, op: {{_target_: operators.sinks.write_rows.WriteRows, output: {{}}}}}}
"""


class Prompts(Operator):
    """Gives every row a prompt of its own, and an adapter or none."""

    def plan(self, schema: pa.Schema) -> pa.Schema:
        own = pa.field("prompt_ids", pa.list_(pa.int32())), pa.field("adapter", pa.string())
        self.schema = add_columns(schema, *own)
        return self.schema

    def process(self, batch: Batch) -> Iterable[Output]:
        numbers = batch.data.column("x").to_pylist()
        ids = pa.array([[1 + x // 200, 1 + x % 200, 7] for x in numbers], pa.list_(pa.int32()))
        adapters = pa.array([(None, "one", "two")[x % 3] for x in numbers], pa.string())
        columns = [*batch.data.columns, ids, adapters]
        yield batch.with_data(pa.record_batch(columns, schema=self.schema))


class Pictures(Operator):
    """Gives every row a prompt with two of 20 images, no two rows the same, in the place of `Prompts`."""

    def plan(self, schema: pa.Schema) -> pa.Schema:
        self.files = [
            {"bytes": png(32, 32, 8, 2, (b"\0" + bytes([n]) * 96) * 32), "path": None} for n in range(0, 200, 10)
        ]
        self.schema = add_columns(schema, PROMPT_TEXT, limited(PROMPT_IMAGES, MOST_PIXELS, of_columns=True))
        return self.schema

    def process(self, batch: Batch) -> Iterable[Output]:
        numbers = batch.data.column("x").to_pylist()
        texts = [f"{IMAGE_MARK}then{IMAGE_MARK}"] * len(numbers)
        images = [[self.files[x % 20], self.files[x // 15]] for x in numbers]
        columns = [*batch.data.columns, pa.array(texts), pa.array(images, PROMPT_IMAGES.type)]
        yield batch.with_data(pa.record_batch(columns, schema=self.schema))


def run(directory: str, *overwrite: str) -> int:
    """Run the job, or resume it, or with a second argument begin it anew; returns the exit code."""
    return run_job(settings_of(directory, overwrite=bool(overwrite)), Resources())


def run_images(directory: str) -> int:
    """The same with images in the prompts, and without adapters."""
    settings = settings_of(directory, overwrite=False)
    nodes, model = settings.nodes, {"loader": "operators.engine.backend.fake:load", "mmproj": "eyes"}
    nodes["prompts"].op = {"_target_": "tests.faults.toy.Pictures"}
    nodes["ids"] = NodeSettings({"_target_": "operators.tokens.Tokenize", "model": model}, "prompts")
    nodes["generate"].inputs = ["ids"]
    nodes["generate"].op |= {"model": model, "data": {}}
    return run_job(settings, Resources())


def run_published(directory: str) -> int:
    """The same, published to a folder beside `directory`, with a card."""
    settings = settings_of(directory, overwrite=False)
    settings.output = OutputSettings(publish=f"file://{directory}.published", retries=0)
    return run_job(settings, Resources())


def run_appending(directory: str) -> int:
    """The same with `append`, over the numbers in `in` beside `directory`."""
    settings = settings_of(directory, overwrite=False)
    folder = str(Path(directory).parent / "in")
    reader = {"_target_": "operators.sources.read_prompts.ReadPrompts", "data": DataSettings(folder), "chunk_rows": 30}
    settings.nodes["numbers"].op = reader
    settings.append, settings.chunk_rows = True, 40
    return run_job(settings, Resources())


def run_appending_published(directory: str) -> int:
    """The same, with rows that have changed taken again, and published to a folder beside `directory`."""
    settings = settings_of(directory, overwrite=False)
    data = DataSettings(str(Path(directory).parent / "in"), id_column="x")
    reader = {"_target_": "operators.sources.read_prompts.ReadPrompts", "data": data, "chunk_rows": 30}
    settings.nodes["numbers"].op, settings.data = reader, data
    settings.append, settings.append_changed, settings.chunk_rows = True, "again", 40
    settings.output = OutputSettings(publish=f"file://{directory}.published", retries=0)
    return run_job(settings, Resources())


def repair(directory: str) -> int:
    """Repair what is in `directory`; returns the exit code."""
    return verify([directory, "repair=true"])


def settings_of(directory: str, *, overwrite: bool) -> JobSettings:
    """Return the job."""
    nodes = {name: NodeSettings(**node) for name, node in yaml.safe_load(NODES).items()}
    settings = JobSettings(name="toy", nodes=nodes, output_dir=directory, overwrite=overwrite)
    settings.max_open_chunks, settings.max_error_rate, settings.progress = 2, 1.0, "none"
    return settings
