"""Tool calls of a job: forced, found, checked against their tools, and told where they are broken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from operators.generation.reasoning import Reasoning
from operators.generation.requests import BatchRow
from operators.generation.sampling_params import RowParams
from operators.generation.tool_calls import ToolReader
from operators.generation.tools import Tools
from operators.prompts.reasoning import HARMONY as HARMONY_TAGS
from operators.prompts.special_tokens import SpecialToken, SpecialTokens
from operators.prompts.tool_formats import FORMATS
from operators.settings import DataSettings, ModelSettings, SamplingSettings
from pipeline.api.errors import ExitCode
from pipeline.api.records import Batch
from pipeline.cli.main import main
from tests.operators.generation.test_reasoning import Vocabulary, row
from tests.sets import often, often_cases

pytestmark = pytest.mark.slow("runs jobs with a model in several formats")

MODEL = Path(__file__).parents[2] / "families/llama.gguf"
NUMBER = {"type": "integer", "minimum": 0, "maximum": 9}
ADD = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}
TOOLS = [
    {"type": "function", "function": {"name": "add", "parameters": ADD}},
    {"type": "function", "function": {"name": "now"}},
]
HERMES = 'Tools: {{ tools }} as <tool_call>{"name", "arguments"}</tool_call>\n{{ messages[0].content }}\n'


def ran(
    out: Path,
    *settings: str,
    rows: int = 8,
    code: int = ExitCode.DONE,
    template: str = HERMES,
    job: str = "generate",
    **columns: Any,
) -> list[dict[str, Any]]:
    """The rows of a job with a model of random weights. `columns`: their values, in turn."""
    data, chat, tools = out.with_suffix(".jsonl"), out.with_suffix(".jinja"), out.with_suffix(".json")
    own = [{name: values[i % len(values)] for name, values in columns.items()} for i in range(rows)]
    lines = [json.dumps({"prompt": f"Nr. {i}, please", **more}) + "\n" for i, more in enumerate(own)]
    data.write_text("".join(lines), encoding="utf-8")
    chat.write_text(template, encoding="utf-8")
    tools.write_text(json.dumps(TOOLS), encoding="utf-8")
    given = [f"model.path={MODEL}", f"data.path={data}", f"model.chat_template={chat}", f"output_dir={out}"]
    given += [] if any("tools_column" in setting for setting in settings) else [f"data.tools={tools}"]
    usual = ["sampling.max_tokens=120", "sampling.temperature=1", "progress=none"]
    assert main([f"job={job}", "model=gguf", *given, *usual, *settings]) == code
    if code == ExitCode.CONFIG:
        return []
    return pq.read_table(out / "data").sort_by("row").to_pylist()


def rejects(out: Path) -> list[dict[str, Any]]:
    return pq.read_table(out / "rejects").sort_by("row").to_pylist()


@pytest.mark.parametrize("form", often(FORMATS, "hermes", "harmony"))
def test_a_required_call_is_made_in_every_row_and_keeps_its_schema(tmp_path, form):
    found = ran(tmp_path / "out", "sampling.tools=required", f"model.tool_format={form}")
    assert len(found) == 8
    for one in found:
        (call,) = one["tool_calls"]
        arguments = json.loads(call["arguments"])
        jsonschema.validate(arguments, ADD if call["name"] == "add" else {"maxProperties": 0})
        assert (one["completion"], one["tool_error"], one["finish_reason"]) == ("", None, "stop")


def test_the_tool_of_that_name_is_called(tmp_path):
    now = ran(tmp_path / "now", "sampling.tools=now")
    assert {one["tool_calls"][0]["name"] for one in now} == {"now"}
    found = ran(tmp_path / "out", "sampling.tools=add")
    assert {one["tool_calls"][0]["name"] for one in found} == {"add"}
    assert len({one["tool_calls"][0]["arguments"] for one in found}) > 3


def test_rows_have_tools_and_choices_of_their_own(tmp_path):
    per_row = ("data.tools_column=known", "sampling.per_row=[tools]", "max_error_rate=0.5")
    known = [json.dumps(TOOLS), json.dumps(TOOLS[:1]), json.dumps(TOOLS[1:]), None, "[]", "{"]
    choices = ["add", "required", "required", None, "none", "add"]
    found = ran(tmp_path / "out", *per_row, rows=6, known=known, tools=choices, code=ExitCode.DONE)
    assert [one["row"] for one in found] == [0, 1, 2, 3, 4]
    calls = [one["tool_calls"] and one["tool_calls"][0]["name"] for one in found]
    assert calls == ["add", "add", "now", None, None]
    (reject,) = rejects(tmp_path / "out")
    assert "column 'known' is text that is not JSON" in reject["reason"]


def test_a_row_without_tools_cannot_be_forced_to_call_one(tmp_path):
    settings = ("data.tools_column=known", "sampling.tools=required", "max_error_rate=1")
    assert ran(tmp_path / "out", *settings, rows=2, known=[None, "[]"], code=ExitCode.DONE) == []
    assert all("the row has no tools" in reject["reason"] for reject in rejects(tmp_path / "out"))


def test_a_row_cannot_be_forced_to_call_in_an_unknown_format(tmp_path, caplog):
    settings = ("sampling.per_row=[tools]", "max_error_rate=1")
    template = "{{ tools }} {{ messages[0].content }}"
    found = ran(tmp_path / "out", *settings, template=template, tools=["required", "none", None, "add"])
    assert [one["row"] for one in found] == [1, 2, 5, 6]
    assert all("name it with model.tool_format=" in reject["reason"] for reject in rejects(tmp_path / "out"))
    assert "tool calls stay in the completion" not in caplog.text  # rows say themselves what they want


TEXTS = {
    '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>': (["add"], "", None),
    'So: <tool_call>{"name": "now", "arguments": {}}</tool_call>': (["now"], "So: ", None),
    "Nothing to call.": (None, "Nothing to call.", None),
    '<tool_call>{"name": "sub", "arguments": {}}</tool_call>': (
        None,
        None,
        "'sub' is called, and the tools are add, now",
    ),
    '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>': (None, None, "the arguments of add: $: 'b' is"),
    '<tool_call>{"name": "add", "arg': (None, None, "the text ends within a call"),
    '<tool_call>{"name": "now", "arguments": {"x": "\\ud800"}}</tool_call>': (None, None, "cannot be written as JSON"),
    '<tool_call>{"name": "now", "arguments": {"x": 1e999}}</tool_call>': (None, None, "cannot be written as JSON"),
}
"""What a model may say: names of the calls, the text beside them (None: the whole text), the error."""


def choices(tmp_path: Path) -> list[str]:
    """Settings that have the model say one of TEXTS."""
    grammar = tmp_path / "texts.lark"
    grammar.write_text("start: " + " | ".join(map(json.dumps, TEXTS)), encoding="utf-8")
    even = [f"sampling.{key}" for key in ("temperature=99", "top_k=0", "top_p=1", "min_p=0")]
    return [f"sampling.structured.grammar={grammar}", *even]


def test_calls_are_found_where_the_model_makes_them_and_a_broken_one_is_told(tmp_path):
    texts = ran(tmp_path / "raw", *choices(tmp_path), "output.completion_text=raw", rows=50)
    assert len({one["completion"] for one in texts}) > 5
    for split, one in zip(ran(tmp_path / "out", *choices(tmp_path), rows=50), texts, strict=True):
        names, content, error = TEXTS[one["completion"]]
        assert split["completion"] == (one["completion"] if content is None else content)
        assert (split["tool_calls"] and [call["name"] for call in split["tool_calls"]]) == names
        assert split["tool_error"] is None if error is None else error in split["tool_error"]
        assert (one["tool_calls"], one["tool_error"]) == (split["tool_calls"], split["tool_error"])


def test_a_forced_call_comes_behind_the_reasoning(tmp_path):
    template = HERMES + "<think>\n{# </think> #}"
    settings = ("sampling.tools=add", "sampling.thinking_budget=7")
    found = ran(tmp_path / "out", *settings, template=template)
    assert {one["reasoning_token_count"] for one in found} == {7}
    assert {one["tool_calls"][0]["name"] for one in found} == {"add"}
    raw = ran(tmp_path / "raw", *settings, "output.completion_text=raw", template=template)
    assert all(one["completion"].startswith(f"{one['reasoning']}</think><tool_call>") for one in raw)
    assert [one["tool_calls"] for one in raw] == [one["tool_calls"] for one in found]


def test_without_tools_or_with_none_there_is_no_column(tmp_path, caplog):
    assert "tool_calls" not in ran(tmp_path / "out", "sampling.tools=none")[0]
    assert "tool_calls" not in ran(tmp_path / "unknown", template="{{ tools }} {{ messages[0].content }}")[0]
    assert "name one with model.tool_format=" in caplog.text


@pytest.mark.parametrize(
    ("settings", "said"),
    often_cases(
        [
            (
                ("sampling.tools=sub",),
                "sampling.tools=sub is none of the tools; it is auto, required, none, or one of add, now",
            ),
            (("data.tools_column=tols",), "data.tools_column=tols is no column"),
            (("sampling.tools=ad",), "did you mean sampling.tools=add"),
            (("sampling.tools=''",), "auto, required, none, or the name of a tool"),
            (("sampling.tools=auto", "data.tools=null"), "needs tools; give data.tools"),
            (("sampling.tools=add", "sampling.stop=[x]"), "sampling.stop and sampling.tools=add cannot both be"),
            (("sampling.tools=add", "sampling.structured.choices=[a]"), "sampling.structured and sampling.tools=add"),
            (("sampling.tools=add", "model.chat_template=null"), "name it with model.tool_format="),
            (("model.tool_format=qwen",), "it is one of hermes, tags"),
            (("data.tools=[{type: function, function: {name: f, parameters: {type: 7}}}]",), "the tool f, at $.type"),
            (
                ("sampling.tools=f", "data.tools=[{function: {name: f, parameters: {properties: {a: {not: {}}}}}}]"),
                "a call of the tool f cannot be forced",
            ),
        ],
        ("sampling.tools=ad",),
        "name it with model.tool_format=",
        "a call of the tool f cannot be forced",
        "data.tools_column=tols is no column",
    ),
)
def test_what_cannot_work_is_exit_code_2(tmp_path, capfd, settings, said):
    ran(tmp_path / "out", *settings, code=ExitCode.CONFIG)
    assert said in capfd.readouterr().err


def test_the_tools_are_in_the_fingerprint():
    def identity(**tool: Any) -> str:
        data = DataSettings(tools=[{"function": {"name": "f", **tool}}])
        found = Tools.of(ModelSettings(tool_format="hermes"), data, SamplingSettings())
        assert found is not None
        return found.identity

    assert identity() != identity(parameters={"type": "object", "properties": {"a": {}}})


class Harmony(Vocabulary):
    """gpt-oss's control tokens, and what it says with them."""

    def __init__(self) -> None:
        super().__init__(controls=True)
        self.names += ["commentary", " to=functions.add ", "<|constrain|>", "json", '{"a": 1, ', '"b": 2}', "I look. "]
        self._pieces = [b"" if name.startswith("<") else name.encode() for name in self.names]

    @property
    def special_tokens(self) -> SpecialTokens:
        return SpecialTokens([SpecialToken(i, self.names[i]) for i, piece in enumerate(self._pieces) if not piece])


