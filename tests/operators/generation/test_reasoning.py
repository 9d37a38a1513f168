"""Reasoning told apart from answers, its budget, and constraints on the answer alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from operators.constraints.thinking import Thinking
from operators.engine.backend.fake import FakeModel
from operators.engine.sampling.params import SamplingParams
from operators.engine.sequence.sequence import Sequence, StopWatcher
from operators.generation.reasoning import Reasoning
from operators.generation.sampling_params import RowParams
from operators.prompts.reasoning import HARMONY, Tags, tags_in
from operators.settings import SamplingSettings
from operators.settings.structured import StructuredSettings
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main

MODEL = Path(__file__).parents[2] / "families/llama.gguf"
CONTROLS = ["<think>", "</think>", "<|channel|>", "<|message|>", "<|end|>", "<|start|>"]
WORDS = ["analysis", "final", "assistant", "so ", "yes", "\n", "STOP", "é"]


class Vocabulary:
    """A model whose tags are control tokens, which have no bytes, or texts."""

    def __init__(self, *, controls: bool) -> None:
        self.names = [*CONTROLS, *WORDS]
        self.add_bos = False
        self._pieces = [b"" if controls and name in CONTROLS else name.encode() for name in self.names]

    def pieces(self) -> list[bytes]:
        return self._pieces

    def tokenize(self, texts: list[bytes], *, special: bool) -> tuple[np.ndarray, np.ndarray]:
        (text,), found = texts, []
        while text:
            name = max((name for name in self.names if text.startswith(name.encode())), key=len)
            found.append(self.names.index(name))
            text = text[len(name.encode()) :]
        return np.array(found, np.int32), np.array([0, len(found)], np.int32)

    def ids(self, *names: str) -> list[int]:
        return [self.names.index(name) for name in names]


def row(vocabulary: Vocabulary, prompt: list[str], drawn: list[str], stop: str | None = None) -> Sequence:
    stops = None if stop is None else StopWatcher([stop.encode()], vocabulary.pieces())
    ids = np.array(vocabulary.ids(*prompt), np.int32)
    made = Sequence(None, ids, SamplingParams(), 0, 99, stops)
    made.tokens = vocabulary.ids(*drawn)
    return made


@pytest.mark.parametrize("controls", [True, False])
@pytest.mark.parametrize(
    ("tags", "prompt", "drawn", "parts"),
    [
        (tags_in("<think></think>"), ["yes"], ["<think>", "so ", "so ", "</think>", "yes"], ("so so ", 2, "yes")),
        (tags_in("<think></think>"), ["yes"], ["\n", "<think>", "\n", "so "], ("\nso ", 2, "")),
        (tags_in("<think></think>"), ["<think>", "\n"], ["so ", "é", "</think>", "\n", "yes"], ("so é", 2, "\nyes")),
        (tags_in("<think></think>"), ["<think>", "\n"], ["so ", "so "], ("so so ", 2, "")),
        (tags_in("<think></think>"), ["<think>", "\n", "</think>", "\n"], ["yes"], (None, 0, "yes")),
        (tags_in("<think></think>"), ["yes"], ["yes", "</think>"], (None, 0, "yes</think>")),
        (Tags("", "final"), ["yes"], ["so ", "final", "yes"], ("so ", 1, "yes")),
        (Tags("", "final"), ["yes"], ["so ", "yes"], (None, 0, "so yes")),
        (
            HARMONY,
            ["<|start|>", "assistant"],
            [
                *("<|channel|>", "analysis", "<|message|>", "so ", "<|end|>"),
                *("<|start|>", "assistant", "<|channel|>", "final", "<|message|>", "yes"),
            ],
            ("so ", 1, "yes"),
        ),
        (HARMONY, ["assistant"], ["<|channel|>", "final", "<|message|>", "yes"], (None, 0, "yes")),
    ],
)
def test_a_completion_is_split_at_its_tags(controls, tags, prompt, drawn, parts):
    vocabulary = Vocabulary(controls=controls)
    found = Reasoning(vocabulary, tags).split(row(vocabulary, prompt, drawn))  # type: ignore[arg-type]
    if controls:  # outside of reasoning a lone tag that is a control token adds no text
        parts = (parts[0], parts[1], parts[2].replace("</think>", ""))
    assert (found.reasoning, found.tokens, found.answer) == parts


@pytest.mark.parametrize("stop", ["STOP", "s"])
def test_a_stop_string_ends_the_reasoning_too(stop):
    vocabulary = Vocabulary(controls=True)
    reasoning = Reasoning(vocabulary, Tags("<think>", "</think>"))  # type: ignore[arg-type]
    drawn = ["<think>", "é", "</think>", "yes", "STOP"]
    found = reasoning.split(row(vocabulary, ["yes"], drawn, stop))
    assert (found.reasoning, found.answer) == ("é", "yes" if stop == "STOP" else "ye")
    found = reasoning.split(row(vocabulary, ["yes"], ["<think>", "é", "yes"], "yes"))
    assert (found.reasoning, found.answer) == ("é", "")


@pytest.mark.parametrize(
    ("template", "opening"),
    [(None, None), ("{{ messages }}", None), ("[THINK]x[/THINK]", "[THINK]"), ("<think>\n</think>", "<think>")],
)
def test_tags_are_read_off_the_chat_template(template, opening):
    found = tags_in(template)
    assert (found and found.opening) == opening


def thinking(budget: int | None, *, within: bool, end: int = 4) -> Thinking:
    vocabulary = Vocabulary(controls=True)
    tags = Reasoning(vocabulary, Tags("<think>", "</think>"))  # type: ignore[arg-type]
    ids = (tags.opening_ids, tags.closing_ids)
    ends, n = frozenset({end}), len(vocabulary.names)
    return Thinking(tags.marked, tags.opening, tags.closing, *ids, ends, n, budget, within, None)


@pytest.mark.parametrize("budget", range(4))
@pytest.mark.parametrize("within", [True, False])
def test_the_closing_tag_is_forced_when_the_budget_is_spent_and_no_end_is_drawn_before(budget, within):
    matcher = thinking(budget, within=within).matcher()
    if not within:
        matcher.take(0)
    for _ in range(budget):
        assert matcher.forced() == []
        assert not matcher.allows(4)
        assert matcher.allowed().sum() == len(CONTROLS) + len(WORDS) - 1
        matcher.take(9)
    assert matcher.forced() == [1]
    assert matcher.allowed().nonzero()[0].tolist() == [1]
    matcher.take(1)
    assert matcher.forced() == []
    assert matcher.allows(4)
    assert matcher.complete
    assert matcher.allowed().all()


def test_budget_and_beginning_are_in_the_identity_of_a_constraint():
    kinds = [thinking(budget, within=within) for budget in (None, 0, 1) for within in (True, False)]
    assert len({SamplingParams(constraint=kind).identity for kind in kinds}) == 6


def test_a_text_that_does_not_reason_is_free():
    matcher = thinking(0, within=False).matcher()
    matcher.take(9)
    matcher.take(0)  # an opening tag within the text opens nothing
    assert matcher.forced() == []
    assert matcher.allows(4)


def ran(out: Path, *settings: str, rows: int = 24, code: int = ExitCode.DONE) -> list[dict[str, Any]]:
    """The rows of a job with a model of random weights whose prompts end with an opening tag."""
    data, template = out.with_suffix(".jsonl"), out.with_suffix(".jinja")
    data.write_text("".join(json.dumps({"prompt": f"Nr. {i}, please"}) + "\n" for i in range(rows)), encoding="utf-8")
    template.write_text("{{ messages[0].content }}<think>\n{# </think> #}", encoding="utf-8")
    given = [f"model.path={MODEL}", f"data.path={data}", f"model.chat_template={template}", f"output_dir={out}"]
    usual = ["sampling.max_tokens=40", "sampling.temperature=1", "progress=none", "chunk_rows=64"]
    assert main(["job=generate", "model=gguf", *given, *usual, *settings]) == code
    if code != ExitCode.DONE:
        return []
    return pq.read_table(out / "data").sort_by("row").to_pylist()


def test_no_row_thinks_longer_than_its_budget_and_every_row_goes_on_to_its_answer(tmp_path):
    rows = ran(tmp_path / "out", "sampling.thinking_budget=9", "output.completion_text=raw", rows=100)
    assert len(rows) == 100
    assert max(row["reasoning_token_count"] for row in rows) == 9
    answers = [row["completion"].removeprefix(f"{row['reasoning']}</think>") for row in rows]
    assert all(len(answer) < len(row["completion"]) for answer, row in zip(answers, rows, strict=True))
    assert all(row["finish_reason"] == "stop" for answer, row in zip(answers, rows, strict=True) if not answer)
    assert sum(map(bool, answers)) > 97


def test_raw_text_is_the_reasoning_the_tag_and_the_answer(tmp_path):
    split = ran(tmp_path / "split", "sampling.thinking_budget=9")
    raw = ran(tmp_path / "raw", "sampling.thinking_budget=9", "output.completion_text=raw")
    assert [row["completion"] for row in raw] == [f"{row['reasoning']}</think>{row['completion']}" for row in split]
    assert [row["reasoning"] for row in raw] == [row["reasoning"] for row in split]


def test_a_constraint_is_on_the_answer_alone_unless_the_job_says_otherwise(tmp_path):
    choices = "sampling.structured.choices=[left,right]"
    rows = ran(tmp_path / "out", choices, "sampling.thinking_budget=7")
    assert {row["completion"] for row in rows} <= {"left", "right"}
    assert {row["reasoning_token_count"] for row in rows} == {7}
    rows = ran(tmp_path / "all", choices, "sampling.structured.after_reasoning=false", "output.completion_text=raw")
    assert {row["completion"] for row in rows} <= {"left", "right"}


def test_what_is_in_the_store_is_split_alike(tmp_path):
    store = (f"store.path={tmp_path / 'store'}", "sampling.thinking_budget=9", "sampling.stop=[e]")
    first = ran(tmp_path / "first", *store)
    assert ran(tmp_path / "again", *store) == first


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (("model.reasoning_tags=[]", "sampling.thinking_budget=9"), "needs a model that reasons"),
        (("model.reasoning_tags=[a]",), "two strings"),
        (("sampling.thinking_budget=-1",), "0 or more"),
        (
            ("sampling.thinking_budget=9", "sampling.structured={choices:[a],after_reasoning:false}"),
            "sampling.thinking_budget has no effect",
        ),
    ],
)
def test_what_cannot_work_is_exit_code_2(tmp_path, capfd, settings, said):
    ran(tmp_path / "out", *settings, code=ExitCode.CONFIG)
    assert said in capfd.readouterr().err


def test_without_tags_there_is_no_column(tmp_path):
    assert "reasoning" not in ran(tmp_path / "out", "model.reasoning_tags=[]")[0]


def test_a_constraint_waits_for_the_closing_tag_also_without_a_budget():
    model = FakeModel()
    tags = Reasoning(model, Tags("<think>", "</think>"))

    def constraint(**structured: Any) -> object:
        sampling = SamplingSettings(structured=StructuredSettings(choices=["a"], **structured))
        return RowParams(sampling, model, tags).of(()).within.constraint  # type: ignore[union-attr]

    assert isinstance(constraint(), Thinking)
    assert not isinstance(constraint(after_reasoning=False), Thinking)
