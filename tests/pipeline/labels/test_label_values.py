"""Labels are told by what they say, however they are written, and whatever is no label is refused by file and line."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pipeline.api.errors import ConfigError
from pipeline.labels.label_files import read_labels
from tests.pipeline.labels.judged_runs import calibrated, figure, judged, labels


@pytest.mark.parametrize(
    ("verdicts", "said", "right", "read"),
    [
        (["yes", "no", "no"], ["YES", " no\t", "No"], 3, "'YES' as 'yes' (1), ' no\t' as 'no' (1), 'No' as 'no' (1)"),
        (["yes", "no"], [True, False], 2, "'true' as 'yes' (1), 'false' as 'no' (1)"),
        (["Yes", "Yes"], ["yes", "NO"], 1, "'yes' as 'Yes' (1), 'NO' as 'no' (1)"),
        ([True, False], ["Yes", "no"], 2, "'Yes' as 'true' (1), 'no' as 'false' (1)"),
        (["a", "A", "b"], ["a", "A", "B"], 3, "'B' as 'b' (1)"),
        (["b", "c", "b"], ["b", "Unsure", "unsure "], 1, "'unsure ' as 'Unsure' (1)"),
    ],
    ids=str,
)
def test_labels_are_verdicts_but_for_case_and_blanks(tmp_path, verdicts, said, right, read):
    results = judged(tmp_path / "out", [{"verdict": verdict} for verdict in verdicts])
    judge = calibrated(results, labels(tmp_path / "l.jsonl", [{"row": i, "label": v} for i, v in enumerate(said)]))
    assert f"labels are read by what they say: {read}" in judge.figures.about.notes
    assert sum(row.verdict == row.label for row in judge.joined.used) == right
    assert figure(judge, "labelled_rows").rows == len(said)


def test_labels_none_of_which_is_a_verdict_are_of_another_column(tmp_path):
    results = judged(tmp_path / "out", [{"verdict": verdict} for verdict in ("right", "wrong")])
    said = labels(tmp_path / "l.jsonl", [{"row": 1, "label": "rigth"}])
    with pytest.raises(ConfigError, match=r"l.jsonl line 1: no label is a verdict, .* 'rigth'; did you mean right\?"):
        calibrated(results, said)
    one = judged(tmp_path / "out", [{"verdict": "right"}] * 2)  # the judge that never says wrong
    assert (
        figure(calibrated(one, labels(tmp_path / "l.jsonl", [{"row": 1, "label": "wrong"}])), "agreement").estimate == 0
    )


def test_files_of_one_name_are_of_reviewers_by_their_folders(tmp_path):
    names = ["x/ann/labels.jsonl", "x/bob/labels.jsonl", "cy.defused.jsonl", "x/bob/labels.ndjson"]
    files = []
    for name in names:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        files.append(labels(path, [{"row": 1, "label": "yes"}]))
    assert [label.reviewer for label in read_labels(files[:3])] == ["ann/labels", "bob/labels", "cy"]
    assert [label.reviewer for label in read_labels([files[0], files[0]])] == ["labels", "labels"]
    assert len({label.reviewer for label in read_labels(files)}) == 4


BAD: list[tuple[dict[str, Any], str]] = [
    ({"row": 2**63}, "more than 64 bits"),
    ({"stratum": "hard", "stratum_rows": 10**30}, "more than 64 bits"),
    ({"stratum": "hard", "stratum_rows": 0}, "stratum_rows is 0"),
    ({"label": "\ud800"}, "'label' has half a character"),
    ({"comment": "a\udfff"}, "'comment' has half a character"),
    ({"label": ["yes"]}, "'label' is a list"),
    ({"labelled_at": "0001-01-01T00:00:00+09:00"}, "out of range"),
    (
        {"stratum": '{"gone": "x"}', "stratum_rows": 2},
        "they have no column 'gone'); give 'stratum' as the page saves it",
    ),
    ({"stratum": '{"verdict": [0, 1]}', "stratum_rows": 2}, "'verdict' is a String"),
    ({"stratum": '{"sure": ["a", "b"]}', "stratum_rows": 2}, "could not convert string to float"),
    ({"stratum": '{"sure": [0, 1, 2]}', "stratum_rows": 2}, "is no stratum of the rows"),
    ({"stratum": '{"disagreement": {"verdict": true}}', "stratum_rows": 2}, "they have no column 'lineage'"),
    ({"stratum": '{"verdict": {', "stratum_rows": 2}, "is no stratum of the rows"),
]


@pytest.mark.parametrize(("bad", "message"), BAD, ids=[message for _, message in BAD])
def test_what_no_label_can_say_is_refused_with_its_line(tmp_path, bad, message):
    results = judged(tmp_path / "out", [{"verdict": "yes", "sure": 0.5}] * 2)
    file = labels(tmp_path / "l.jsonl", [{"run": "r1", "row": 1, "label": "yes", **bad}])
    with pytest.raises(ConfigError, match=r"l\.jsonl line 1") as error:
        calibrated(results, file)
    assert message in str(error.value)


def test_a_stratum_of_ones_own_and_a_deep_line(tmp_path):
    results = judged(tmp_path / "out", [{"verdict": "yes"}] * 3)
    said = [{"run": "r1", "row": i, "label": "yes", "stratum": "hard", "stratum_rows": 2} for i in range(2)]
    assert figure(calibrated(results, labels(tmp_path / "l.jsonl", said)), "labelled_rows").rows == 2
    (tmp_path / "l.jsonl").write_text(json.dumps({"row": 1})[:-1] + ', "label": ' + "[" * 100_000)
    with pytest.raises(ConfigError, match="line 1 is no JSON"):
        calibrated(results, tmp_path / "l.jsonl")
