"""Two Generates in a row: the second works on the first answers while the others are still being made."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from operators.engine.loop.step_log import STEPS_SCHEMA
from operators.settings import ModelSettings
from operators.tokens import Tokenize
from pipeline.api.protocols import Operator
from pipeline.api.records import Batch
from pipeline.dataflow.graph import Node
from tests.operators.flow import Flow, Rows
from tests.operators.test_generate import FAKE, TEXT, Ask, generate, prompts

ROWS, SLOTS = 60, 4


class Seen(Operator):
    """Notes under its name that a row has come by."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def plan(self, schema: pa.Schema) -> pa.Schema:
        return schema

    def process(self, batch: Batch):
        self.log += [self.name] * batch.num_rows
        yield batch


def answers_and_judge(directory, judge_slots: int) -> tuple[Flow, list[str]]:
    """A flow, run to its end, and in which order rows came by. With other slots the judge has an engine of its own."""
    log: list[str] = []
    sampling = {"ignore_eos": True}
    nodes = {
        "source": Node(Rows(prompts(ROWS), pa.schema([TEXT]), chunk_rows=ROWS, batch=4)),
        "tokenize": Node(Tokenize(FAKE), ("source",), capacity_rows=8),
        "answers": Node(generate(sampling, {"slots": SLOTS}), ("tokenize",), capacity_rows=8),
        "answered": Node(Seen("answer", log), ("answers",), capacity_rows=8),
        "ask": Node(Ask(), ("answered",), capacity_rows=8),
        "again": Node(Tokenize(ModelSettings(loader=FAKE.loader)), ("ask",), capacity_rows=8),
        "judge": Node(generate(sampling, {"slots": judge_slots}, as_="judge"), ("again",), capacity_rows=8),
        "judged": Node(Seen("judged", log), ("judge",), capacity_rows=8),
    }
    flow = Flow(directory, nodes)
    flow.run()
    return flow, log


@pytest.mark.parametrize("judge_slots", [SLOTS, 3], ids=["one engine", "two engines"])
def test_the_judge_begins_long_before_the_last_answer(tmp_path, judge_slots):
    """All rows are one chunk: nothing waits for the end of a chunk."""
    flow, log = answers_and_judge(tmp_path, judge_slots)
    assert log.count("answer") == log.count("judged") == ROWS
    answers_before = log[: log.index("judged")].count("answer")
    assert answers_before < ROWS // 2
    flow.tables.get("steps", STEPS_SCHEMA).merge()
    steps = pq.read_table(tmp_path / "metrics/steps.parquet").to_pylist()
    assert {step["engine"] for step in steps} == ({0} if judge_slots == SLOTS else {0, 1})
    if judge_slots == SLOTS:  # from the answers to the judge the slots stay full
        decoding = [step["rows"] for step in steps if step["decode_tokens"]]
        assert sum(decoding) > 0.9 * SLOTS * len(decoding)
