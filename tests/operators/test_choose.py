"""Choose, on the fake decoder: columns, the choice, rejects, independence of the batch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from operators.choose import Choose, _sums
from operators.images.columns import MOST_PIXELS, PROMPT_IMAGES, limited
from operators.score import Score
from operators.scoring.arguments import NORMALIZE
from operators.scoring.columns import chosen
from operators.scoring.likelihood import Likelihood
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ConfigError, SchemaError
from tests.operators.flow import Flow, Rows, chain
from tests.operators.test_generate import FAKE

ASKED = pa.schema([("prompt_text", pa.string()), ("options", pa.list_(pa.string()))])
OPTIONS = ["yes", "no", "perhaps", "x", "yet", "no idea at all"]


def chooser(options: Any = "options", runtime: dict[str, Any] | None = None, **kwargs: Any) -> Choose:
    settings = {"slots": 4, "max_sequence_tokens": 256} | (runtime or {})
    return Choose(FAKE, EngineSettings(**settings), options=options, **kwargs)


def questions(count: int) -> list[dict[str, Any]]:
    random = np.random.default_rng(count)
    return [
        {
            "prompt_text": f"Q{i}" + "?" * int(random.integers(0, 180)),
            "options": random.permutation(OPTIONS)[: random.integers(1, 6)].tolist(),
        }
        for i in range(count)
    ]


def flow(tmp_path, rows, op, schema=ASKED, batch=5) -> Flow:
    return Flow(tmp_path, chain(Rows(rows, schema, batch=batch), choose=op))


def test_an_option_has_the_log_probability_that_score_gives_it(tmp_path):
    rows = questions(40)
    out = flow(tmp_path / "a", rows, chooser()).run()
    each = [{"before": row["prompt_text"], "text": option} for row in rows for option in row["options"]]
    schema = pa.schema([("before", pa.string()), ("text", pa.string())])
    score = Score(FAKE, EngineSettings(slots=4, max_sequence_tokens=256), given_column="before")
    sums = iter(row["logprob_sum"] for row in Flow(tmp_path / "b", chain(Rows(each, schema), op=score)).run())
    for row in out:
        logprobs = [next(sums) for _ in row["options"]]
        assert row["choice_logprobs"] == logprobs
        assert row["choice_index"] == logprobs.index(max(logprobs))
        assert row["choice"] == row["options"][row["choice_index"]]
        shares = np.exp(np.array(logprobs) - max(logprobs))
        assert row["choice_probability"] == pytest.approx(1 / shares.sum())
    assert len({row["choice_index"] for row in out}) > 1


@pytest.mark.parametrize("normalize", NORMALIZE)
def test_what_is_compared_is_normalised(tmp_path, normalize):
    """A byte is a token of the fake model, so an option of two-byte characters tells the two apart from characters."""
    rows = [{**row, "options": [*row["options"], "naïveté"]} for row in questions(40)]
    for row in flow(tmp_path, rows, chooser(normalize=normalize)).run():
        sizes = [1 if normalize == "none" else len(option.encode()) for option in row["options"]]
        compared = np.array(row["choice_logprobs"]) / sizes
        assert row["choice_index"] == int(compared.argmax())
        assert row["choice_probability"] == pytest.approx(1 / np.exp(compared - compared.max()).sum())


def test_of_equally_likely_options_the_first_is_chosen(tmp_path):
    rows = [{"prompt_text": "Q", "options": ["no", "yes", "yes", "no"]}, {"prompt_text": "Q", "options": ["a"]}]
    first, only = flow(tmp_path, rows, chooser()).run()
    assert first["choice_index"] in (0, 1)
    assert first["choice_probability"] < 0.5
    assert (only["choice"], only["choice_index"], only["choice_probability"]) == ("a", 0, 1.0)


def test_fixed_options_and_a_prefix(tmp_path):
    rows = [{"prompt_ids": [1, 2, 3]}, {"prompt_ids": [4]}]
    op = chooser(["yes", "no"], question_column="prompt_ids", as_="label")
    out = flow(tmp_path, rows, op, pa.schema([("prompt_ids", pa.list_(pa.int32()))])).run()
    assert [len(row["label_choice_logprobs"]) for row in out] == [2, 2]
    assert {row["label_choice"] for row in out} <= {"yes", "no"}


def test_what_cannot_be_answered_is_rejected_with_the_reason(tmp_path):
    fine = ["a", "b"]
    rows: list[dict[str, Any]] = [
        {"prompt_text": None, "options": fine},
        {"prompt_text": "", "options": fine},
        {"prompt_text": "Q", "options": None},
        {"prompt_text": "Q", "options": []},
        {"prompt_text": "Q", "options": ["a", None]},
        {"prompt_text": "Q", "options": ["a", ""]},
        {"prompt_text": "x" * 255, "options": ["a", "bc"]},
        {"prompt_text": "x" * 255, "options": fine},
    ]
    run = flow(tmp_path, rows, chooser())
    assert [row["row"] for row in run.run()] == [7]
    told = " | ".join(reason for _, _, reason in run.tally.by_reason)
    assert run.tally.errors == 7
    for part in ("is null", "is empty", "an option that is null or empty", "and runtime.max_sequence_tokens is"):
        assert part in told


def test_an_impossible_option_is_not_chosen_and_not_all_can_be_impossible():
    impossible, possible, nan = (Likelihood(np.array([p], np.float32)) for p in (-math.inf, -9.0, math.nan))
    sums = _sums([impossible, possible])
    assert sums is not None
    assert chosen(["a", "b"], sums[0].tolist(), [1, 1], "none") == ("b", 1, [-math.inf, -9.0], 1.0)
    assert _sums([impossible, impossible]) is None
    assert _sums([possible, nan]) is None


def test_arguments_and_columns_that_cannot_work(tmp_path):
    for options, what in [
        (["a"], "two or more"),
        (["a", "a"], "none twice"),
        (["a", ""], "not empty"),
        ([True, False], "only in quotes"),
    ]:
        with pytest.raises(ConfigError, match=what):
            chooser(options)
    with pytest.raises(ConfigError, match="one of none, bytes, tokens"):
        chooser(normalize="length")
    with pytest.raises(SchemaError, match="needs a column 'others'"):
        flow(tmp_path, [], chooser("others"))
    with pytest.raises(SchemaError, match=r"'prompt_text' has type string; it must be list"):
        flow(tmp_path, [], chooser("prompt_text"))
    op = chooser(["a", "b"], question_column="ids", joint=True)
    with pytest.raises(SchemaError, match="'ids' has type list"):
        flow(tmp_path, [], op, pa.schema([("ids", pa.list_(pa.int32()))]))


def test_an_option_that_begins_another_one_is_never_less_likely_and_said(tmp_path, caplog):
    rows = [{"prompt_text": row["prompt_text"], "options": None} for row in questions(20)]
    out = flow(tmp_path, rows, chooser(["no", "ab", "abc"])).run()
    assert "abc" not in {row["choice"] for row in out}
    assert all(row["choice_logprobs"][2] <= row["choice_logprobs"][1] for row in out)
    said = [record.message for record in caplog.records if "never the likelier" in record.message]
    assert [line.partition(", so")[0] for line in said] == ["choose: the option 'abc' begins with the tokens of 'ab'"]


def test_a_question_that_ends_within_reasoning_is_rejected(tmp_path):
    rows = [{"prompt_text": f"Q{end}", "options": ["a", "b"]} for end in ("", "<think>\n", "<think>\n\n</think>\n")]
    op = Choose(
        replace(FAKE, reasoning_tags=["<think>", "</think>"]),
        EngineSettings(slots=4, max_sequence_tokens=256),
        options="options",
    )
    run = flow(tmp_path, rows, op)
    assert [row["row"] for row in run.run()] == [0, 2]
    ((_, _, reason),) = run.tally.by_reason
    assert "ends within the model's reasoning" in reason


def test_prompts_with_images_are_refused_by_what_reads_texts_alone(tmp_path):
    """Where columns have them before the run, else row by row; also token ids, of which those of images are none."""
    ids = pa.field("prompt_ids", pa.list_(pa.int32()))
    plain: dict[str, Any] = {"prompt_text": "Q", "prompt_ids": [1], "options": ["a"]}
    rows = [plain, {**plain, "prompt_images": [{}]}]
    of_parts = limited(PROMPT_IMAGES, MOST_PIXELS, of_columns=False)
    for column in ("prompt_text", "prompt_ids"):
        op = chooser(question_column=column)
        out = flow(tmp_path / column, rows, op, pa.schema([*ASKED, ids, of_parts]))
        assert [row["row"] for row in out.run()] == [0]
        assert [reason for _, _, reason in out.tally.by_reason] == ["the prompt has images, which Choose does not read"]
        with pytest.raises(SchemaError, match=r"Choose reads texts alone, .* write images: \[\] where they are made"):
            op.plan(pa.schema([*ASKED, ids, limited(PROMPT_IMAGES, MOST_PIXELS, of_columns=True)]))
