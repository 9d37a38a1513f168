"""The fingerprint of an input is that of its content."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from operators.rows.content import SAMPLE_BYTES, content_id
from operators.settings import DataSettings
from operators.sources.read_prompts import ReadPrompts


def test_fingerprint_follows_the_content_alone(tmp_path: Path) -> None:
    def prints(folder: str, text: str) -> dict[str, Any]:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.jsonl").write_text(text)
        return ReadPrompts(DataSettings(path=str(tmp_path / folder)), 10).fingerprint()

    assert prints("x", '{"a": 1}') == prints("y", '{"a": 1}') != prints("z", '{"a": 2}')


def test_content_of_a_large_file_is_sampled(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_bytes(b"x" * (3 * SAMPLE_BYTES))
    before = content_id(path, whole_up_to_bytes=SAMPLE_BYTES)
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"y")
    assert before.startswith(f"sampled:{3 * SAMPLE_BYTES}:")
    assert content_id(path, whole_up_to_bytes=SAMPLE_BYTES) != before
