"""What a judge goes by beside the answer: order, chance and length, each against rows that were made with it."""

from __future__ import annotations

import pytest

from pipeline.api.errors import ExitCode
from pipeline.api.intervals import wilson
from pipeline.cli.main import main
from pipeline.labels.calibration import bias_of
from pipeline.labels.calibration_options import CalibrationOptions
from pipeline.run_dir.calibration_file import CalibrationLine
from tests.pipeline.labels.judged_runs import Row, calibrated, judged, labels

ORDERS = [("A", "B")] * 5 + [("B", "A")] * 3 + [("A", "A")] * 5 + [("B", "B")] * 2


def told(directory, rows: list[Row], **more) -> dict[str, CalibrationLine]:
    bias, _ = bias_of(judged(directory, rows), CalibrationOptions("verdict", **more))
    return {line.figure: line for line in bias.lines()}


@pytest.mark.parametrize(
    ("positions", "agree", "first"), [(None, 8, 5), (["B", "A"], 8, 2), ([], 7, None)], ids=["guessed", "given", "none"]
)
def test_a_judge_that_goes_by_the_place_is_told_from_one_that_goes_by_the_answer(tmp_path, positions, agree, first):
    rows: list[Row] = [{"verdict": a, "other": b} for a, b in ORDERS]
    found = told(tmp_path / "out", [*rows, {"verdict": None, "other": "A"}], swapped="other", positions=positions)
    assert found["order_agreement"][3:] == pytest.approx((*wilson(agree, 15), 15))
    if first is None:
        assert "order_favours_first" not in found
    else:
        assert found["order_favours_first"][3:] == pytest.approx((*wilson(first, 7), 7))


def test_names_of_answers_agree_where_they_are_equal_and_that_this_is_guessed_is_said(tmp_path):
    rows: list[Row] = [{"verdict": "yes", "other": other} for other in ("yes", "yes", "no")]
    results = judged(tmp_path / "out", rows)
    bias, _ = bias_of(results, CalibrationOptions("verdict", swapped="other"))
    assert bias.lines()[0].estimate == pytest.approx(2 / 3)
    assert "--positions FIRST,SECOND" in bias.notes[0]


def test_samples_of_one_prompt_agree_as_often_as_their_pairs_do(tmp_path):
    three: list[Row] = [{"row": 0, "lineage": [i], "verdict": v} for i, v in enumerate(["yes", "yes", "no"])]
    two: list[Row] = [{"row": 1, "lineage": [i], "verdict": "no"} for i in range(2)]
    alone: list[Row] = [{"row": 2, "lineage": [0], "verdict": "no"}]
    found = told(tmp_path / "out", [*three, *two, *alone])["self_agreement"]
    assert found.estimate == pytest.approx((1 / 3 + 1) / 2)
    assert found.rows == 2


def test_votes_of_a_majority_are_self_agreement(tmp_path):
    votes = [(3, 5), (5, 5), (1, 1)]
    found = told(tmp_path / "out", [{"verdict": "x", "verdict_votes": a, "verdict_samples": b} for a, b in votes])
    assert found["self_agreement"].estimate == pytest.approx(0.8)
    assert found["self_agreement"].rows == 2


def test_length_counts_in_verdicts_alone_where_it_is_the_judges(tmp_path):
    rows: list[Row] = [{"verdict": "yes" if i >= 20 else "no", "answer": "x" * (i + 1)} for i in range(30)]
    results = judged(tmp_path / "out", rows)
    judge = calibrated(
        results, labels(tmp_path / "l.jsonl", [{"row": i, "label": "yes"} for i in range(30)]), text="answer"
    )
    shares = {
        figure: [line.estimate for line in judge.figures.of(figure)]
        for figure in ("length_verdicts", "length_labelled_verdicts", "length_labels")
    }
    assert shares["length_verdicts"] == shares["length_labelled_verdicts"] == [0, 0, 1]
    assert shares["length_labels"] == [1, 1, 1]
    assert [line.rows for line in judge.figures.of("length_labels")] == [10, 10, 10]


def test_without_labels_it_is_told_and_nothing_is_written(tmp_path, capsys):
    judged(tmp_path / "out", [{"verdict": a, "other": b} for a, b in ORDERS])
    before = sorted(tmp_path.rglob("*"))
    assert main(["calibrate", str(tmp_path / "out"), "--verdict", "verdict", "--swapped", "other"]) == ExitCode.DONE
    assert sorted(tmp_path.rglob("*")) == before
    printed = capsys.readouterr().out
    assert "without labels: nothing is written" in printed
    assert "both orders agree" in printed
