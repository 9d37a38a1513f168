"""Render beside `transformers`, whose texts make.py has written into expected.json."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from operators.render import Render
from operators.settings import DataSettings
from tests.operators.fakes import chat_model
from tests.operators.flow import Flow, Rows, chain
from tests.templates.cases import CASES, DATE, OWN, SPECIAL
from tests.templates.make import EXPECTED, sha256

COLUMNS = ("messages", "tools", "kwargs")
SCHEMA = pa.schema([(name, pa.string()) for name in COLUMNS])
DATA = DataSettings(
    messages_column="messages", tools_column="tools", template_kwargs_column="kwargs", continue_final_message=True
)
OF_THE_JOB = (*COLUMNS, "continue_final_message")
FOLDER = os.environ.get("CHAT_TEMPLATES")
EXPECTATIONS = json.loads(EXPECTED.read_text("utf-8"))


def texts_of(folder: Path, template: str) -> dict[str, str | None]:
    """What Render makes of each case; None for a reject."""
    rows: list[dict[str, Any]] = []
    for case in CASES.values():
        kwargs = {key: value for key, value in case.items() if key not in OF_THE_JOB}
        given = {"messages": case["messages"], "tools": case.get("tools"), "kwargs": kwargs or None}
        rows.append({key: None if value is None else json.dumps(value) for key, value in given.items()})
    op = Render(chat_model(template, add_bos=False, **SPECIAL), DATA, date=DATE)
    made = {row["row"]: row["prompt_text"] for row in Flow(folder, chain(Rows(rows, SCHEMA), render=op)).run()}
    return {case: made.get(i) for i, case in enumerate(CASES)}


@pytest.mark.parametrize("name", OWN)
def test_our_templates_are_rendered_as_transformers_renders_them(tmp_path: Path, name: str) -> None:
    expected = {case: found.get("text") for case, found in EXPECTATIONS["own"][name].items()}
    assert texts_of(tmp_path, OWN[name]) == expected


@pytest.mark.parametrize("name", EXPECTATIONS["templates"])
def test_published_templates_are_rendered_as_transformers_renders_them(tmp_path: Path, name: str) -> None:
    """Each case is equal to the byte, or refused by both."""
    if FOLDER is None:
        pytest.skip("CHAT_TEMPLATES names no folder with the templates (tests/templates/make.py says which)")
    template = Path(FOLDER, name).read_text("utf-8")
    expected = EXPECTATIONS["templates"][name]
    assert sha256(template) == expected["sha256"], "another version of the template"
    made = {case: None if text is None else sha256(text) for case, text in texts_of(tmp_path, template).items()}
    assert made == {case: found.get("sha256") for case, found in expected["cases"].items()}
