"""What is found in a store is what would have been generated, and only what has to be is generated again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from operators.engine.backend.fake import FakeModel
from operators.engine.sequence import FinishReason
from operators.generate import Generate
from operators.generation.store_lookup import HITS
from operators.generation.wiring import completion_keys
from operators.settings import FINISH_REASONS, DecodeSettings, RetrySettings, StoreSettings
from operators.settings.long_rows import RopeSettings
from operators.settings.runtime import EngineSettings, OptimiseSettings
from operators.settings.speculative import SpeculativeSettings
from pipeline.api.errors import ConfigError
from tests.operators.test_generate import flow, generate, prompts
from tests.sets import often

Counts = dict[str, float]
WITH_IDS = partial(generate, completion_ids=True)


def run(
    directory: Path,
    store: StoreSettings,
    sampling: dict[str, Any],
    run_id: str,
    rows: int = 40,
    make: Callable[..., Generate] = WITH_IDS,
) -> tuple[list[dict[str, Any]], Counts]:
    """The rows, and the counts of the node that are not 0."""
    made = flow(directory, prompts(rows), make(sampling, store=store))
    made.context.run_id = run_id
    out = made.run()
    totals = made.context.counted()
    hits = sum(totals[f"generate/{name}"] for name in HITS) if store.enabled else 0
    assert totals.get("generate/store_hits", 0) == hits
    own = {k.removeprefix("generate/"): v for k, v in totals.items() if k.startswith("generate/") and v}
    return out, {k: v for k, v in own.items() if k.startswith(("found", "missed"))}


@pytest.fixture
def store(tmp_path) -> StoreSettings:
    return StoreSettings(path=str(tmp_path / "store.sqlite"))


def cut(rows: list[dict[str, Any]]) -> int:
    return sum(row["finish_reason"] == "length" for row in rows)


SAMPLED = {"temperature": 1.0, "max_tokens": 12, "stop": ["e "], "logprobs": 1}


@pytest.mark.parametrize("sampling", often([{"max_tokens": 12}, SAMPLED], SAMPLED), ids=["greedy", "sampled"])
@pytest.mark.parametrize("max_tokens", often([1, 5, 11, 12, 13, 20, 40], 5, 13))
def test_under_another_max_tokens_the_rows_are_as_if_there_were_no_store(tmp_path, store, sampling, max_tokens):
    first, _ = run(tmp_path / "a", store, sampling, "a")
    assert 0 < cut(first) < len(first)
    other = sampling | {"max_tokens": max_tokens}
    again, counts = run(tmp_path / "b", store, other, "b")
    assert again == run(tmp_path / "c", StoreSettings(enabled=False), other, "c")[0]
    if max_tokens <= 12:
        assert counts == {"found_earlier": 40}
    else:
        assert counts == {"found_earlier": 40 - cut(first), "missed_cut": cut(first)}


def test_only_new_rows_of_a_grown_input_are_generated(tmp_path, store, either):
    first, counts = run(tmp_path / "a", store, {}, "a", rows=25, make=either)
    assert counts == {"missed_new": 25}  # not new settings: there were none
    grown, counts = run(tmp_path / "b", store, {}, "b", rows=40, make=either)
    assert grown[:25] == first
    assert counts == {"found_earlier": 25, "missed_new": 15}


@pytest.mark.parametrize("what", ["kernels", "device"])
def test_nothing_is_found_that_something_else_computed(tmp_path, store, monkeypatch, what):
    """test_store.py has all that is in a key."""
    run(tmp_path / "a", store, {}, "a")
    with monkeypatch.context() as patched:
        patched.setattr(FakeModel, what, "another")
        assert run(tmp_path / "b", store, {}, "b")[1] == {"missed_settings": 40}
        assert run(tmp_path / "c", store, {}, "c")[1] == {"found_earlier": 40}
    assert run(tmp_path / "d", store, {}, "d")[1] == {"found_earlier": 40}


OTHERS: dict[str, Any] = {
    **{"slots": 3, "n_batch": 1024, "n_ubatch": 256, "lookahead_rows": 8, "snapshot_mb": 1, "image_mb": 1},
    **{"threads": 1},
    **{"priority": "row", "memory_limit": "8GiB", "stall_timeout_s": 5.0, "row_timeout_s": 5.0},
    **{"optimise": OptimiseSettings(compaction=False), "max_sequence_tokens": 99, "kv_type": "f32"},
    **{"flash_attention": False, "deterministic": False, "kernels": "llama.cpp"},
    **{"window_cache": "small", "rope": RopeSettings("yarn", 4.0)},
    **{"kv_offload": False, "op_offload": False, "device_sampling": True},
}


@pytest.mark.parametrize("doubt", [None, "it runs on a GPU"])
def test_a_key_has_the_settings_that_can_change_a_bit_and_no_others(monkeypatch, doubt):
    """Those of the fingerprint, and threads where bits are not proven. The rest goes with deterministic=false."""
    monkeypatch.setattr(FakeModel, "doubt", lambda self, settings: doubt)

    def key(**settings: Any) -> bytes:
        return completion_keys(FakeModel(), DecodeSettings(), EngineSettings(**settings)).settings(b"")

    counts = {f.name for f in fields(EngineSettings) if f.metadata.get("fingerprint", True) in (True, "given")}
    assert {f.name for f in fields(EngineSettings)} - OTHERS.keys() == {"kv", "n_ctx", "admission"}
    found = {name for name, value in OTHERS.items() if key(**{"threads": 2, name: value}) != key(threads=2)}
    assert found == (counts if doubt is None else counts | {"threads"})


@pytest.mark.parametrize("doubt", [None, "it runs on a GPU"])
def test_how_drafts_are_made_is_in_a_key_only_where_it_can_change_a_bit(monkeypatch, doubt):
    monkeypatch.setattr(FakeModel, "doubt", lambda self, settings: doubt)
    ways = [
        SpeculativeSettings(draft_tokens=3),
        SpeculativeSettings(adaptive=False),
        SpeculativeSettings(),
        DecodeSettings(),
    ]
    keys = {completion_keys(FakeModel(), way, EngineSettings()).settings(b"") for way in ways}
    assert len(keys) == (1 if doubt is None else 4)


def test_the_rows_of_an_earlier_attempt_are_told_from_those_of_other_runs(tmp_path, store, either):
    run(tmp_path / "a", store, {}, "a", rows=10, make=either)
    run(tmp_path / "b", store, {}, "b", rows=15, make=either)
    counts = run(tmp_path / "b", store, {}, "b", rows=20, make=either)[1]
    assert counts == {"found_earlier": 10, "found_resumed": 5, "missed_new": 5}


def test_a_retry_generates_the_rows_with_that_reason_and_no_others_once_a_run(tmp_path, store, either):
    first, _ = run(tmp_path / "a", store, {}, "a", make=either)
    reason = first[0]["finish_reason"]
    count = sum(row["finish_reason"] == reason for row in first)
    kept = {"found_earlier": 40 - count} if count < 40 else {}  # a server's all end alike here
    retry = StoreSettings(path=store.path, retry=RetrySettings([reason]))
    again, counts = run(tmp_path / "b", retry, {}, "b", make=either)
    assert again == first
    assert counts == kept | {"missed_retry": count}
    _, counts = run(tmp_path / "b", retry, {}, "b", make=either)
    assert counts == kept | {"found_resumed": count}


def test_a_reason_that_there_is_not_is_refused():
    assert tuple(FinishReason) == FINISH_REASONS
    with pytest.raises(ConfigError, match=r"store\.retry\.finish_reason=\['lenght'\].*stop, stop_string, length"):
        RetrySettings(["lenght"])


def test_a_first_run_has_no_new_settings(tmp_path, store, caplog):
    """There were none before: of five rows that are the same, found one after the other, four are hits of its own."""
    with caplog.at_level("INFO"):
        run(tmp_path / "a", store, {}, "a", rows=10)
        run(tmp_path / "a", store, {}, "a", rows=12)
        run(tmp_path / "b", store, {"repetition_penalty": 1.2}, "b", rows=12)
        run(tmp_path / "c", store, {}, "after overwrite=true", rows=12)
    assert "10 hits (10 of this run, 0 of earlier runs), 2 misses (2 new)" in caplog.text
    assert "12 hits (0 of this run, 12 of earlier runs), 0 misses" in caplog.text
    assert "no entry with these settings" not in caplog.text