THOUGHT = ["<|channel|>", "analysis", "<|message|>", "so ", "<|end|>", "<|start|>", "assistant", "<|channel|>"]
CALL = ["commentary", " to=functions.add ", "<|constrain|>", "json", "<|message|>", '{"a": 1, ', '"b": 2}']
PREAMBLE = ["commentary", "<|message|>", "I look. ", "<|end|>", "<|start|>", "assistant", "<|channel|>"]


@pytest.mark.parametrize(
    ("said", "reasoning", "read"),
    [
        ([*THOUGHT, *CALL], "so ", ("", 1, None)),
        ([*THOUGHT, *PREAMBLE, *CALL], "so ", ("I look. ", 1, None)),
        (["<|channel|>", *CALL], None, ("", 1, None)),
        ([*THOUGHT, *CALL[:-1]], "so ", (None, 0, "the text ends within a call")),
        ([*THOUGHT, "final", "<|message|>", "yes"], "so ", (None, 0, None)),
        ([*THOUGHT[:4], *CALL], 'so commentary to=functions.add json{"a": 1, "b": 2}', (None, 0, None)),
        ([*THOUGHT[:-1]], "so assistant", (None, 0, None)),
    ],
)
def test_a_call_of_gpt_oss_ends_its_reasoning(said, reasoning, read):
    vocabulary = Harmony()
    reader = Reasoning(vocabulary, HARMONY_TAGS)  # type: ignore[arg-type]
    made = row(vocabulary, ["assistant"], said)
    data = pa.record_batch({"row": pa.array([0], pa.int64())})
    made.handle = BatchRow(Batch(data, 0), 0, 0)
    assert reader.split(made).reasoning == reasoning
    tools = Tools.of(ModelSettings(tool_format="harmony"), DataSettings(tools=TOOLS), SamplingSettings())
    assert tools is not None
    found = ToolReader(tools, vocabulary, reader).read(made, reasoned=reasoning is not None)  # type: ignore[arg-type]
    assert (found.content, len(found.calls or ()), found.error) == read


