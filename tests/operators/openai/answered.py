"""Runs of job=openai_batch that have ended, and what they answered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from operators.openai.write_batch import ERRORS, OUTPUT
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main

USUAL = ("chunk_rows=8", "runtime.slots=4", "progress=none", "report=false")
TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    '{% if tools %}{{ tools }} as <tool_call>{"name": ..., "arguments": ...}</tool_call>{% endif %}'
)


@dataclass
class Answered:
    """A run that has ended: its files, and its lines by custom_id."""

    code: int
    directory: Path
    output: dict[str, dict[str, Any]]
    errors: list[dict[str, Any]]

    @property
    def files(self) -> dict[str, bytes]:
        parts = [p for folder in ("data", "rejects") for p in (self.directory / folder).iterdir()]
        return {p.name: p.read_bytes() for p in [self.directory / OUTPUT, self.directory / ERRORS, *parts]}

    def body(self, custom_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.output[custom_id]["response"]["body"]
        return found

    def text(self, custom_id: str, choice: int = 0) -> str:
        found = self.body(custom_id)["choices"][choice]
        return str(found["text"] if "text" in found else found["message"]["content"])

    def error(self, custom_id: str) -> tuple[str, str]:
        (found,) = [line["error"] for line in self.errors if line["custom_id"] == custom_id]
        return found["code"], found["message"]


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def answered(directory: Path, *overrides: str, job: str = "openai_batch", code: int = ExitCode.DONE) -> Answered:
    """Run the job, with 8 requests a chunk."""
    assert main([f"job={job}", f"output_dir={directory}", *USUAL, *overrides]) == code
    if code == ExitCode.FAILED:
        return Answered(code, directory, {}, [])
    output = {line["custom_id"]: line for line in lines_of(directory / OUTPUT)}
    return Answered(code, directory, output, lines_of(directory / ERRORS))


def on_fake(tmp_path: Path, lines: Sequence[str], *overrides: str, **kwargs: Any) -> Answered:
    """Answers of the fake model to `lines`."""
    return answered(tmp_path / "out", *fake_model(tmp_path, lines), *overrides, **kwargs)


def fake_model(directory: Path, lines: Sequence[str]) -> list[str]:
    """Overrides for a job over `lines`."""
    (directory / "in.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (directory / "chat.jinja").write_text(TEMPLATE, encoding="utf-8")
    given = [f"data.path={directory / 'in.jsonl'}", "model=fake", f"model.chat_template={directory / 'chat.jinja'}"]
    return [*given, "runtime.max_sequence_tokens=400", "sampling.max_tokens=20", "max_error_rate=1"]


def requests(*asked: tuple[str, str, dict[str, Any]]) -> list[str]:
    """The lines of (custom_id, url, body)."""
    return [json.dumps({"custom_id": c, "method": "POST", "url": url, "body": body}) for c, url, body in asked]
