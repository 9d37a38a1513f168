"""Which verdict `calibrate` tells one against the rest, and why it has no threshold where it has none."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.labels.calibration_files import save
from pipeline.publish.dataset_card import people_say
from pipeline.results.report.calibrated import keep_text
from tests.pipeline.labels.judged_runs import calibrated, figure, judged, labels


@pytest.mark.parametrize(
    ("verdicts", "said", "positive", "passes"),
    [
        (["No", "Yes"], ["Yes", "maybe"], "Yes", True),
        ([0.0, 1.0], ["1", "0"], "1.0", True),
        ([False, True], ["true", "false"], "true", True),
        (["no", "no"], ["no", "yes"], "yes", True),
        (["incorrect", "correct"], ["correct", "correct"], "correct", True),
        ([1, 2, 3, 4, 5], ["1", "2"], None, False),
        (["yes", "no", "unsure"], ["yes", "no"], None, False),
    ],
    ids=str,
)
def test_a_verdict_is_the_good_one_only_of_a_known_pair(tmp_path, verdicts, said, positive, passes):
    rows: list[dict[str, Any]] = [{"verdict": v, "verdict_probability": 0.9} for v in verdicts * 12]
    results = judged(tmp_path / "out", rows)
    judge = calibrated(results, labels(tmp_path / "l.jsonl", [{"row": i, "label": v} for i, v in enumerate(said)]))
    save(results, judge)
    assert (judge.figures.about.positive, judge.figures.about.passes) == (positive, passes)
    assert ("People would have passed" in people_say(results.directory, "r1", results.manifest)) is passes
    named = "no threshold: name the verdict to keep (--positive); there are"
    assert keep_text(judge.figures).startswith(named) is (positive is None)


def test_shares_say_whether_they_are_of_all_rows_or_of_those_with_a_verdict(tmp_path):
    rows = [{"verdict": v, "verdict_probability": None if v is None else 0.9} for v in ["yes", None, "no", None] * 10]
    results = judged(tmp_path / "out", rows)
    said = [{"row": i, "label": row["verdict"]} for i, row in enumerate(rows) if row["verdict"]]
    judge = calibrated(results, labels(tmp_path / "l.jsonl", said), precision=0.5)
    save(results, judge)
    assert figure(judge, "threshold_kept", "yes").estimate == 10 / 40
    assert figure(judge, "raw_rate", "yes").estimate == 10 / 20
    assert "20 of 40 rows have no verdict: all shares are of the 20 that have one" in judge.figures.about.notes[-1]
    assert "of the 20 rows with a verdict, by 20 labels" in people_say(results.directory, "r1", results.manifest)


def test_rows_without_a_probability_are_kept_by_no_threshold_and_the_rest_is_told(tmp_path):
    likely = [None if i % 5 == 0 else 0.9 for i in range(100)]
    rows = [{"verdict": "no" if i % 4 == 3 else "yes", "verdict_probability": p} for i, p in enumerate(likely)]
    results = judged(tmp_path / "out", rows)
    said = labels(tmp_path / "l.jsonl", [{"row": i, "label": rows[i]["verdict"]} for i in range(100)])
    judge = calibrated(results, said, precision=0.5)
    assert figure(judge, "threshold_kept", "yes").rows == 60
    assert sum(line.rows or 0 for line in judge.figures.of("accuracy_by_confidence")) == 80
    assert figure(judge, "corrected_rate", "yes").estimate == pytest.approx(0.75)
    assert "20 of 100 labelled rows have no verdict_probability" in judge.figures.about.notes[-1]


@pytest.mark.parametrize(
    ("verdicts", "likely", "people", "why"),
    [
        (
            ["yes"] * 7 + ["no"] * 3,
            0.9,
            "yes",
            "only 7 labelled rows have the verdict 'yes' and verdict_probability >=",
        ),
        (["no"] * 10, 0.9, "yes", "no verdict is 'yes', all are no"),
        (["yes"] * 10, 90, "yes", "column 'verdict_probability' has 90, and probabilities are 0 to 1: it is not used"),
        (["yes"] * 10, 0.9, "no", "no verdict_probability reaches a precision of 95% for 'yes' by these labels"),
        (["yes"] * 10, None, "yes", "no labelled row has the verdict 'yes' and a verdict_probability; label some"),
    ],
)
def test_why_there_is_no_threshold(tmp_path, verdicts, likely, people, why):
    rows = [{"verdict": v, "verdict_probability": likely} for v in verdicts]
    results = judged(tmp_path / "out", [*rows, {"verdict": verdicts[0], "verdict_probability": likely or 0.5}])
    said = labels(tmp_path / "l.jsonl", [{"row": i, "label": people} for i in range(10)])
    judge = calibrated(results, said)
    assert judge.figures.about.keep is None
    assert keep_text(judge.figures).startswith(f"no threshold: {why}")
    assert any(note.startswith("all verdicts are") for note in judge.figures.about.notes) is (len({*verdicts}) == 1)
