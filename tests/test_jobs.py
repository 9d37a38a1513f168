"""Every job that ships runs on the embedded model with shipped data, and its files keep the laws of a run."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.config.jobs import JOBS
from pipeline.results.reader import read_results
from pipeline.results.report.page import page
from tests.operators.endpoint.real_server import llama_cpp_server
from tests.pipeline.cluster.thread_pool import workers_in_threads
from tests.pipeline.squares import files
from tests.sets import often

pytestmark = pytest.mark.slow("runs every job once")

ROWS, SLOTS = 12, 4
SMALL = (
    *(f"data.limit={ROWS}", f"runtime.slots={SLOTS}", "sampling.max_tokens=24"),
    *("chunk_rows=8", "progress=none", "output.card=true"),
)
BENCH = (
    *("bench.scenarios=[peers]", "bench.contenders=[job,llama-server,llama-batched-bench]", "bench.peers=not-built"),
    *("bench.slots=[2]", "bench.repeats=1", "bench.max_rows=3", "chunk_rows=8", "progress=none"),
    *("data.limit=20", "sampling.max_tokens=8", "model=tiny"),
)
CASES = 3
"""Of the benchmark: its rows are measurements; those of programs that are not built say so."""
ONE_ROUND = ("target.accepted_rows=null",)
"""For jobs with a target: every row once, as for all others. What a target does is tested by itself."""
PAGE = (PROJECT / "docs/jobs.md").read_text(encoding="utf-8")
CLOSELY = [JOBS / f"{name}.yaml" for name in ("quickstart", "best_of_n", "embed", "self_instruct")]
"""Jobs whose report is drawn: a plain one, samples, vectors, steps."""
SHIPPED_DATA = JOBS / "data" / "quickstart.jsonl"


@dataclass(frozen=True)
class Finished:
    """A run that has ended. `data` and `rejects` are its tables, whole; `arguments` all but its output directory."""

    code: int
    directory: Path
    data: pa.Table
    rejects: list[dict[str, Any]]
    arguments: tuple[str, ...]
    source_rows: int = ROWS

    def metrics(self, name: str) -> list[dict[str, Any]]:
        return pq.read_table(self.directory / f"metrics/{name}.parquet").to_pylist()

    @property
    def manifest(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.directory / "manifest.json").read_text(encoding="utf-8"))
        return found


def needs_data(job: dict[str, Any]) -> bool:
    return (job.get("data") or {}).get("path") is None


def needs_model(job: dict[str, Any]) -> bool:
    return {"override /model": "gguf"} in job["defaults"]


def needs_server(job: dict[str, Any]) -> bool:
    return {"override /model": "endpoint"} in job["defaults"]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


@pytest.fixture(scope="module", params=sorted(JOBS.glob("*.yaml")), ids=lambda path: path.stem)
def finished(request, tmp_path_factory) -> Iterator[Finished]:
    out = tmp_path_factory.mktemp(request.param.stem)
    bench = request.param.stem == "bench"
    job = yaml.safe_load(request.param.read_text(encoding="utf-8"))
    given = [f"data.path={SHIPPED_DATA}"] if needs_data(job) else []
    given += ["model=tiny"] if needs_model(job) else []
    given += [*BENCH, f"bench.cache={tmp_path_factory.mktemp('cache')}"] if bench else SMALL
    with ExitStack() as servers:
        if needs_server(job):
            url = servers.enter_context(llama_cpp_server(tmp_path_factory.mktemp("server") / "log"))
            given.append(f"model.url={url}")
        arguments = (f"job={request.param.stem}", *given, *ONE_ROUND)
        code = main([*arguments, f"output_dir={out}"])
        shards = [pq.read_table(path) for path in sorted((out / "data").glob("*.parquet"))]
        rows = CASES if bench else ROWS
        yield Finished(code, out, pa.concat_tables(shards), rows_of(out / "rejects"), arguments, rows)


@pytest.fixture
def generated(finished) -> Finished:
    """A job with a Generate."""
    if not (finished.directory / "metrics/steps.parquet").exists():
        pytest.skip("the job generates nothing itself")
    return finished


def test_there_are_jobs():
    assert {
        *("bench", "best_of_n", "chat", "classify", "diffuse", "embed", "extract", "generate", "openai_batch"),
        *("quickstart", "score_perplexity", "self_instruct"),
    } <= {path.stem for path in JOBS.glob("*.yaml")}


def test_it_ends_well(finished):
    assert finished.code == ExitCode.DONE


def test_every_row_is_in_the_data_or_in_the_rejects(finished):
    expanded = sum(stage["expanded"] for stage in finished.metrics("stages"))
    assert len(finished.data) + len(finished.rejects) == finished.source_rows + expanded
    found = {row["row"] for row in finished.rejects} | set(finished.data["row"].to_pylist())
    assert found == set(range(finished.source_rows))


@pytest.mark.laws
def test_two_workers_give_the_same_bytes(finished, tmp_path):
    """Those jobs whose model is at a server, or that measure, have nothing that workers could do."""
    assert finished.code == ExitCode.DONE
    workers = ("cluster=processes", "cluster.piece_rows=3", f"output_dir={tmp_path / 'out'}")
    if main([*finished.arguments, *workers, "dry_run=plan"]) == ExitCode.CONFIG:
        pytest.skip("no node of it has a model that workers could share")
    with workers_in_threads():
        assert main([*finished.arguments, *workers]) == ExitCode.DONE
    assert files(tmp_path / "out") == files(finished.directory)


def test_its_columns_are_those_that_the_page_of_jobs_names(finished, request):
    name = request.node.callspec.params["finished"].stem
    says = re.search(rf"^## {name}\n.*?^\*\*Columns\*\*: (.*?)$", PAGE, re.M | re.S)
    assert says is not None
    columns, named = finished.data.schema.names, re.findall(r"`(\w+)`", says[1])
    own = columns[columns.index("row") :] if says[1].startswith("those of the input, then") else columns
    assert own == named


def test_its_card_says_how_it_sampled_only_where_a_text_was_generated(finished):
    if finished.source_rows == CASES:
        pytest.skip("its rows are measurements")
    text = (finished.directory / "README.md").read_text(encoding="utf-8")
    generates = (finished.directory / "metrics/steps.parquet").exists()
    for said in ("- synthetic", "a language model has generated", "| sampling.max_tokens"):
        assert (said in text) == generates, said
    assert "`None`" not in text


def test_rows_are_unique_and_sorted(finished):
    rows = finished.data["row"].to_pylist()
    lineage = finished.data["lineage"].to_pylist() if "lineage" in finished.data.schema.names else [None] * len(rows)
    identities = [(row, line or []) for row, line in zip(rows, lineage, strict=True)]
    assert all(one < next_one for one, next_one in itertools.pairwise(identities))


def test_the_manifest_counts_what_is_there(finished):
    counts = finished.manifest["counts"]
    assert finished.manifest["status"] == "done"
    assert (counts["source_rows"], counts["data_rows"]) == (finished.source_rows, len(finished.data))
    assert counts["error_rejects"] + counts["filtered_rejects"] == len(finished.rejects)
    assert counts["chunks"] == -(-finished.source_rows // 8)
    assert finished.manifest["schema"]["data"] == {f.name: str(f.type) for f in finished.data.schema}


def test_scores_and_embeddings_are_those_of_their_columns(finished):
    columns = finished.data.schema.names
    if "perplexity" in columns:
        for row in finished.data.select(["logprobs", "logprob_sum", "token_count", "perplexity"]).to_pylist():
            assert len(row["logprobs"]) == row["token_count"] > 0
            assert row["perplexity"] == pytest.approx(math.exp(-sum(row["logprobs"]) / row["token_count"]))
    if "embedding" in columns:
        for vector in finished.data["embedding"].to_pylist():
            assert sum(number * number for number in vector) == pytest.approx(1)


def test_every_slot_of_a_decode_step_is_used_or_has_a_cause(generated):
    steps = [step for step in generated.metrics("steps") if step["decode_tokens"]]
    assert steps or set(generated.data["completion_token_count"].to_pylist()) == {1}
    for step in steps:
        assert step["rows"] + sum(n for key, n in step.items() if key.startswith("unfilled_")) == SLOTS


def test_the_rows_of_the_metrics_are_those_of_the_data(generated):
    if "completion_token_count" not in generated.data.schema.names:
        pytest.skip("a row of its data is several completions")
    made = Counter((row["row"], row["completion_tokens"]) for row in generated.metrics("rows"))  # a line a sample
    kept = Counter(zip(*(generated.data[c].to_pylist() for c in ("row", "completion_token_count")), strict=True))
    assert kept <= made


@pytest.mark.parametrize("finished", often(CLOSELY, *CLOSELY[:2]), indirect=True, ids=lambda path: path.stem)
def test_its_report_is_whole_and_has_no_empty_panel(finished):
    text = page(read_results(finished.directory))
    assert "could not be" not in text
    panels = dict(re.findall(r"<h2>(.*?)</h2>(.*?)</section>", text, re.S))
    assert {"Where the time went", "Sample rows", "Made with"} <= panels.keys()
    assert all(re.search(r"<svg|<td|<dd|<pre", panel) for panel in panels.values())
