"""`python -m pipeline prompt`: the prompt of one row, as the run gives it to the model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from operators.llama.model import load
from operators.settings import ModelSettings
from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from tests.pipeline.command_line import refused

CHATS = [[{"role": "user", "content": f"Question {i}?\n"}] for i in range(5)]
CHATS[1], CHATS[3] = CHATS[0], []
JOB = ["job=generate", "model=tiny", "data.path=chats.jsonl", "data.messages_column=chat", "chunk_rows=2"]

ONCE = """\
defaults: [override /flow: generate]
nodes:
  once: {inputs: read, op: {_target_: operators.dedup.Dedup, columns: [chat]}}
  render: {inputs: once}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("chats.jsonl").write_text("".join(f"{json.dumps({'chat': json.dumps(chat)})}\n" for chat in CHATS))


def test_it_is_the_prompt_of_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    limits = ["sampling.max_tokens=1", "output.prompt_text=true", "output_dir=out", "progress=none"]
    assert main([*JOB, *limits]) in (ExitCode.DONE, ExitCode.REJECTS)
    tokenizer = load(ModelSettings(path=str(PROJECT / "models/tiny/tiny-q8_0.gguf")))
    rows = {row["row"]: row for row in pq.read_table("out/data").to_pylist()}
    for row in (0, 4):
        capsys.readouterr()
        assert main(["prompt", *JOB, f"row={row}"]) == ExitCode.DONE
        first, rest = capsys.readouterr().out.split("\n", 1)
        text, ids = rest.split("\nthe ids, special tokens with their text:\n")
        assert text == rows[row]["prompt_text"]
        numbers = re.sub(r"\[(\d+) [^\]]*\]", r"\1", ids).split()
        assert first == f"{len(numbers)} tokens, 3 of them special; the text:"
        assert [int(number) for number in numbers] == tokenizer.tokenize([text.encode()], special=True)[0].tolist()
        assert ids.startswith("[1 <|im_start|>] ")
    tokenizer.close()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["row=3"], "row 3 has no prompt at 'tokenize': rejected by 'render': column 'chat' has no messages"),
        (["row=5"], "row=5: the input ends before it, at row 4; rows count from 0"),
        (["row=x"], "row=x is no row of the input, which count from 0; write python -m pipeline prompt job=NAME row=N"),
        ([], "row= is no row of the input"),
        (["row=0", "node=render"], "node=render makes no prompt; those that do are tokenize"),
    ],
)
def test_what_has_no_prompt_is_told_why(capsys: pytest.CaptureFixture[str], arguments: list[str], says: str) -> None:
    assert says in refused(capsys, "prompt", *JOB, *arguments)
    assert not Path("outputs").exists()


@pytest.mark.parametrize("row", [0, 4])
def test_a_node_that_looks_at_a_whole_chunk_gets_it(capsys: pytest.CaptureFixture[str], row: int) -> None:
    Path("once.yaml").write_text(ONCE)
    assert main(["prompt", "job=once.yaml", *JOB[1:], f"row={row}"]) == ExitCode.DONE
    shown = capsys.readouterr().out
    assert shown.count("the text:") == 1
    assert f"Question {row}?" in shown
    message = refused(capsys, "prompt", "job=once.yaml", *JOB[1:], "row=1")
    assert "row 1 has no prompt at 'tokenize': rejected by 'once': equal to row 0 in chat" in message


def test_of_several_prompts_those_that_need_no_completion_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["prompt", "job=self_instruct", "row=1"]) == ExitCode.DONE
    assert "Here are some instructions:" in capsys.readouterr().out
    message = refused(capsys, "prompt", "job=self_instruct", "row=1", "node=answer")
    assert "the prompt of 'answer_tokens' needs what 'instruction' generates; run the job with output.prompt" in message


@pytest.mark.parametrize("model", ["tiny", "endpoint"])
def test_a_row_that_a_step_does_not_ask_has_none(model: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = "model: {url: 'http://localhost:1/v1', name: x}\n" if model == "endpoint" else ""
    steps = "steps: {answer: {messages: chat, where: row <> 1}}\ndata: {path: chats.jsonl}\n"
    Path("some.yaml").write_text(f"defaults: [{{override /model: {model}}}]\n{url}{steps}")
    assert main(["prompt", "job=some.yaml", "row=1"]) == ExitCode.DONE
    assert capsys.readouterr().out == "the row has no prompt: it is not asked (where)\n"
