"""Figures of a contender, and how they are read from a finished job."""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


@dataclass(frozen=True, kw_only=True)
class Figures:
    """The work and cost of a contender; one column each in the results. None: not known for this contender.

    Args:
        load_before, busy_before: load average before the case, and the share of the cores that others used.
        wall_s: of the whole process.
        work_s: from the first prompt to the last token, without the start of the process and the load of the model.
        cpu_s, peak_rss_mb: of the process that did the work.
        steps: calls of the model; decode_step_ms: the median one that only generates.
        prefill_s: in calls that compute prompts.
        form_s, draft_s, decode_s, sample_s: filling batches, drafting, in the model, choosing tokens; over all calls.
        calls_per_block: of a row with block diffusion; a call that stores a block and begins the next one counts once.
        tokens_per_pass: committed in a denoising step of a block.
        efficiency: share of their time for which workers compute, from the opening of the last until one is done;
            whole_efficiency: until the end of the run.
        tail_idle: share of the time up to the end of the run that workers idle after one is done.
        driver_row_us, driver_piece_ms: CPU time of the driver, by row and by piece.
        images_encoded: times that an image was encoded.
        texts: a digest of the completions, equal for equal texts of equal rows.
    """

    load_before: float | None = None
    busy_before: float | None = None
    wall_s: float | None = None
    work_s: float
    cpu_s: float | None = None
    peak_rss_mb: float | None = None
    prompt_tokens: int
    new_tokens: int
    steps: int | None = None
    decode_step_ms: float | None = None
    prefill_s: float | None = None
    form_s: float | None = None
    draft_s: float | None = None
    decode_s: float | None = None
    sample_s: float | None = None
    calls_per_block: float | None = None
    tokens_per_pass: float | None = None
    efficiency: float | None = None
    whole_efficiency: float | None = None
    tail_idle: float | None = None
    driver_row_us: float | None = None
    driver_piece_ms: float | None = None
    images_encoded: int | None = None
    texts: str | None = None
    note: str | None = None

    def row(self) -> dict[str, Any]:
        """Return the values of COLUMNS: with new tokens per second, milliseconds per call inside the model, and the
        share of the time outside of such calls (our Python, sampling, files)."""
        row = asdict(self) | {"tokens_per_s": self.new_tokens / self.work_s}
        if self.decode_s is not None:
            row["own_share"] = 1 - self.decode_s / self.work_s
            row["call_ms"] = 1000 * self.decode_s / self.steps if self.steps else None
        return row


_ARROW = {"float": pa.float64(), "int": pa.int64(), "str": pa.string()}
COLUMNS = (
    *(pa.field(f.name, _ARROW[str(f.type).split(" ")[0]]) for f in fields(Figures)),
    *(pa.field(name, pa.float64()) for name in ("tokens_per_s", "call_ms", "own_share")),
    pa.field("skipped_reason", pa.string()),
)


def of_steps(steps: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the fields of Figures that follow from the rows of metrics/steps.parquet."""
    rows, parts = list(steps), ("form_s", "draft_s", "decode_s", "sample_s")
    generating = [row for row in rows if row["decode_tokens"] and not row["prefill_tokens"]]
    seconds = [sum(row[part] for part in parts) for row in generating]
    return {
        "steps": len(rows),
        "decode_step_ms": 1000 * statistics.median(seconds) if seconds else None,
        "prefill_s": sum(row[part] for row in rows if row["prefill_tokens"] for part in parts),
        **{part: sum(row[part] for row in rows) for part in parts},
    }


def of_job(directory: Path) -> Figures:
    """Return the figures of a job, from its metrics. Raises ValueError if it has not ended well.

    `work_s` begins when all nodes are open, so that model and context are loaded, and ends when the last chunk is
    committed: it is the longest wall time of any node; of a run with workers, of any node in any of them.
    """
    (run,) = pq.read_table(directory / "metrics/run.parquet").to_pylist()
    if run["state"] != "done" or run["rejects_error"]:
        raise ValueError(f"the job ended as {run['state']} with {run['rejects_error']} rows rejected as errors")
    totals = json.loads(run["totals"])
    stages = pq.read_table(directory / "metrics/stages.parquet")
    if stages["worker"].null_count < stages.num_rows:
        stages = stages.filter(stages["worker"].is_valid())
    walls = stages.group_by(["node", "worker"]).aggregate([("wall_s", "sum")])
    steps = pq.read_table(directory / "metrics/steps.parquet").to_pylist()
    return Figures(
        work_s=max(walls["wall_s_sum"].to_pylist()),
        prompt_tokens=run["tokens_in"],
        new_tokens=run["tokens_out"],
        images_encoded=totals.get("images_encoded"),
        texts=_digest(directory / "data"),
        **of_steps(steps),
        **_of_blocks(totals, run["rows"]),
    )


def _of_blocks(totals: Mapping[str, float], rows: int) -> dict[str, Any]:
    """Return the fields of Figures for block diffusion. The last block of each of `rows` rows is not stored."""
    if "denoise_passes" not in totals:
        return {}
    passes = totals["denoise_passes"] + totals["store_passes"]
    return {
        "calls_per_block": passes / (totals["store_passes"] + rows),
        "tokens_per_pass": totals["committed_tokens"] / totals["denoise_passes"],
    }


def _digest(data: Path) -> str | None:
    digest = hashlib.sha256()
    shards = sorted(data.glob("*.parquet"))
    for shard in shards:
        table = pq.read_table(shard)
        kept = [name for name in ("row", "lineage", "completion") if name in table.column_names]
        digest.update(repr(table.select(kept).to_pylist()).encode())
    return digest.hexdigest()[:16] if shards else None
