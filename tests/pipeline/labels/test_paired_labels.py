"""`compare A B --labels`: two judges on the same labels, paired by the rows that both have."""

from __future__ import annotations

import numpy as np
import pytest

from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.labels.paired_labels import paired_difference
from pipeline.python.compare import compare
from tests.pipeline.labels.judged_runs import judged, labels


def words(text: str, name: str) -> list[str]:
    return next(line for line in text.splitlines() if line.strip().startswith(f"{name} ")).split()


@pytest.mark.parametrize("of", ["a", "b"])
def test_rows_are_paired_by_id_wherever_they_stand_whichever_run_was_labelled(tmp_path, capsys, of):
    people = ["yes"] * 10
    a, b = ["yes"] * 4 + ["no"] * 6, ["no"] + ["yes"] * 8 + [None]
    judged(tmp_path / "a", [{"verdict": v} for v in a], run="a")
    judged(tmp_path / "b", [{"verdict": v, "id": f"a{9 - i}"} for i, v in enumerate(b[::-1])], run="b")
    place = {"a": lambda i: i, "b": lambda i: 9 - i}[of]
    said = [{"run": of, "row": place(i), "label": v} for i, v in enumerate(people)]
    file = labels(tmp_path / "l.jsonl", said)
    runs = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert main(["compare", *runs, "--labels", str(file), "--verdict", "verdict"]) == ExitCode.DONE
    printed = capsys.readouterr().out.partition("verdict by people's labels")[2]
    cells = words(printed, "verdict")
    assert cells[1:3] == ["9", "44.4"]  # the row that b has no verdict of is left out
    assert cells[-3:] == ["1", "5", "0.22"]
    assert f"{100 * 4 / 9:+.1f} %" in printed
    assert compare(*runs, labels=file, verdict="verdict").text.endswith(printed.rstrip())
    if of == "a":
        assert "1 labelled rows have no verdict in" in printed


def test_the_interval_of_the_difference_covers_it_as_often_as_it_says():
    draw, covered, rounds = np.random.default_rng(1), 0, 400
    for _ in range(rounds):
        group = draw.integers(0, 2, 120)
        a, b = draw.random(120) < 0.6 + 0.2 * group, draw.random(120) < 0.7
        weights = np.where(group == 0, 3.0, 1.0)  # the first group is drawn three times less often than it is there
        found = paired_difference(weights, a, b)
        covered += found.low <= 0.7 - (0.75 * 0.6 + 0.25 * 0.8) <= found.high
    assert 0.92 <= covered / rounds <= 0.98


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--labels", "l.jsonl"], "--labels FILE and --verdict COLUMN go together"),
        (["--labels", "l.jsonl", "--verdict", "verdict"], "no labelled row of"),
    ],
)
def test_labels_that_pair_nothing_are_refused(tmp_path, capsys, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    judged(tmp_path / "a", [{"verdict": "yes"}] * 3, run="a")
    judged(tmp_path / "b", [{"verdict": v, "id": f"b{v}"} for v in ("yes", "no")], run="b")
    labels(tmp_path / "l.jsonl", [{"id": "a0", "label": "yes"}])
    assert main(["compare", "a", "b", *arguments]) == ExitCode.CONFIG
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("a", "b", "label", "right", "note"),
    [
        (1, 1.0, "1", "100.0", ""),
        (1.0, 1, "1.0", "100.0", ""),
        (True, "true", "true", "100.0", ""),
        (1, "one", "1", "0.0", "labels that no verdict has: '1' (4); verdict of b has one"),
    ],
    ids=str,
)
def test_each_run_is_compared_with_the_label_as_its_own_kind_writes_it(
    tmp_path, capsys, monkeypatch, a, b, label, right, note
):
    monkeypatch.chdir(tmp_path)
    judged(tmp_path / "a", [{"verdict": a}] * 4, run="a")
    judged(tmp_path / "b", [{"verdict": b}] * 4, run="b")
    labels(tmp_path / "l.jsonl", [{"id": f"a{i}", "label": label} for i in range(4)])
    assert main(["compare", "a", "b", "--labels", "l.jsonl", "--verdict", "verdict"]) == ExitCode.DONE
    printed = capsys.readouterr().out.partition("verdict by people's labels")[2]
    cells = words(printed, "verdict")
    assert (cells[2], cells[7]) == ("100.0", right)
    assert ("labels that no verdict has" in printed) is bool(note)
    assert note in printed
