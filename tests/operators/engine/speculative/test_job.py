"""`decode=speculative` in a job: the bytes of `decode=autoregressive`, what is refused, and what metrics say."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from operators.engine.strategies.speculative.strategy import Speculative
from operators.settings import ModelSettings, SamplingSettings
from operators.settings.runtime import EngineSettings
from operators.settings.speculative import SpeculativeSettings
from pipeline.api.errors import ConfigError, ExitCode
from pipeline.cli.main import main
from pipeline.system.failpoints import VARIABLE, Failpoint

SMALL = ("data.limit=12", "sampling.max_tokens=24", "runtime.slots=3", "runtime.threads=1", "chunk_rows=4")
ALWAYS = ("decode=speculative", "decode.adaptive=false", "decode.draft_tokens=3")


def run(out: Path, *overrides: str, code: int = ExitCode.DONE) -> list[bytes]:
    """Run a job on the small model that ships; return the files of its results."""
    assert main(["job=quickstart", f"output_dir={out}", "progress=none", *SMALL, *overrides]) == code
    return [shard.read_bytes() for shard in sorted((out / "data").glob("*.parquet"))]


def totals(out: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads(pq.read_table(out / "metrics/run.parquet")["totals"][-1].as_py())
    return found


def test_the_bytes_are_those_of_autoregressive_also_resumed_and_from_its_store(tmp_path):
    warm = ("sampling.temperature=0.9", "sampling.n=2")
    store = f"store.path={tmp_path / 'store.sqlite'}"
    expected = run(tmp_path / "plain", store, *warm)
    assert run(tmp_path / "drafts", *ALWAYS, *warm) == expected
    assert run(tmp_path / "adaptive", "decode=speculative", *warm) == expected
    command = [sys.executable, "-m", "pipeline", "job=quickstart", f"output_dir={tmp_path / 'killed'}", "progress=none"]
    at = os.environ | {VARIABLE: f"{Failpoint.SHARD_RENAMED}:2"}
    assert subprocess.run([*command, *SMALL, *ALWAYS, *warm], env=at, check=False).returncode == -signal.SIGKILL
    assert run(tmp_path / "killed", "decode=speculative", "decode.draft_tokens=5", *warm) == expected
    assert run(tmp_path / "found", *ALWAYS, *warm, store) == expected
    assert totals(tmp_path / "found")["steps"] == 0


def test_drafts_are_counted_for_rows_steps_and_the_run(tmp_path):
    run(tmp_path / "out", *ALWAYS)
    sums = totals(tmp_path / "out")
    for kind, use in (("drafted_tokens", "queries"), ("accepted_tokens", "hits")):
        tables = [pq.read_table(tmp_path / f"out/metrics/{name}.parquet")[kind] for name in ("rows", "steps")]
        assert {sum(table.to_pylist()) for table in tables} == {sums[kind]} == {sums[f"generate/drafts_{use}"]}
    assert sums["drafted_tokens"] > sums["accepted_tokens"] > 0


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("decode.draft_tokens=63", "decode.draft_tokens=63 cannot work: it is 1 to 62: from 64 tokens of a row on"),
        ("decode.draft=model", "decode.draft='model' cannot work: it is one of lookup"),
        ("runtime.flash_attention=false", "decode=speculative needs runtime.flash_attention=true"),
        ("runtime=auto", "decode=speculative needs runtime.flash_attention=true"),
        ("model.path=tests/families/lfm2.gguf", "it has recurrent layers, whose state cannot drop"),
    ],
)
def test_what_cannot_work_ends_with_exit_code_2(override, said, tmp_path, capsys):
    run(tmp_path / "out", override, "decode=speculative", code=ExitCode.CONFIG)
    assert said in capsys.readouterr().err


def test_one_stream_for_all_rows_is_refused():
    strategy = Speculative(SpeculativeSettings())
    settings = EngineSettings(kv="unified", deterministic=False)
    with pytest.raises(ConfigError, match=r"needs runtime\.kv=per_sequence"):
        strategy.check(SamplingSettings(), settings, ModelSettings())


def test_a_dry_run_works(tmp_path, capsys):
    assert main(["job=quickstart", f"output_dir={tmp_path / 'out'}", *SMALL, "decode=speculative", "dry_run=true"]) == 0
    assert "completion" in capsys.readouterr().out
