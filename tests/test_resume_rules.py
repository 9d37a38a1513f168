"""What may change between two attempts of a run, and what is refused with the key and both its values."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from operators.settings.checks import usable_cores
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tests.operators.engine.rules import scheduled
from tests.pipeline.squares import files
from tests.sets import often_cases

pytestmark = pytest.mark.slow("composes and begins a run for each key")

ROWS = 30
MAY_CHANGE = [
    "runtime.slots=3",
    "runtime.n_batch=256 runtime.n_ubatch=256",
    "runtime.lookahead_rows=8",
    f"runtime.threads={usable_cores() + 1}",
    "runtime.priority=row",
    "runtime.stall_timeout_s=5",
    "runtime.row_timeout_s=100",
    "runtime.optimise.compaction=false",
    "store.sync=power",
    "store.enabled=false",
    "max_open_chunks=2",
    "max_error_rate=0.5",
    "model.probe=false",
    "other_bits=allow",
    "metrics_interval_s=0.2",
    "progress=json",
    "on_finish.timeout_s=5 on_finish.command=[echo]",
    "output.preview=2",
    "output.retries=1 output.card.license=mit output.storage_options={key:k-4711-x}",
]
MAY_NOT = [
    ("seed=1", "seed: 0 -> 1"),
    ("sampling.structured.regex=a+", 'sampling.structured.regex: null -> "a+"'),
    ("runtime.kv_type=f32", 'runtime.kv_type: "f16" -> "f32"'),
    ("model.adapters={one:a.gguf} data.adapter_column=prompt", 'data.adapter_column: (absent) -> "prompt"'),
    ("output=jsonl", 'output.format: "parquet" -> "jsonl"'),
    ("store.retry.finish_reason=[length]", 'store.retry.finish_reason: [] -> ["length"]'),
]
"""tests/operators/settings/test_keys.py has all keys of config groups that count."""


def write_prompts(path: Path) -> Path:
    path.write_text("".join(json.dumps({"prompt": f"prompt {i} " + "x" * (i % 7)}) + "\n" for i in range(ROWS)))
    return path


def run(prompts: Path, *settings: str, out: str = "out") -> int:
    fixed = ["job=generate", "model=fake", f"data.path={prompts}", f"output_dir={prompts.parent / out}"]
    return main([*fixed, "chunk_rows=10", "sampling.max_tokens=8", "progress=none", *settings])


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The prompts of a run that is finished, in `out` beside them."""
    prompts = write_prompts(tmp_path_factory.mktemp("finished") / "prompts.jsonl")
    assert run(prompts) == ExitCode.DONE
    return prompts


def test_all_of_it_may_change_at_once_and_does_not_change_a_byte(finished, capsys):
    all_at_once = [word for settings in MAY_CHANGE for word in settings.split()]
    assert run(finished, *all_at_once) == ExitCode.DONE
    assert "finished already" in capsys.readouterr().out
    with scheduled(shuffle=1, preempt_every=3):
        assert run(finished, *all_at_once, out="changed") == ExitCode.DONE
    assert files(finished.parent / "changed") == files(finished.parent / "out")


@pytest.mark.parametrize(
    ("settings", "says"), often_cases(MAY_NOT, "seed=1", MAY_NOT[3][0], "runtime.kv_type=f32", "output=jsonl")
)
def test_what_can_change_a_byte_is_refused_with_the_key_and_both_values(finished, settings, says, capsys):
    assert run(finished, *settings.split()) == ExitCode.CONFIG
    error = capsys.readouterr().err
    assert says in error
    assert "overwrite=true" in error


def test_the_layout_may_change_where_texts_need_not_be_the_same_to_the_bit(tmp_path, capsys):
    prompts = write_prompts(tmp_path / "prompts.jsonl")
    assert run(prompts, "runtime.deterministic=false") == ExitCode.DONE
    assert run(prompts, "runtime.deterministic=false", "runtime.kv=unified") == ExitCode.DONE
    assert "finished already" in capsys.readouterr().out
