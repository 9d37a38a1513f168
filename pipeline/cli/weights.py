"""`python -m pipeline weights model.path=m.gguf`: measure each type that the model's weights can have, on this machine
and for a job: its size, its speed, and how far its predictions are from what its weights say."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from tqdm import tqdm

from pipeline import PROJECT
from pipeline.api.errors import ExitCode, install
from pipeline.api.runtime import Resources
from pipeline.api.weights import WeightsFigures
from pipeline.cli.commands import parser_of
from pipeline.cli.run import config_dirs_of, run_jobs
from pipeline.dry_run.weights import compared
from pipeline.monitor.wording import time_text
from pipeline.results.report.drawing import draw_alone
from pipeline.results.report.panel import Points
from pipeline.settings import JobSettings
from pipeline.system.disk_errors import writing
from pipeline.system.terminal import say

PROMPTS = PROJECT / "jobs/data/evaluate_tiny.jsonl"
"""The prompts where none are given."""
_DATA = ("data=", "data.path=", "data.dataset=")
LITTLE_KL = 1e-4
"""A mean divergence up to this is taken for none."""
TITLES = ("weights", "MB", "memory MB", "prompt t/s", "decode t/s", "the job", "perplexity", "mean KL", "same top")


def main(arguments: Sequence[str]) -> ExitCode:
    """Measure, and print the table."""
    parser = parser_of("weights")
    parser.add_argument("--save", type=Path, metavar="DIR", help="write weights.parquet and weights.svg into DIR")
    parser.add_argument(
        "--types", type=lambda names: names.split(","), default=(), metavar="A,B", help="measure only these (q4_0,bf16)"
    )
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="settings of a job (default: job=generate)")
    own, more = parser.parse_known_args(arguments)
    given = [*own.settings, *more]
    if not any(a.lstrip("+").startswith("job=") for a in given):
        given.append("job=generate")
    if "job=generate" in given and not any(a.startswith(_DATA) for a in given):
        given += [f"data.path={PROMPTS}", "data.prompt_column=prompt"]

    def weigh(settings: JobSettings, process: Resources) -> ExitCode:
        found = list(_shown(settings, own.types))
        say(["", *table(found), "", *advice(found)])
        if own.save is not None:
            say(save(found, own.save))
        return ExitCode.DONE

    return run_jobs(given, config_dirs_of(given), weigh)


def _shown(settings: JobSettings, types: Sequence[str]) -> Iterator[WeightsFigures]:
    """Measure each type; say each when it is measured, with a bar on a terminal."""
    with tqdm(desc="measuring", unit=" types", file=sys.stderr, disable=None, leave=False) as bar:
        for figures in compared(settings, types):
            bar.update()
            if figures.refused is None:
                named = (f"{title} {cell}" for title, cell in zip(TITLES[1:], _cells(figures)[1:], strict=True) if cell)
                tqdm.write(f"{figures.weights}: {', '.join(named)}", file=sys.stderr)
            yield figures


def table(found: Sequence[WeightsFigures]) -> list[str]:
    """Return the lines of a table, in the order of measurement, and a line for each type that was refused."""
    rows = [TITLES, *(_cells(f) for f in found if f.refused is None)]
    first, *others = [max(len(row[i]) for row in rows) for i in range(len(TITLES))]
    lines = [
        "  ".join([f"{name:<{first}}", *(f"{cell:>{width}}" for cell, width in zip(cells, others, strict=True))])
        for name, *cells in rows
    ]
    return [*lines, *(f"{f.weights}: {f.refused}" for f in found if f.refused is not None)]


def _cells(figures: WeightsFigures) -> tuple[str, ...]:
    f = figures
    return (
        f.weights,
        "" if f.size_bytes is None else f"{f.size_bytes / 1e6:,.0f}",
        "" if f.memory_bytes is None else f"{f.memory_bytes / 1e6:,.0f}",
        f"{f.prompt_tokens_per_s:,.0f}",
        f"{f.decode_tokens_per_s:,.0f}",
        time_text(f.job_s or 0.0),
        f"{f.perplexity:.4g}",
        f"{f.mean_kl:.1e}",
        f"{f.same_top:.1%}",
    )


def advice(found: Sequence[WeightsFigures]) -> Iterator[str]:
    """Yield what to make of the figures, and last the line to put into the job."""
    measured = [f for f in found if f.refused is None and f.job_s]
    plain = measured[0]
    fast = sorted(measured, key=lambda f: f.job_s or 0.0)
    yield "the job: the seconds of these speeds if every completion is as long as it may be; measured in this order"
    little = max(LITTLE_KL, plain.mean_kl or 0.0)
    same = next((f for f in fast if (f.mean_kl or 0.0) <= little), plain)
    if fast[0] is not same:
        yield (
            f"{fast[0].weights} is the fastest, {_times(plain, fast[0])} times as fast as the file as it is, but it"
            f" predicts otherwise: mean KL {fast[0].mean_kl:.1e}, the same likeliest token at {fast[0].same_top:.1%}"
        )
    if same.doubt and not plain.doubt:
        yield f"{same.weights}: that a row does not depend on its neighbours is not tested for it ({same.doubt})"
    gain = "" if same is plain else f" # {_times(plain, same)} times as fast; mean KL {same.mean_kl:.1e}"
    yield f"model.weights={same.weights}{gain}"


def _times(plain: WeightsFigures, other: WeightsFigures) -> str:
    return f"{(plain.job_s or 0.0) / (other.job_s or 1.0):.2f}"


def save(found: Sequence[WeightsFigures], folder: Path) -> list[str]:
    """Write the figures as Parquet, and speed against divergence as SVG; return a line for each file."""
    kinds = {"str": pa.string(), "int | None": pa.int64(), "float | None": pa.float64(), "str | None": pa.string()}
    schema = pa.schema([(field.name, kinds[str(field.type)]) for field in fields(WeightsFigures)])
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.Table.from_pylist([asdict(f) for f in found], schema), folder / "weights.parquet")
    measured = [f for f in found if f.refused is None and f.job_s]
    points = [(f.weights, (f.mean_kl or 0.0), (measured[0].job_s or 0.0) / (f.job_s or 1.0)) for f in measured]
    about = "How many times as fast the job is as with the file as it is, against how far predictions are from its."
    chart = Points("Speed against divergence", about, points, "mean KL divergence (nats)", "times as fast")
    try:
        with writing(folder):
            (folder / "weights.svg").write_text(draw_alone(chart, "weights"), encoding="utf-8")
    except ImportError:
        return [f"saved {folder / 'weights.parquet'}; for the drawing matplotlib is missing: {install('report')}"]
    return [f"saved {folder / 'weights.parquet'} and weights.svg"]
