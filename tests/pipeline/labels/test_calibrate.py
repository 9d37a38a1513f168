"""`calibrate`: every label is accounted for, figures are those of the run's rows, thresholds keep what they say."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml

from pipeline.api.errors import ConfigError, ExitCode
from pipeline.api.intervals import wilson
from pipeline.cli.main import main
from pipeline.labels.sample import PLACE, By, sample_of
from pipeline.python.result import load
from pipeline.results.report.calibrated import keep_text
from pipeline.results.report.page import page
from pipeline.run_dir.calibration_file import read_calibration
from tests.pipeline.labels.judged_runs import calibrated, figure, judged, labels

YES_NO = ["no", "yes"]


def rows_of(verdicts: list[Any], **columns: list[Any]) -> list[dict[str, Any]]:
    return [{"verdict": v, **{name: c[i] for name, c in columns.items()}} for i, v in enumerate(verdicts)]


def test_every_label_that_was_given_is_accounted_for(tmp_path):
    results = judged(tmp_path / "out", rows_of(["yes", "no", "yes", "no", None, "yes"]))
    said: list[dict[str, Any]] = [
        *({"row": 0, "reviewer": "ann", "label": "no"}, {"row": 0, "reviewer": "ann", "label": "yes"}),
        *({"row": 1, "reviewer": "ann", "label": "yes"}, {"row": 1, "reviewer": "bob", "label": "no"}),
        *({"row": 2, "reviewer": "ann", "label": None}, {"id": "a3", "reviewer": "ann", "label": "no"}),
        *({"row": 4, "reviewer": "ann", "label": "no"}, {"row": 99, "reviewer": "ann", "label": "no"}),
        *({"row": 5, "folder": "data/other", "reviewer": "ann", "label": "no"},),
        *(
            {"row": 5, "reviewer": name, "label": label}
            for name, label in zip("abc", ("yes", "yes", "no"), strict=True)
        ),
    ]
    judge = calibrated(results, labels(tmp_path / "l.jsonl", said))
    counts = {line.value: line.rows for line in judge.figures.of("labels") if line.rows}
    assert counts.pop("given") == len(said) == sum(counts.values())
    assert counts == {
        "used": 5,
        "skipped": 1,
        "of rows on which reviewers tie": 2,
        "replaced by a later label of the same reviewer": 1,
        "of rows without a verdict": 1,
        "of rows that the run does not have": 1,
        "of another folder": 1,
    }
    confusion = {(line.value, line.group): line.rows for line in judge.figures.of("confusion") if line.rows}
    assert confusion == {("yes", "yes"): 2, ("no", "no"): 1}  # the majority of row 5 says yes
    assert [row.row for row in judge.joined.used] == [0, 3, 5]


def test_without_strata_figures_are_those_of_a_plain_sample(tmp_path):
    draw = np.random.default_rng(3)
    verdicts, people = ([YES_NO[i] for i in draw.integers(0, 2, 60)] for _ in range(2))
    results = judged(tmp_path / "out", rows_of(verdicts))
    judge = calibrated(results, labels(tmp_path / "l.jsonl", [{"row": i, "label": people[i]} for i in range(40)]))
    pairs = Counter(zip(people[:40], verdicts[:40], strict=True))
    right = pairs["yes", "yes"] + pairs["no", "no"]
    assert figure(judge, "agreement")[:3] == pytest.approx(wilson(right, 40))
    of_yes = pairs["yes", "yes"] + pairs["yes", "no"]
    assert figure(judge, "true_positive_rate", "yes").estimate == pytest.approx(pairs["yes", "yes"] / of_yes)
    judged_yes = pairs["yes", "yes"] + pairs["no", "yes"]
    assert figure(judge, "precision", "yes").estimate == pytest.approx(pairs["yes", "yes"] / judged_yes)
    of_no = pairs["no", "yes"] + pairs["no", "no"]
    assert figure(judge, "true_negative_rate", "yes").estimate == pytest.approx(pairs["no", "no"] / of_no)
    for line in judge.figures.of("confusion"):
        assert line.rows == pairs[line.value, line.group]
        assert line.estimate == pytest.approx(pairs[line.value, line.group] / 40)
    assert any("simple random sample of 60 rows" in note for note in judge.figures.about.notes)
    assert figure(judge, "raw_rate", "yes").estimate == verdicts.count("yes") / 60


def sampled_run(tmp_path, rows: int = 4000) -> tuple[Any, float, list[dict[str, Any]]]:
    """A judge that passes too much, the true share, and labels of a sample of `review` without mistakes."""
    draw = np.random.default_rng(7)
    good = draw.random(rows) < 0.3
    sure = np.where(good, draw.beta(6, 2, rows), draw.beta(3, 3, rows))
    verdicts = np.where(sure > 0.5, "yes", "no")
    likely = np.where(sure > 0.5, sure, 1 - sure)
    table = rows_of(verdicts.tolist(), verdict_probability=likely.tolist())
    results = judged(tmp_path / "out", table)
    frame = results.rows("data", PLACE)
    assert frame is not None
    sample = sample_of(frame, By("verdict", ("verdict",), "verdict_probability"), 200, 1)
    said = [
        {
            "run": "r1",
            "row": place,
            "label": YES_NO[int(good[place])],
            "stratum": sample.strata[h].name(blind=True),
            "stratum_rows": len(sample.strata[h].places),
        }
        for place, h in zip(sample.places.tolist(), sample.stratum.tolist(), strict=True)
    ]
    return results, float(good.mean()), said


def test_the_corrected_rate_of_a_stratified_sample_is_that_of_the_run_where_the_raw_one_is_not(tmp_path):
    results, truth, said = sampled_run(tmp_path)
    judge = calibrated(results, labels(tmp_path / "l.jsonl", said))
    corrected, raw = figure(judge, "corrected_rate", "yes"), figure(judge, "raw_rate", "yes").estimate
    assert corrected.low < truth < corrected.high < raw
    assert not judge.figures.about.notes  # the strata are found again in the run
    assert figure(judge, "worth_labels", "yes").estimate > 220  # the strata and the scores are worth labels
    assert sum(line.estimate or 0 for line in judge.figures.of("confusion")) == pytest.approx(1)
    verdict_yes = sum(line.estimate or 0 for line in judge.figures.of("confusion") if line.group == "yes")
    assert verdict_yes == pytest.approx(raw)  # the labels of a stratum stand for all its rows


def test_rows_that_are_skipped_thin_their_stratum_and_that_is_said(tmp_path):
    results, truth, said = sampled_run(tmp_path)
    first = said[0]["stratum"]
    thin = [{**one, "label": None} if one["stratum"] == first or i % 5 == 0 else one for i, one in enumerate(said)]
    judge = calibrated(results, labels(tmp_path / "l.jsonl", thin))
    assert sum(line.estimate or 0 for line in judge.figures.of("confusion")) == pytest.approx(1)
    notes = " ".join(judge.figures.about.notes)
    assert "were skipped or tie" in notes
    assert "stand for its" in notes  # of the stratum without a label
    assert figure(judge, "corrected_rate", "yes").low < truth < figure(judge, "corrected_rate", "yes").high


def test_a_run_that_has_grown_since_its_rows_were_sampled_is_told_as_it_was_then(tmp_path):
    results, _, said = sampled_run(tmp_path, 400)
    file = labels(tmp_path / "l.jsonl", said)
    then = figure(calibrated(results, file), "precision", "yes")
    rows = pl.read_parquet(tmp_path / "out/data/*.parquet").drop("row", "id").to_dicts()
    judge = calibrated(judged(tmp_path / "out", [*rows, *rows[:80]]), file)
    assert "the run has changed since its rows were sampled" in judge.figures.about.notes[0]
    assert figure(judge, "precision", "yes") == then


@pytest.mark.parametrize(("positive", "negative"), [("yes", "no"), ("it's", "x"), (True, False), (1, 0)], ids=str)
def test_the_keep_line_keeps_the_rows_whose_precision_it_says(tmp_path, positive, negative):
    draw = np.random.default_rng(5)
    likely = np.round(draw.uniform(0.5, 1, 300), 5)
    right = draw.random(300) < likely
    verdicts = [positive if is_yes else negative for is_yes in draw.random(300) < 0.6]
    table = [{"my verdict": v, "p": p} for v, p in zip(verdicts, likely.tolist(), strict=True)]
    people = [v if ok else (negative if v == positive else positive) for v, ok in zip(verdicts, right, strict=True)]
    results = judged(tmp_path / "out", table)
    said = labels(tmp_path / "l.jsonl", [{"row": i, "label": label} for i, label in enumerate(people)])
    options: dict[str, Any] = {"probability": "p", "precision": 0.85, "positive": str(positive).lower()}
    judge = calibrated(results, said, "my verdict", **options)
    keep = judge.figures.about.keep
    assert keep is not None
    assert yaml.safe_load(keep_text(judge.figures)) == {"keep": keep}
    frame = pl.read_parquet(tmp_path / "out/data/*.parquet").with_columns(people=pl.Series(people))
    kept = pl.SQLContext(t=frame).execute(f"SELECT * FROM t WHERE {keep}", eager=True)
    precision, share = (figure(judge, f"threshold_{name}", options["positive"]) for name in ("precision", "kept"))
    assert len(kept) == share.rows == precision.rows > 20
    assert (kept["people"] == kept["my verdict"]).mean() == pytest.approx(precision.estimate)
    assert precision.estimate >= 0.85
    assert set(kept["my verdict"]) == {positive}


def test_values_without_a_positive_one_are_each_told_against_the_rest(tmp_path):
    results = judged(tmp_path / "out", rows_of(["one", "two", "tie", "one"]))
    said = labels(tmp_path / "l.jsonl", [{"row": i, "label": v} for i, v in enumerate(["one", "one", "tie", "three"])])
    judge = calibrated(results, said)
    assert [line.value for line in judge.figures.of("corrected_rate")] == ["one", "tie", "two", "three"]
    assert judge.figures.about.keep is None
    assert any("labels that no verdict has: 'three' (1)" in note for note in judge.figures.about.notes)


def test_reviewers_are_told_apart_and_their_agreement_too(tmp_path):
    results = judged(tmp_path / "out", rows_of(["yes"] * 8))
    ann, bob = (["yes"] * 4 + ["no"] * 4, ["yes"] * 3 + ["no"] * 5)
    files = [
        labels(tmp_path / f"{name}.jsonl", [{"row": i, "label": v} for i, v in enumerate(said)])
        for name, said in (("ann", ann), ("bob", bob))
    ]
    judge = calibrated(results, files)
    assert judge.figures.about.reviewers == ["ann", "bob"]
    assert figure(judge, "reviewers_kappa").estimate == pytest.approx(0.75)
    assert {(x.value, x.group): x.rows for x in judge.figures.of("reviewers_say")} == {
        ("yes", "yes"): 3,
        ("yes", "no"): 1,
        ("no", "no"): 4,
    }
    files.append(labels(tmp_path / "cy.jsonl", [{"row": 3, "label": "yes"}]))
    judge = calibrated(results, files)
    assert figure(judge, "reviewers_alpha").rows == 8
    assert figure(judge, "labelled_rows").rows == 8  # the third decides the tie


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [([4.0, 2.5], ["4", "2.50"]), ([4, 2], ["4.0", "2"]), ([True, False], ["True", "FALSE"])],
    ids=str,
)
def test_labels_are_verdicts_however_they_are_written(tmp_path, verdicts, said):
    results = judged(tmp_path / "out", rows_of(verdicts))
    file = labels(tmp_path / "l.jsonl", [{"row": i, "label": label} for i, label in enumerate(said)])
    assert figure(calibrated(results, file), "agreement").estimate == 1


def test_labels_of_another_run_join_by_id(tmp_path):
    results = judged(tmp_path / "out", rows_of(["yes", "no", "yes"])[::-1], run="r2")
    said = labels(tmp_path / "l.jsonl", [{"run": "r1", "row": 77, "id": "a1", "label": "no"}])
    judge = calibrated(results, said)
    assert [(row.row, row.verdict) for row in judge.joined.used] == [(1, "no")]


REFUSED: list[tuple[str, dict[str, Any], list[dict[str, Any]], str]] = [
    ("a column that is not there", {"verdict": "verdcit"}, [{"row": 0, "label": "yes"}], "did you mean verdict?"),
    ("no verdict", {"verdict": "id"}, [{"row": 0, "label": "yes"}], "30 different values, so it is no verdict"),
    ("no label fits", {}, [{"row": 99, "label": "yes"}], "l.jsonl line 1 is of row 99, which is not there"),
    ("all skipped", {}, [{"row": 0, "label": None}], "none of 1 labels counts (1 skipped)"),
    ("an empty file", {}, [], "there are no labels in it"),
    ("another run", {}, [{"run": "r0", "row": 0, "label": "yes"}], "of run r0, not of run r1"),
    ("another id", {}, [{"row": 0, "id": "b0", "label": "yes"}], "row 0 of the run has the id 'a0'"),
    (
        "two kinds",
        {},
        [{"row": 0, "label": "no"}, {"row": 1, "label": "no", "stratum": "s"}],
        "line 1: the row is of no stratum",
    ),
    ("no positive", {"positive": "yse"}, [{"row": 0, "label": "yes"}], "--positive: neither a verdict nor a label is"),
    ("no probability", {"probability": "id"}, [{"row": 0, "label": "yes"}], "--probability: column 'id' is a String"),
    (
        "no texts",
        {"text": "t"},
        [{"row": 0, "label": "yes"}],
        "--text: column 't' is a List(String); name one of texts",
    ),
    ("percents", {"probability": "p"}, [{"row": 0, "label": "yes"}], "--probability: column 'p' has 90, and prob"),
    (
        "no place",
        {"swapped": "verdict", "positions": ["no", "yse"]},
        [{"row": 0, "label": "no"}],
        "no verdict is 'yse'",
    ),
    ("no share", {"precision": 95}, [{"row": 0, "label": "yes"}], "--precision 95: it is a share"),
    (
        "two samples",
        {},
        [{"row": i, "label": "no", "stratum": "s", "stratum_rows": 9 + i} for i in range(2)],
        "stratum s has 10 and 9 rows by its labels",
    ),
]


@pytest.mark.parametrize(("options", "said", "message"), [case[1:] for case in REFUSED], ids=[c[0] for c in REFUSED])
def test_what_cannot_be_calibrated_is_refused(tmp_path, options, said, message):
    results = judged(tmp_path / "out", rows_of(["yes", "no"] * 15, t=[["a"]] * 30, p=[90.0] * 30))
    with pytest.raises(ConfigError) as error:
        calibrated(results, labels(tmp_path / "l.jsonl", said), **{"verdict": "verdict", **options})
    assert message in str(error.value)
    assert not (tmp_path / "out/calibration.parquet").exists()


def test_ids_that_several_rows_have_are_refused(tmp_path):
    results = judged(tmp_path / "out", [{"verdict": "yes", "id": "same"}, {"verdict": "no", "id": "same"}])
    with pytest.raises(ConfigError, match="2 rows of the run have id 'same'; give labels with 'row'"):
        calibrated(results, labels(tmp_path / "l.jsonl", [{"id": "same", "label": "yes"}]))


def test_command_and_python_say_the_same_and_leave_it_in_the_run(tmp_path, capsys):
    results, _, said = sampled_run(tmp_path, 400)
    file = labels(tmp_path / "l.jsonl", said)
    out = str(tmp_path / "out")
    assert (
        main(["calibrate", out, "--labels", str(file), "--verdict", "verdict", "--precision", "0.6"]) == ExitCode.DONE
    )
    printed = capsys.readouterr().out
    made = load(out).calibrate(file, "verdict", precision=0.6)
    assert printed.startswith(made.text)
    assert f"{made.keep} # precision" in printed
    found = read_calibration(results.directory)
    assert found is not None
    assert made.figures.equals(pl.read_parquet(tmp_path / "out/calibration.parquet"))
    assert made.labels.equals(pl.read_parquet(tmp_path / "out/labels.parquet"))
    assert made.labels["label"].to_list() == [one["label"] for one in sorted(said, key=lambda one: one["row"])]
    text = page(results)
    assert ">Calibration<" in text
    assert "<svg" in text.partition(">Calibration<")[2]
    assert "True positive rate, true negative rate and precision" in text
    assert main(["calibrate", out, "--verdict", "verdict"]) == ExitCode.CONFIG
    assert "there are no labels" in capsys.readouterr().err
