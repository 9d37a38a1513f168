"""Files of labels: what is read of both formats, which label of several counts, what is refused and how."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from pipeline.api.errors import ConfigError
from pipeline.labels.label_files import Label, latest, read_labels, text_of
from pipeline.labels.sample import Stratum

FULL = {
    "run": "r1",
    "folder": "data",
    "row": 7,
    "lineage": [1, 0],
    "id": "a7",
    "reviewer": "Ann",
    "label": "yes",
    "comment": "=sure, 'really'\nyes",
    "labelled_at": "2026-01-02T03:04:05.678Z",
    "stratum": "yes, 0.5 to 1",
    "stratum_rows": 40,
}


def written(path: Path, *records: object) -> Path:
    path.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
    return path


def test_both_formats_say_the_same(tmp_path):
    lines = written(tmp_path / "a.jsonl", FULL)
    table = tmp_path / "a.defused.csv"
    table.write_text(
        "\ufeffrun,folder,row,lineage,id,reviewer,label,comment,labelled_at,stratum,stratum_rows\r\n"
        'r1,data,7,1.0,a7,Ann,yes,"\'=sure, \'really\'\nyes",2026-01-02T03:04:05.678Z,"yes, 0.5 to 1",40\r\n',
        encoding="utf-8",
        newline="",
    )
    from_lines, from_table = read_labels([lines, table])
    at = datetime(2026, 1, 2, 3, 4, 5, 678000, UTC)
    wanted = Label("yes", "Ann", "r1", "data", 7, (1, 0), "a7", str(FULL["comment"]), at, "yes, 0.5 to 1", 40)
    for label in (from_lines, from_table):
        fields = {name: getattr(label, name) for name in Label.__slots__ if name != "where"}
        assert fields == {name: getattr(wanted, name) for name in Label.__slots__ if name != "where"}


def test_labels_from_elsewhere_need_a_label_and_a_row_or_an_id(tmp_path):
    by_id = written(tmp_path / "bob.jsonl", {"question_id": 12, "label": True}, {"question_id": 13, "label": None})
    labels = read_labels([by_id], "question_id")
    assert [(label.reviewer, label.id, label.label, label.row) for label in labels] == [
        ("bob", "12", "true", None),
        ("bob", "13", None, None),
    ]
    assert [text_of(value) for value in (True, 3, 0.5, "No", "", None)] == ["true", "3", "0.5", "No", None, None]


def test_a_blind_page_names_the_same_strata(tmp_path):
    stratum = Stratum({"verdict": "yes"}, None, None, np.arange(3))
    names = [stratum.name(blind=True), stratum.name(blind=False), "north", "abcd"]
    labels = read_labels(
        [written(tmp_path / "a.jsonl", *({"row": 1, "label": "x", "stratum": name} for name in names))]
    )
    assert [label.stratum for label in labels] == ['{"verdict": "yes"}', '{"verdict": "yes"}', "north", "abcd"]


def test_the_last_label_of_a_reviewer_counts():
    early, late = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 2, tzinfo=UTC)
    labels = [
        (1, Label("a", "Ann", labelled_at=late)),
        (1, Label("b", "Ann", labelled_at=early)),
        (1, Label("c", "Bob")),
        (1, Label(None, "Bob", labelled_at=early)),
    ]
    assert {key: label.label for key, label in latest(labels).items()} == {(1, "Ann"): "a", (1, "Bob"): None}


def test_rows_of_another_run_are_known_by_id():
    assert Label("a", "Ann", run="r1", row=1).joins_by_row("r1", None)
    assert Label("a", "Ann", row=1).joins_by_row("r1", None)
    assert not Label("a", "Ann", run="r0", row=1, id="x").joins_by_row("r1", "id")
    for label in (Label("a", "Ann", run="r0", row=1, where="f"), Label("a", "Ann", id="x", where="f")):
        with pytest.raises(ConfigError, match=r"^f: the label"):
            label.joins_by_row("r1", None)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.defused.csv", "row,label\n3,'+1\n"),
        ("a.defused (1).csv", "row,label\n3,'+1\n"),  # the second download of a browser
        ("renamed.csv", "row,label,defused\n3,'+1,true\n"),  # as the page saves it
        ("german.csv", "\ufeffrow;label;note\r\n3;+1;a,b\r\n"),
        ("tabs.csv", "row\tlabel\n3\t+1\n"),
        ("pandas.csv", "row,label\n3.0,+1\n"),
    ],
)
def test_what_spreadsheets_browsers_and_pandas_make_of_a_file_says_the_same(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
    assert [(label.row, label.label) for label in read_labels([path])] == [(3, "+1")]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.jsonl", '{"row": 1, "label": "x"}\n{"row":', "line 2 is no JSON"),
        ("a.jsonl", "[1]", "no JSON object"),
        ("a.jsonl", '{"label": "x"}', "neither 'row' nor 'id', 'key'"),
        ("a.jsonl", '{"row": 1}', "has no 'label'"),
        ("a.jsonl", '{"row": 1.5, "label": "x"}', "1.5 is no whole number"),
        ("a.csv", "row,verdict\n1,x\n", "no column 'label'"),
        ("a.csv", "row,label\none,x\n", "line 2 is no label"),
        ("a.jsonl", b"\xff\xfe", "is no UTF-8"),
        ("a.csv", "row,label\n1,größer\n".encode("cp1252"), "save it as UTF-8, in a spreadsheet as 'CSV UTF-8'"),
        ("a.csv", "Id,Label\n1,x\n", "write 'label' instead of 'Label'"),
        ("a.csv", "Key,label\n1,x\n", "write 'key' instead of 'Key'"),
        ("a.jsonl", '{"row": 1, "Label": "x"}', "write 'label' instead of 'Label'"),
        ("a.txt", "", "JSON lines"),
    ],
)
def test_what_is_no_label_is_refused(tmp_path, name, text, says):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=says):
        read_labels([path], "key")
    with pytest.raises(ConfigError, match="No such file"):
        read_labels([tmp_path / "none.csv"])
