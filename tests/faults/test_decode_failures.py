"""A call that llama.cpp refuses: the guilty rows become rejects, and the texts of the others do not change."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import operators.llama.model as llama
from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.interface import Logits
from operators.engine.backend.loading import ModelFacts
from operators.engine.backend.shape import DecoderShape
from operators.llama.contexts.context import LlamaContext
from operators.llama.header import facts_of
from operators.llama.model_file import gguf_path
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main

pytestmark = [
    pytest.mark.faults,
    pytest.mark.slow("runs whole jobs in which calls fail"),
]  # operators/llama/test_recovery.py has the law in make test

ROWS = 60
GUILTY = {0, 7, 8, 30, 59}


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """Prompts, five of them with MARK, and in `whole` the results of a model that does not fail."""
    folder: Path = tmp_path_factory.mktemp("failures")
    rows = [{"prompt": f"Say {i} words{MARK if i in GUILTY else ''}: " + "and " * (i % 9)} for i in range(ROWS)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert run(folder, "whole") == ExitCode.DONE
    return folder


def run(place: Path, out: str, *settings: str) -> int:
    fixed = ["job=generate", "model=tiny", f"data.path={place / 'prompts.jsonl'}", f"output_dir={place / out}"]
    small = ["sampling.max_tokens=12", "chunk_rows=20", "runtime.slots=6", "max_error_rate=1", "progress=none"]
    return main([*fixed, *small, *settings])


def rows(place: Path, out: str, folder: str = "data") -> list[dict[str, Any]]:
    return [row for p in sorted((place / out / folder).glob("*.parquet")) for row in pq.read_table(p).to_pylist()]


@pytest.mark.parametrize("code", [1, 2, -1, -3])
@pytest.mark.parametrize("kind", ["greedy", pytest.param("warm", marks=pytest.mark.faults)])
def test_the_guilty_rows_become_rejects_and_the_others_do_not_change(place, code, kind, matrix):
    settings = ["sampling.temperature=1"] if kind == "warm" else []
    if kind == "warm":
        assert run(place, "whole-warm", *settings) == ExitCode.DONE
    out = f"{kind}{code}"
    assert run(place, out, LOADER, f"+model.options.code={code}", *settings) == ExitCode.DONE
    rejects = rows(place, out, "rejects")
    assert {reject["row"] for reject in rejects} == GUILTY
    assert all(f"llama_decode failed with {code}" in reject["reason"] for reject in rejects)
    whole = rows(place, "whole-warm" if kind == "warm" else "whole")
    assert rows(place, out) == [row for row in whole if row["row"] not in GUILTY]
    matrix.saw(rows=ROWS, rejects=len(rejects), rows_lost=0, texts_changed=0)


@pytest.mark.parametrize("code", [1, -3, *(pytest.param(code, marks=pytest.mark.faults) for code in (2, -1))])
def test_failures_that_pass_change_no_byte(place, code, matrix):
    out = f"passing{code}"
    assert run(place, out, LOADER, f"+model.options.code={code}", "+model.options.every=5") == ExitCode.DONE
    assert rows(place, out) == rows(place, "whole")
    matrix.saw(rows=ROWS, rejects=0, rows_lost=0, texts_changed=0)


def test_a_model_that_always_fails_ends_the_run_and_costs_no_row(place):
    assert run(place, "broken", LOADER, "+model.options.code=-3", "+model.options.every=1") == ExitCode.FAILED
    assert rows(place, "broken") == rows(place, "broken", "rejects") == []


MARK = "\a"
"""A character that is a token of its own."""
LOADER = f"model.loader={__name__}:load"


def inspect(settings: ModelSettings) -> ModelFacts:
    return facts_of(gguf_path(settings))


def load(settings: ModelSettings) -> llama.LlamaModel:
    return FailingModel(settings)


class FailingModel(llama.LlamaModel):
    """Its contexts fail."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        self._code = int(settings.options["code"])
        self._every = int(settings.options.get("every", 0))
        self._calls = itertools.count(1)
        self._mark = int(self.tokenize([MARK.encode()], special=True)[0][-1])

    def _context(self, settings: EngineSettings, shape: DecoderShape) -> LlamaContext:
        context = super()._context(settings, shape)
        decode = context.decode

        def failing() -> Logits:
            logits = decode()
            if self._fails(context):
                raise DecodeFailed(self._code, f"llama_decode failed with {self._code}: made to fail")
            return logits

        context.decode = failing  # type: ignore[method-assign]
        return context

    def _fails(self, context: LlamaContext) -> bool:
        if self._every:
            return next(self._calls) % self._every == 0
        return self._mark in context.batch.token[: context.batch.n_tokens]
