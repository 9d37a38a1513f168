"""Keeps the processes of chat templates in a process that runs tests: each run would start one anew."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

from operators import render
from operators.prompts.template_process import TemplateProcess
from pipeline.api.protocols import Runtime

_kept: dict[str, TemplateProcess] = {}


def _shared(runtime: Runtime, source: str, date: datetime.date | None, proof: dict[str, Any]) -> TemplateProcess:
    given = (source, "the model's chat template", date, proof)
    if (key := repr(given)) not in _kept:
        _kept[key] = TemplateProcess(*given)
    return _kept[key]


def keep() -> None:
    """Have all runs of a template share its process, from now on in this process."""
    pytest.MonkeyPatch().setattr(render, "shared_process", _shared)
