"""`decode=speculative` in a job: the bytes of `decode=autoregressive`, what is refused, and what metrics say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from operators.engine.strategies.speculative.setup import MOST_UNUSED, SpeculativeSetup, _difference
from operators.engine.strategies.speculative.strategy import Speculative
from operators.settings import ModelSettings, SamplingSettings
from operators.settings.runtime import OPEN, EngineSettings
from operators.settings.speculative import SpeculativeSettings
from operators.tuning.choices import CHOICE_FILE
from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.main import main
from pipeline.results.reader import read_results
from pipeline.results.report.time_spent import time_spent
from pipeline.system.failpoints import VARIABLE, Failpoint
from pipeline.system.file_cache import PLACE
from tests.sets import often_cases
from tools.models.make_model import write_model
from tools.models.shapes import named_shape

pytestmark = pytest.mark.slow("runs a job with each way of drafting")

SMALL = ("data.limit=12", "sampling.max_tokens=24", "runtime.slots=3", "runtime.threads=1", "chunk_rows=4")
ALWAYS = ("decode=speculative", "decode.adaptive=false", "decode.draft_tokens=3")


def run(out: Path, *overrides: str, code: int = ExitCode.DONE) -> list[bytes]:
    """Run a job on the small model that ships; return the files of its results."""
    assert main(["job=quickstart", f"output_dir={out}", "progress=none", *SMALL, *overrides]) == code
    return [shard.read_bytes() for shard in sorted((out / "data").glob("*.parquet"))]


def totals(out: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads(pq.read_table(out / "metrics/run.parquet")["totals"][-1].as_py())
    return found


def test_drafts_are_counted_for_rows_steps_and_the_run(tmp_path):
    run(tmp_path / "out", *ALWAYS)
    sums = totals(tmp_path / "out")
    for kind, use in (("drafted_tokens", "queries"), ("accepted_tokens", "hits")):
        tables = [pq.read_table(tmp_path / f"out/metrics/{name}.parquet")[kind] for name in ("rows", "steps")]
        assert {sum(table.to_pylist()) for table in tables} == {sums[kind]} == {sums[f"generate/drafts_{use}"]}
    assert sums["drafted_tokens"] > sums["accepted_tokens"] > 0


@pytest.mark.parametrize(
    ("override", "said"),
    often_cases(
        [
            ("decode.draft_tokens=63", "decode.draft_tokens=63 cannot work: it is 1 to 62: from 64 tokens of a row on"),
            (
                "decode.draft=model",
                "decode.draft='model' cannot work: it is lookup; a model is named by decode.draft.model=",
            ),
            ("decode.draft.model=3", "decode.draft.model=3 cannot work: it is the path of a GGUF file"),
            ("decode.draft.modle=x", "unknown key 'decode.draft.modle'"),
            ("decode.draft.model=no.gguf", "decode.draft.model=no.gguf does not exist; give the path of a GGUF file"),
            ("decode.draft.model=README.md", "decode.draft.model=README.md is a file that begins with"),
            (
                "decode.draft.model=tests/families/encoders/bert.gguf",
                "bert.gguf cannot make drafts: a model of the arch",
            ),
            ("decode.draft.model=tests/families/qwen3.gguf", "has another vocabulary than the model: token"),
            ("runtime.flash_attention=false", "decode=speculative needs runtime.flash_attention=true"),
        ],
        "decode.draft_tokens=63",
        "decode.draft.model=no.gguf",
        "decode.draft.model=tests/families/qwen3.gguf",
    ),
)
def test_what_cannot_work_ends_with_exit_code_2(override, said, tmp_path, capsys):
    run(tmp_path / "out", override, "decode=speculative", code=ExitCode.CONFIG)
    assert said in capsys.readouterr().err


def test_runtime_auto_chooses_what_drafts_leave_open(tmp_path, monkeypatch):
    monkeypatch.setenv(PLACE, str(tmp_path / "cache"))
    assert run(tmp_path / "a", "decode=speculative", "runtime=auto", "runtime.slots=0") == run(tmp_path / "b")
    chosen = json.loads((tmp_path / "a" / CHOICE_FILE).read_text())["values"]
    assert chosen.keys() == {"slots"}, "the others are given, or work with one value only"
    settled = SpeculativeSetup(SpeculativeSettings(), Speculative).settled(EngineSettings(**OPEN, deterministic=False))
    assert (settled.kv, settled.flash_attention) == ("per_sequence", None)


def test_one_stream_for_all_rows_is_refused():
    setup = SpeculativeSetup(SpeculativeSettings(), Speculative)
    settings = EngineSettings(kv="unified", deterministic=False)
    with pytest.raises(ConfigError, match=r"needs runtime\.kv=per_sequence"):
        setup.check(SamplingSettings(), settings, ModelSettings())


TINY = "models/tiny/tiny-q8_0.gguf"
BY_TINY = f"decode.draft.model={TINY}"


@pytest.fixture(scope="module")
def stranger(tmp_path_factory) -> str:
    """A draft model with the vocabulary of the small model, and random weights."""
    path = tmp_path_factory.mktemp("draft") / "stranger.gguf"
    write_model(path, vocab=Path(TINY))
    return f"decode.draft.model={path}"


@pytest.mark.laws
@pytest.mark.parametrize("by", ["lookup", "model"])
def test_the_bytes_are_those_of_autoregressive_also_resumed_and_from_its_store(tmp_path, stranger, by):
    """Drafts of the model itself are right, and those of a stranger wrong."""
    warm = ("sampling.temperature=0.9", "sampling.n=2")
    store = f"store.path={tmp_path / 'store.sqlite'}"
    ways = {"lookup": (ALWAYS, ("decode=speculative",)), "model": ((*ALWAYS, BY_TINY), (*ALWAYS, stranger))}[by]
    expected = run(tmp_path / "plain", store, *warm)
    for number, way in enumerate(ways):
        assert run(tmp_path / str(number), *way, *warm) == expected
    command = [sys.executable, "-m", "pipeline", "job=quickstart", f"output_dir={tmp_path / 'killed'}", "progress=none"]
    at = os.environ | {VARIABLE: f"{Failpoint.SHARD_RENAMED}:2"}
    assert subprocess.run([*command, *SMALL, *ways[0], *warm], env=at, check=False).returncode == -signal.SIGKILL
    assert run(tmp_path / "killed", "decode=speculative", "decode.draft_tokens=5", *warm) == expected
    assert run(tmp_path / "found", *ways[-1], *warm, store) == expected
    assert totals(tmp_path / "found")["steps"] == 0


def test_drafts_of_a_model_are_counted_with_their_time(tmp_path):
    run(tmp_path / "out", *ALWAYS, BY_TINY, "output.card=true")
    sums, steps = totals(tmp_path / "out"), pq.read_table(tmp_path / "out/metrics/steps.parquet")
    assert sums["draft_s"] == pytest.approx(sum(steps["draft_s"].to_pylist()))
    assert sums["draft_s"] > 0
    assert sums["accepted_tokens"] > 0.8 * sums["drafted_tokens"] > 0  # the end of a completion is not foreseen
    stages = pq.read_table(tmp_path / "out/metrics/stages.parquet").group_by("node").aggregate([("busy_s", "sum")])
    busy = dict(zip(stages["node"].to_pylist(), stages["busy_s_sum"].to_pylist(), strict=True))
    assert busy["generate/decode"] >= 0.9 * (sums["draft_s"] + sums["decode_s"])  # two clocks
    assert f"{TINY} makes drafts (decode.draft.model)" in (tmp_path / "out/run.log").read_text()
    assert "| draft model | `tiny-q8_0.gguf`, which changes no text |" in (tmp_path / "out/README.md").read_text()
    run(tmp_path / "plain")
    assert "drafting" in repr(time_spent(read_results(tmp_path / "out")))
    assert "drafting" not in repr(time_spent(read_results(tmp_path / "plain")))


def test_the_plan_and_the_estimate_count_the_draft_model(tmp_path, capsys, stranger):
    given = ["job=quickstart", f"output_dir={tmp_path / 'out'}", *SMALL, "decode=speculative", stranger]
    assert main([*given, "dry_run=plan"]) == 0
    said = capsys.readouterr().out
    assert "stranger.gguf" in said
    assert "1 context(s) of" in said
    assert main([*given, "dry_run=true"]) == 0
    assert "peak memory" in capsys.readouterr().out


def test_a_draft_model_for_shorter_rows_is_refused(tmp_path, capsys):
    path = tmp_path / "short.gguf"
    write_model(path, shape=replace(named_shape("tiny"), n_ctx_train=256), vocab=Path(TINY))
    short = ("decode=speculative", f"decode.draft.model={path}")
    run(tmp_path / "out", *short, code=ExitCode.CONFIG)
    assert "was trained for 256 tokens, and rows have up to 512; set runtime.max_seq" in capsys.readouterr().err
    run(tmp_path / "out", *short, "runtime.max_sequence_tokens=256")


def test_padded_vocabularies_agree(tmp_path):
    """Models of a family have tokens in common and unused ones behind them."""
    tokens = [b"a", b"b", b"c"]
    assert _difference(tokens, [*tokens, *[b"[PAD]"] * MOST_UNUSED]) is None
    assert "it has 3 tokens and not 132" in str(_difference(tokens, [*tokens, *[b"[PAD]"] * (MOST_UNUSED + 1)]))
    assert "token 1 is 'b' and not 'x', and 1 in all differ" in str(_difference(tokens, [b"a", b"x", b"c"]))


@pytest.mark.laws
def test_workers_in_processes_draft_too(tmp_path):
    """Each loads the draft model; the bytes are those of one process."""
    expected = run(tmp_path / "plain")
    assert run(tmp_path / "workers", *ALWAYS, BY_TINY, "cluster=processes", "cluster.workers=2") == expected
    assert totals(tmp_path / "workers")["draft_s"] > 0
