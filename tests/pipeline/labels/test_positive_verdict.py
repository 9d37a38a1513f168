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