def test_a_text_ends_where_the_model_waits_for_the_result_of_a_tool():
    vocabulary = Harmony()
    vocabulary.names.append("<|tool_response>")
    vocabulary._pieces.append(b"")
    vocabulary.end_ids, vocabulary.n_vocab = frozenset({3}), len(vocabulary.names)  # type: ignore[attr-defined]
    vocabulary.suppressed_ids = ()  # type: ignore[attr-defined]
    tools = Tools.of(ModelSettings(tool_format="gemma"), DataSettings(tools=TOOLS), SamplingSettings())

    def stops(given: Tools | None, **sampling: Any) -> frozenset[int]:
        made = RowParams(SamplingSettings(**sampling), vocabulary, None, given).of(())  # type: ignore[arg-type]
        assert not isinstance(made, str)
        return made.params.stop_ids

    waits = vocabulary.names.index("<|tool_response>")
    assert stops(None) == {3}
    assert stops(tools) == {3, waits}
    assert stops(tools, ignore_eos=True) == {waits}


def test_of_a_row_that_wants_no_calls_the_text_is_kept(tmp_path):
    text = next(iter(TEXTS))
    grammar = tmp_path / "call.lark"
    grammar.write_text(f"start: {json.dumps(text)}", encoding="utf-8")
    settings = (f"sampling.structured.grammar={grammar}", "sampling.per_row=[tools]")
    found = ran(tmp_path / "out", *settings, tools=["none", None, "auto"])
    assert [bool(one["tool_calls"]) for one in found] == [i % 3 > 0 for i in range(8)]
    assert [one["completion"] for one in found] == [text if i % 3 == 0 else "" for i in range(8)]
