"""Jobs with steps: the same rows as their long form, whatever the slots and the restarts; errors that name the step."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from operators.steps.expand import GROUPS
from pipeline import PROJECT
from pipeline.api.errors import ExitCode
from pipeline.cli.main import main
from pipeline.config.expand import OVERRIDDEN, typed_key
from tests.pipeline.squares import files

pytestmark = pytest.mark.slow("runs whole jobs with the model that ships")

HEAD = f"""
defaults: [override /model: tiny]
data: {{path: {PROJECT}/jobs/data/self_instruct_seeds.jsonl, id_column: id, limit: 10}}
chunk_rows: 4
sampling: {{max_tokens: 96}}
"""
SHORT = """
steps:
  question: {prompt: "{{ prompt }}", sampling: {temperature: 1.0}}
  answer:   {prompt: "{{ question }} /think", system: Be brief., n: 3, sampling: {temperature: 0.7}}
  judge:    {prompt: "Question: {{ question }}\\nAnswer: {{ answer }}\\nIs it right?",
             choices: ["yes", "no"], keep: judge = 'yes'}
"""
PROMPTS = {
    "question": [("user", "{{ prompt }}")],
    "answer": [("system", "Be brief."), ("user", "{{ question }} /think")],
    "judge": [("user", "Question: {{ question }}\nAnswer: {{ answer }}\nIs it right?")],
}
SAMPLING: dict[str, dict[str, Any]] = {
    "question": {"temperature": 1.0},
    "answer": {"temperature": 0.7, "n": 3},
    "judge": {"structured": {"choices": ["yes", "no"]}},
}
COUNTS = ("finish_reason", "prompt_token_count", "completion_token_count", "seed")
WRITE = {"_target_": "operators.sinks.write_rows.WriteRows", "output": "${output}"}


def long_form() -> str:
    """The same job as a graph, every node and argument written out."""
    nodes: dict[str, Any] = {
        "read": {
            "op": {
                "_target_": "operators.sources.read_prompts.ReadPrompts",
                "data": "${data}",
                "chunk_rows": "${chunk_rows}",
            }
        }
    }
    before = "read"

    def add(name: str, target: str, **arguments: Any) -> None:
        nonlocal before
        nodes[name] = {"inputs": before, "op": {"_target_": f"operators.{target}", **arguments}}
        before = name

    for name, prompt in PROMPTS.items():
        messages = [{"role": role, "content": text} for role, text in prompt]
        add(f"{name}_prompt", "render.Render", model="${model}", data="${data}", messages=messages)
        add(f"{name}_tokens", "tokens.Tokenize", model="${model}")
        add(f"{name}_batch", "batch_by_length.BatchByLength", runtime="${runtime}")
        groups = {key: f"${{{key}}}" for key in ("model", "decode", "runtime", "store", "seed")}
        sampling = {"max_tokens": 96, **SAMPLING[name]}
        add(name, "generate.Generate", **groups, sampling=sampling, id_column="${data.id_column}", **{"as": name})
        drop = ["prompt_ids", "prompt_text", "prompt_literals"]
        add(f"{name}_names", "columns.Rename", columns={f"{name}_completion": name}, drop=drop)
        if name == "judge":
            add("judge_keep", "filter.Filter", where="judge = 'yes'", reason="keep: judge = 'yes'")
        add(f"{name}_columns", "columns.Select", drop=[f"{name}_{count}" for count in COUNTS])
    nodes["write"] = {"inputs": before, "op": WRITE}
    return str(yaml.safe_dump({"nodes": nodes}, sort_keys=False))


def run(tmp_path: Path, job: str, name: str, *settings: str) -> Path:
    """The results of a run that ends well."""
    (tmp_path / "job.yaml").write_text(HEAD + job, encoding="utf-8")
    out = tmp_path / name
    assert main([f"job={tmp_path / 'job.yaml'}", f"output_dir={out}", "progress=none", *settings]) == ExitCode.DONE
    return out


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> Path:
    return run(tmp_path_factory.mktemp("short"), SHORT, "out")


def test_steps_give_the_same_bytes_as_the_nodes_written_out(short, tmp_path):
    form = long_form()
    assert len((HEAD + form).splitlines()) > 110 > 30 > len((HEAD + SHORT).splitlines())
    assert files(run(tmp_path, form, "out")) == files(short)


def test_a_step_adds_a_column_of_its_name_and_leaves_no_other(short):
    data, rejects = (pq.read_table(short / kind) for kind in ("data", "rejects"))
    assert data.schema.names == ["id", "kind", "prompt", "row", "question", "lineage", "answer", "judge"]
    assert set(data["judge"].to_pylist()) == {"yes"}
    assert set(rejects["reason"].to_pylist()) == {"keep: judge = 'yes'"}
    assert data.num_rows + rejects.num_rows == 30


def test_what_a_step_generated_is_found_in_the_store(short, tmp_path, caplog):
    again = run(tmp_path, SHORT, "out", f"store.path={short / 'completions.sqlite'}")
    assert files(again) == files(short)
    assert sum(pq.read_table(again / "metrics/stages.parquet")["tokens_out"].to_pylist()) == 0


def test_the_command_line_changes_a_step_and_the_fingerprint_knows(short, tmp_path, capsys):
    (tmp_path / "job.yaml").write_text(HEAD + SHORT, encoding="utf-8")
    given = [f"job={tmp_path / 'job.yaml'}", f"output_dir={short}", "progress=none"]
    assert main(given) == ExitCode.DONE  # the same job is finished already
    assert main([*given, "steps.answer.n=2"]) == ExitCode.CONFIG
    assert "  steps.answer.n: 3 -> 2\n" in capsys.readouterr().err


@pytest.fixture(scope="module")
def dialogue(tmp_path_factory) -> Path:
    """The dialogue of docs/chat.md, and the same three turns written out as the messages of one step."""
    page = (PROJECT / "docs/chat.md").read_text(encoding="utf-8")
    (job,) = re.findall(r"<!-- file: dialogue.yaml -->\n```yaml\n(.*?)```", page, re.S)
    columns = ("prompt", "first", "doubt or 'Are you sure?'")
    roles = ("user", "assistant", "user")
    whole = [{"role": role, "content": f"{{{{ {text} }}}}"} for role, text in zip(roles, columns, strict=True)]
    more = f"  at_once: {{columns: [prompt_text], messages: {json.dumps(whole)}}}\n"
    folder = tmp_path_factory.mktemp("dialogue")
    (folder / "job.yaml").write_text(job + more, encoding="utf-8")
    return folder / "job.yaml"


def dialogue_with(job: Path, out: Path, *settings: str) -> list[dict[str, Any]]:
    small = ("data.limit=10", "chunk_rows=4", "sampling.max_tokens=24", "steps.second.columns=[prompt_text]")
    assert main([f"job={job}", f"output_dir={out}", "progress=none", *small, *settings]) == ExitCode.DONE
    return [row for path in sorted((out / "data").iterdir()) for row in pq.read_table(path).to_pylist()]


def test_turns_are_prompts_of_the_whole_conversation(dialogue, tmp_path):
    rows = dialogue_with(dialogue, tmp_path / "out")
    assert len(rows) == 10
    for row in rows:
        assert row["second_prompt_text"] == row["at_once_prompt_text"]
        assert row["second"] == row["at_once"]
        turns = [(m["role"], m["content"]) for m in json.loads(row["messages"])]
        assert turns == [
            ("user", row["prompt"]),
            ("assistant", row["first"]),
            ("user", row["doubt"] or "Are you sure?"),
            ("assistant", row["second"]),
        ]


@pytest.mark.parametrize(
    ("key", "typed"),
    [
        ("nodes.answer.op.sampling.n", "steps.answer.n"),
        ("nodes.answer.op.sampling.top_p", "steps.answer.sampling.top_p"),
        ("nodes.answer.op.where", "steps.answer.where"),
        ("nodes.answer_batch.op.runtime.slots", "steps.answer.runtime.slots"),
        ("nodes.answer_prompt.op.messages", "steps.answer.messages"),
        ("nodes.answer_prompt.inputs", "steps.answer.after"),
        ("nodes.answer_keep.op.where", "steps.answer.keep"),
        ("nodes.answer.model", "nodes.answer.model"),
        ("nodes.longest.op.where", "steps.longest.op.where"),
        ("nodes.write.op.output.format", "nodes.write.op.output.format"),
        ("sampling.n", "sampling.n"),
    ],
)
def test_a_key_of_the_fingerprint_is_named_as_a_step_has_it(key, typed):
    assert set(GROUPS) == set(OVERRIDDEN)
    nodes = ("answer", "answer_prompt", "answer_batch", "answer_keep")
    assert typed_key(key, {**dict.fromkeys(nodes, "answer"), "longest": "longest"}) == typed


CANNOT_WORK = [
    ("steps.answer.promt=x", "steps.answer has no key 'promt'; did you mean prompt?"),
    ("steps.answer.sampling.max_token=3", "step 'answer': sampling has no key 'max_token'; did you mean max_tok"),
    ("steps.answer.sampling.top_p=3", "step 'answer': sampling.top_p=3 cannot work"),
    ("steps.judge.prompt='{{ anser }}'", "step 'judge', node 'judge_prompt': the user message uses 'anser'"),
    ("steps.judge.prompt='{{ x '", "step 'judge', node 'judge_prompt': the user message, line 1: unexpected"),
    ("steps.judge.keep='jugde'", "step 'judge', node 'judge_keep': where='jugde'"),
    ("steps.question.after=judge", "step 'question' is on a cycle: question -> answer -> judge -> question"),
    ("steps.judge.after=anser", "step 'judge': after: anser is no step and no node; did you mean answer?"),
    (
        "steps.more={prompt: x, after: question}",
        "step 'judge', node 'judge_columns': its output is read by no node",
    ),
    ("steps.more={n: 2}", "step 'more': has neither prompt nor op"),
    ("steps.more=2", "step 'more': it is 2, and must be a mapping"),
    ("steps.kind={prompt: x}", "step 'kind', node 'kind_names': there is a column 'kind' already, so"),
    ("steps.judge_keep={prompt: x}", "step 'judge' makes a node 'judge_keep', and there is another"),
    ("steps.read={prompt: x}", "step 'read' makes a node 'read', and there is another"),
    ("steps.a-b={prompt: x}", "step 'a-b': it gives a column its name"),
    ("steps.answer.raw=true", "step 'answer': is raw, so the prompt is all that the model gets"),
    ("steps.judge.messages=chat", "step 'judge': has prompt and messages; keep one"),
    ("steps.more={messages: chat}", "step 'more', node 'more_prompt': messages=chat is no column; the input has"),
    ("steps.more={messages: chat, system: x}", "step 'more': has messages, which are the whole conversation"),
    (
        "steps.answer.where='row > 1'",
        "step 'answer': has where, which leaves rows without a completion, and n wants",
    ),
    ("steps.judge.where='rwo > 1'", "step 'judge', node 'judge_prompt': where='rwo > 1'"),
    ("steps.answer.probability=true", "step 'answer': has probability, which is that of one of its choices; add"),
    (
        "steps.judge={prompt: x, choices: ['a', 'b'], probability: true, n: 2}",
        "step 'judge': has probability, so nothing is drawn, and n says nothing; leave it out",
    ),
    (
        "steps.judge={prompt: x, choices: ['a', 'b'], probability: true, pick: best}",
        "step 'judge': has probability and pick: best, which goes by a score; add score, or",
    ),
    (
        "steps.judge={prompt: x, choices: ['a', 'b'], probability: true, columns: [seed]}",
        "step 'judge': columns has 'seed', which no completion has; there are completion, choice_index, cho",
    ),
    (
        "steps.judge={prompt: x, choices: ['a', 'b'], probability: true, model: {url: 'http://localhost:1/v1'}}",
        "step 'judge', node 'judge': Choose with a server needs model.api=completions; it is chat",
    ),
    (
        "steps.judge={prompt: x, choices: ['a', 'b'], probability: true,"
        " model: {url: 'http://localhost:1/v1', api: completions, dialect: llama_server}}",
        "step 'judge', node 'judge': model.dialect=llama_server: such a server has nothing for Choose",
    ),
    ("steps.judge.regex=x", "step 'judge': has choices and regex; keep one"),
    ("steps.judge.schema={a: strin}", "step 'judge': has choices and schema; keep one"),
    ("steps.answer.schema={a: strin}", "step 'answer': schema.a is 'strin', and a type is string, int"),
    ("steps.answer.columns=[sed]", "step 'answer': columns has 'sed', which no completion has; did you mean seed?"),
    ("steps.answer.columns=[completion]", "step 'answer': columns has 'completion', and that is what"),
    ("steps.judge.score=[5,1]", "step 'judge': score=[5, 1] cannot work: it is [least, most]"),
    ("steps.judge.pick=bets", "step 'judge': pick='bets' cannot work: it is one of all, best, majority"),
    ("steps.x={op: {_target_: operators.dedup.Dedup}, n: 3}", "step 'x': has op, so n says nothing"),
    ("steps.x={op: {_target_: operators.dedup.Dedup}}", "step 'x', node 'x': give columns, near or semantic"),
]
OFTEN = (
    *("steps.answer.promt=x", "steps.answer.sampling.top_p=3", "steps.judge.prompt='{{ anser }}'"),
    *("steps.question.after=judge", "steps.kind={prompt: x}", "steps.judge.regex=x", "steps.judge.pick=bets"),
)


MIXED = """
steps:
  distinct: {op: {_target_: operators.dedup.Dedup, columns: [prompt]}}
  facts:    {prompt: "{{ prompt }}", schema: {mood: [good, bad], sure: bool}, columns: [seed, prompt_text]}
  points:   {prompt: "Rate {{ facts }}", choices: ["1 of 5", "I say 4/5"], score: [1, 5], columns: [completion],
             extract: "{{ completion if row % 2 else '9' }}"}
  short:    {messages: [{role: user, content: "{{ points }}"}], extract: "{{ completion[:3] }}", after: words,
             sampling: {max_tokens: 8}}
