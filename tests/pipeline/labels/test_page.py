"""The page of `review`: whatever a row holds is data in it; it says what was asked for, and nothing that is to be
hidden."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.labels.page import as_data
from pipeline.run_dir.names import REVIEW, wipe
from tests.operators.images.files import encoded, pixels
from tests.pipeline.labels.runs import RUN, run_of
from tests.pipeline.pages import Page

HOSTILE = (
    "</script><script>alert(1)</script>",
    '<img src=x onerror="alert(2)"><!-- <script>',
    "line\u2028paragraph\u2029nul\x00bell\x07del\x7f \U0001f600 \ufffe",
    "שלום, עולם\n  two spaces \t tab",
    '"},"rows":[]}',
    "{{ data }} {{ js }}",
)
LONG = "x" * 1_000_000


def rows_of(many: int = 60) -> list[dict[str, Any]]:
    return [
        {
            "id": f"r{i}",
            "question": f"{HOSTILE[i % len(HOSTILE)] if i else LONG} {i}",
            "verdict": ("yes", "no", "yes", None)[i % 4],
            "verdict_probability": i % 10 / 10,
            "turns": [{"role": "user", "content": "<b>hi</b>"}, {"role": "assistant", "content": f"answer {i}"}],
            "extra": {"deep": [{"three": "<3"}], "more": None},
            "vector": [0.5] * 300,
        }
        for i in range(many)
    ]


def data_of(page: Path) -> tuple[str, dict[str, Any]]:
    """The text of a page, and the data in it, as a browser finds it: up to the first end of a script."""
    text = page.read_text(encoding="utf-8")
    data = text.partition('<script type="application/json" id="data">')[2].partition("</script>")[0]
    return text, json.loads(data)


def review(directory: Path, *arguments: str) -> tuple[str, dict[str, Any]]:
    assert main(["review", str(directory), "--columns", "question,turns,extra,vector,verdict", *arguments]) == 0
    return data_of(directory / REVIEW)


@pytest.fixture(scope="module")
def directory(tmp_path_factory) -> Path:
    return run_of(tmp_path_factory.mktemp("run") / "out", rows_of(), shards=3, data={"id_column": "id"})


def test_whatever_stands_in_a_row_is_data(directory, capsys):
    text, data = review(directory, "--rows", "20")
    found = Page(text)
    assert found.tags.count("script") == 2
    assert not {"img", "iframe", "object", "embed", "link", "base"} & set(found.tags)
    assert not [name for _, name, _ in found.attributes if name.startswith("on")]
    assert "default-src 'none'" in found.values("content")[-1]
    assert "\x00" not in text
    assert not re.search("[\u2028\u2029]", text)
    rows = rows_of()
    for row, lineage, name, _, fields, pictures in data["rows"]:
        want = rows[row]
        assert [lineage, name, fields[0], fields[4]] == [None, want["id"], want["question"], want["verdict"]]
        assert fields[1] == {"turns": [["user", "<b>hi</b>"], ["assistant", f"answer {row}"]]}
        assert json.loads(fields[2]["json"]) == want["extra"]
        assert fields[3].endswith("... 300 values]")
        assert pictures == [[]] * 5
    said = capsys.readouterr().out
    assert "20 of 60 rows" in said
    assert f"calibrate {directory} --labels FILE --verdict verdict" in said


def test_half_a_character_stays_out_of_the_page():
    text = as_data(["\ud83d", "\udc00<"])
    assert text.encode()
    assert json.loads(text) == ["\ud83d", "\udc00<"]


def test_the_head_says_what_the_labels_are_of(directory):
    _, data = review(directory, "--rows", "20")
    head = data["head"]
    assert [head[key] for key in ("run", "job", "folder", "choices", "question")] == [
        RUN,
        "judged",
        "data",
        ["no", "yes"],
        "What should verdict be?",
    ]
    assert review(directory, "--question", "Right?\nSay no in doubt.")[1]["head"]["question"].startswith("Right?\nSay")
    assert sum(rows for _, rows in head["strata"]) == 60
    assert len(data["rows"]) == 20
    assert {json.loads(name)["verdict"] for name, _ in head["strata"]} == {None, "yes", "no"}


def test_the_same_run_and_arguments_make_the_same_bytes(directory):
    first, again, other = (review(directory, "--seed", seed)[0] for seed in ("0", "0", "1"))
    assert first == again != other
    digests = {data_of(directory / REVIEW)[1]["head"]["digest"], json.loads(re.findall(r'"digest":("\w+")', first)[0])}
    assert len(digests) == 2  # labels of two samples are kept apart


def test_more_rows_than_there_are_is_all_of_them(directory, capsys):
    _, data = review(directory, "--rows", "1000")
    assert sorted(row for row, *_ in data["rows"]) == list(range(60))
    assert "the run has 60 rows: all are on the page" in capsys.readouterr().out


def test_blind_hides_what_the_judge_said(tmp_path):
    """Neither a name, a verdict nor a probability stands in the page; the buttons have to name the verdicts."""
    rows = [
        {"question": f"q{i}", "verdict": ("sound", "faulty")[i % 2], "verdict_probability": 0.123 + i / 97}
        for i in range(30)
    ]
    directory = run_of(tmp_path / "out", rows)
    columns = "question,verdict,verdict_probability"
    assert main(["review", str(directory), "--columns", columns, "--blind", "--rows", "12"]) == ExitCode.DONE
    text, data = data_of(directory / REVIEW)
    assert data["head"]["columns"] == ["question"]
    assert text.count("sound") == text.count("faulty") == text.count('"choices":["faulty","sound"]') == 1
    assert not re.search(r"0\.123|probability", json.dumps(data))
    assert main(["review", str(directory), "--columns", "verdict", "--blind"]) == ExitCode.CONFIG


def test_pictures_of_rows_are_in_the_page(tmp_path):
    picture = {"bytes": encoded(pixels(900, 300), "PNG"), "path": None}
    url = f"data:image/png;base64,{'A' * 100}"
    rows: list[dict[str, Any]] = [
        {"seen": picture, "verdict": "yes", "text": url},
        {"seen": None, "verdict": "no", "text": url},
    ]
    directory = run_of(tmp_path / "out", rows)
    assert main(["review", str(directory), "--columns", "seen,text,verdict", "--by", "verdict"]) == ExitCode.DONE
    text, data = data_of(directory / REVIEW)
    assert "A" * 100 not in text
    urls = {row: pictures for row, *_, pictures in data["rows"]}
    assert urls[0][0][0].startswith("data:image/jpeg;base64,")
    assert urls[1] == [[], [], []]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--columns", "questoin"], "no column 'questoin'; did you mean question?"),
        (["--columns", "question"], "show the column of the verdict, name it with --by, or give --choices yes,no"),
        (["--columns", "question,verdict", "--by", "question"], "60 different values, so it is no verdict"),
        (["--columns", "question", "--choices", ","], "show the column of the verdict"),
        (["--columns", "question,verdict", "--folder", "data/other"], "has no rows in data/other"),
        (["--columns", "question,verdict", "--rows", "0"], "--rows is at least 1"),
        (["--columns", "question,verdict", "--out", "nowhere/at/all.html"], "nowhere/at"),
    ],
)
def test_what_cannot_be_reviewed_is_said(directory, capsys, arguments, says):
    assert main(["review", str(directory), *arguments]) != ExitCode.DONE
    assert says in capsys.readouterr().err


def test_a_run_that_is_overwritten_loses_its_page(tmp_path):
    directory = run_of(tmp_path / "out", rows_of(8))
    review(directory)
    wipe(directory)
    assert not (directory / REVIEW).exists()
