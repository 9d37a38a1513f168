"""Labels of several pages go together where their strata are the same, else are refused: a row would count twice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from pipeline.api.errors import ConfigError
from pipeline.labels.sample import PLACE, By, sample_of
from pipeline.results.reader import Results
from tests.pipeline.labels.judged_runs import calibrated, figure, judged, labels

ROWS = 400
SURE = np.random.default_rng(2).uniform(0.5, 1, ROWS).round(4)
VERDICTS = [("yes", "no")[i % 3 == 0] for i in range(ROWS)]
BANDS, PLAIN = By("verdict", ("verdict",), "verdict_probability"), By("verdict", ("verdict",))


def run(tmp_path, rows: int = ROWS, at_least: float = 0.0, name: str = "r1") -> Results:
    """A run of the first rows, of which those stay that are sure enough."""
    table = [
        {"verdict": verdict, "verdict_probability": sure, "id": f"a{i}"}
        for i, (verdict, sure) in enumerate(zip(VERDICTS[:rows], SURE.tolist(), strict=False))
    ]
    return judged(tmp_path / "out", [row for row in table if row["verdict_probability"] >= at_least], run=name)


def page(results: Results, by: By, rows: int, seed: int, reviewer: str) -> list[dict[str, Any]]:
    """Labels of a page of `review`: people find all verdicts right that are yes."""
    frame = results.rows("data", PLACE)
    assert frame is not None
    sample = sample_of(frame, by, rows, seed)
    of = {"run": results.run_id, "reviewer": reviewer, "sample": sample.name(results.run_id, "data"), "label": "yes"}
    strata = [{"stratum": s.name(blind=seed % 2 == 0), "stratum_rows": len(s.places)} for s in sample.strata]
    drawn = zip(sample.places.tolist(), sample.stratum.tolist(), strict=True)
    return [{**of, "row": place, "id": f"a{place}", **strata[h]} for place, h in drawn]


def test_pages_of_other_seeds_go_together_and_each_row_stands_for_its_stratum_once(tmp_path):
    results = run(tmp_path)
    said = page(results, BANDS, 60, 0, "ann") + page(results, BANDS, 60, 1, "bob")
    by_hand = {"id": said[0]["id"], "reviewer": "cy", "label": "yes"}  # of the stratum that others say
    judge = calibrated(results, labels(tmp_path / "l.jsonl", [*said, by_hand]))
    assert judge.figures.about.notes == []
    assert judge.figures.about.reviewers == ["ann", "bob", "cy"]
    assert figure(judge, "precision", "yes").estimate == 1
    assert figure(judge, "agreement").estimate == pytest.approx(VERDICTS.count("yes") / ROWS)


@pytest.mark.parametrize("has_sample", [True, False], ids=["pages", "files that name no sample"])
@pytest.mark.parametrize(
    "other", [(PLAIN, 60, ROWS), (BANDS, 8, ROWS), (BANDS, 60, ROWS - 50)], ids=["by", "rows", "grown"]
)
def test_labels_of_which_a_row_would_count_twice_are_refused(tmp_path, other, has_sample):
    by, rows, of = other
    then = page(run(tmp_path, of), by, rows, 1, "bob")
    results = run(tmp_path)
    said = page(results, BANDS, 60, 0, "ann") + [one for one in then if VERDICTS[one["row"]] == "yes"]
    if not has_sample:
        said = [{key: value for key, value in one.items() if key != "sample"} for one in said]
    with pytest.raises(ConfigError, match=r"l.jsonl line \d+ .*(count twice|has .* rows by its labels)"):
        calibrated(results, labels(tmp_path / "l.jsonl", said))


def test_labels_stand_for_what_another_run_has_kept_of_their_strata(tmp_path):
    said = labels(tmp_path / "l.jsonl", page(run(tmp_path), BANDS, 100, 0, "ann"))
    kept = run(tmp_path, at_least=0.7, name="r2")
    judge = calibrated(kept, said)
    share = np.mean([verdict == "yes" for verdict, sure in zip(VERDICTS, SURE, strict=True) if sure >= 0.7])
    assert figure(judge, "agreement").estimate == pytest.approx(share, abs=0.01)  # a band of one row has lost its label
    assert "are a part of those that were sampled" in " ".join(judge.figures.about.notes)
    turned = judged(tmp_path / "out", [{"verdict": "yes", "verdict_probability": 0.9}] * 120, run="r3")
    with pytest.raises(ConfigError, match=r"the strata of the labels have 3.. rows .* of 120"):
        calibrated(turned, said)
