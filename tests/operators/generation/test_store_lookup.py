"""What is found in a store is what would have been generated, and only what has to be is generated again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from operators.engine.sequence import FinishReason
from operators.settings import FINISH_REASONS, RetrySettings, StoreSettings
from pipeline.api.errors import ConfigError
from tests.operators.test_generate import flow, generate, prompts
from tests.sets import often

Counts = dict[str, float]


def run(
    directory: Path, store: StoreSettings, sampling: dict[str, Any], run_id: str, rows: int = 40
) -> tuple[list[dict[str, Any]], Counts]:
    """The rows, and the counts of the node that are not 0."""
    made = flow(directory, prompts(rows), generate(sampling, store=store, completion_ids=True))
    made.context.run_id = run_id
    out = made.run()
    totals = {k: v for values in made.context.totals for k, v in values().items()}
    own = {k.removeprefix("generate/"): v for k, v in totals.items() if k.startswith("generate/") and v}
    return out, {k: v for k, v in own.items() if k.startswith(("found", "missed"))}


@pytest.fixture
def store(tmp_path) -> StoreSettings:
    return StoreSettings(path=str(tmp_path / "store.sqlite"))


def cut(rows: list[dict[str, Any]]) -> int:
    return sum(row["finish_reason"] == "length" for row in rows)


SAMPLED = {"temperature": 1.0, "max_tokens": 12, "stop": ["e "], "logprobs": 1}


@pytest.mark.parametrize("sampling", [{"max_tokens": 12}, SAMPLED], ids=["greedy", "sampled"])
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


def test_only_new_rows_of_a_grown_input_are_generated(tmp_path, store):
    first, counts = run(tmp_path / "a", store, {}, "a", rows=25)
    assert counts == {"missed_new": 25}  # not new settings: there were none
    grown, counts = run(tmp_path / "b", store, {}, "b", rows=40)
    assert grown[:25] == first
    assert counts == {"found_earlier": 25, "missed_new": 15}


def test_a_changed_sampling_key_generates_all_and_says_why(tmp_path, store):
    run(tmp_path / "a", store, {}, "a")
    _, counts = run(tmp_path / "b", store, {"repetition_penalty": 1.2}, "b")
    assert counts == {"missed_settings": 40}


def test_the_rows_of_an_earlier_attempt_are_told_from_those_of_other_runs(tmp_path, store):
    run(tmp_path / "a", store, {}, "a", rows=10)
    run(tmp_path / "b", store, {}, "b", rows=15)
    assert run(tmp_path / "b", store, {}, "b", rows=20)[1] == {"found_earlier": 10, "found_resumed": 5, "missed_new": 5}


def test_a_retry_generates_the_rows_with_that_reason_and_no_others_once_a_run(tmp_path, store):
    first, _ = run(tmp_path / "a", store, SAMPLED, "a")
    retry = StoreSettings(path=store.path, retry=RetrySettings(["length"]))
    again, counts = run(tmp_path / "b", retry, SAMPLED, "b")
    assert again == first
    assert counts == {"found_earlier": 40 - cut(first), "missed_retry": cut(first)}
    _, counts = run(tmp_path / "b", retry, SAMPLED, "b")
    assert counts == {"found_earlier": 40 - cut(first), "found_resumed": cut(first)}


def test_the_log_says_what_was_reused(tmp_path, store, caplog):
    run(tmp_path / "a", store, {}, "a", rows=10)
    assert "completion store" not in caplog.text
    with caplog.at_level("INFO"):
        run(tmp_path / "b", store, {}, "b", rows=12)
    assert "completion store: 10 hits (0 of this run, 10 of earlier runs), 2 misses (2 new)" in caplog.text
    assert "cut too early" not in caplog.text  # nothing that there was none of is counted


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
