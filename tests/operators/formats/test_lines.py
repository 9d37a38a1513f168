"""data.format=lines: each line of a text file is a row, as it stands there."""

from __future__ import annotations

from tests.operators.sources.reading import read


def test_a_row_is_a_line_that_is_not_blank_with_its_number_and_one_that_is_no_text_costs_itself(tmp_path):
    (tmp_path / "a.txt").write_bytes(b'\xef\xbb\xbf{"a": \n\n  x y \r\n\t\n\xff\xfe\n\xc3\xa9')
    found = read(tmp_path / "a.txt", format="lines")
    assert found.values == [{"text": '{"a":', "line": 1}, {"text": "x y", "line": 3}, {"text": "é", "line": 6}]
    (bad,) = found.rejects.values()
    assert (bad.row, bad.line, bad.record) == (2, 5, "\\xff\\xfe")
    assert "not UTF-8" in bad.reason


def test_any_file_of_a_directory_has_lines_and_a_resumed_run_begins_in_the_middle(tmp_path):
    for name in ("a.jsonl", "b.txt", "c"):
        (tmp_path / name).write_text(f"{name} 1\n{name} 2\n")
    every = [f"{name} {n}" for name in ("a.jsonl", "b.txt", "c") for n in (1, 2)]
    assert [row["text"] for row in read(tmp_path, format="lines").values] == every
    assert [row["text"] for row in read(tmp_path, chunk_rows=2, seek=1, format="lines").values] == every[2:]
