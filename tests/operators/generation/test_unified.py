"""A job in the unified layout, whose KV cache is shorter than `runtime.max_sequence_tokens`."""

from __future__ import annotations

import json
from collections import Counter

import pyarrow.parquet as pq
import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tests.sets import often

UNIFIED = ("runtime.kv=unified", "runtime.deterministic=false", "runtime.n_ctx=256", "runtime.max_sequence_tokens=512")
JOB = ("job=generate", "model=tiny", "max_error_rate=1", "progress=none", "sampling.ignore_eos=true")


THREE = ("runtime.admission=optimistic", "sampling.n=3")


@pytest.mark.parametrize("settings", often([(), THREE], THREE), ids=["one", "three"])
def test_what_does_not_fit_is_a_reject_with_the_numbers_and_what_nearly_fits_is_cut(tmp_path, settings):
    prompts = ["word " * 450, "Say something.", "a " * 150, "Again:"]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    files = (f"data.path={tmp_path / 'in.jsonl'}", f"output_dir={tmp_path / 'out'}", "sampling.max_tokens=150")
    assert main([*JOB, *UNIFIED, *files, *settings]) == ExitCode.DONE
    each = 3 if settings else 1
    rows = pq.read_table(tmp_path / "out/data").to_pylist()
    assert Counter(row["row"] for row in rows) == {1: each, 2: each, 3: each}
    assert all(r["completion_token_count"] == min(150, 256 - r["prompt_token_count"]) for r in rows)
    assert 106 < max(r["prompt_token_count"] for r in rows) < 256  # one that is cut
    rejects = pq.read_table(tmp_path / "out/rejects").to_pylist()
    assert len(rejects) == each
    assert all("leaves no room for a completion: runtime.n_ctx is 256" in reject["reason"] for reject in rejects)