nodes:
  words:
    inputs: points
    op: {_target_: operators.map.Map, columns: {length: length(prompt)}}
  write:
    op: {_target_: operators.sinks.write_rows.WriteRows}
"""


def test_every_kind_of_answer_has_its_columns_and_steps_mix_with_nodes(tmp_path):
    out = run(tmp_path, MIXED, "out", "max_error_rate=1")
    data, rejects = (pq.read_table(out / kind) for kind in ("data", "rejects"))
    types = {
        **{"id": pa.string(), "kind": pa.string(), "prompt": pa.string(), "row": pa.int64(), "facts_seed": pa.int64()},
        **{"facts": pa.string(), "facts_prompt_text": pa.string(), "facts_mood": pa.string(), "facts_sure": pa.bool_()},
        **{"points": pa.float64(), "points_completion": pa.string(), "length": pa.uint32(), "short": pa.string()},
    }
    assert {f.name: f.type for f in data.schema} == types
    assert (data["row"].to_pylist(), rejects["row"].to_pylist()) == ([1, 3, 5, 7, 9], [0, 2, 4, 6, 8])
    for row in data.to_pylist():
        assert row["points"] == {"1 of 5": 1.0, "I say 4/5": 4.0}[row["points_completion"]]
        assert row["facts_mood"] in ("good", "bad")
        assert len(row["short"]) <= 3
    for reject in rejects.to_pylist():
        assert (reject["node"], reject["reason"]) == ("points_value", "numbers.points: no number between 1 and 5")
        assert '"points": "' in reject["record"]
