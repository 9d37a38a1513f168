"""Every parameter of the table is honoured or refused; the table, the documentation and these cases name the same."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from operators.formats.lines import LINE, TEXT
from operators.openai.parse_batch import ParseBatch
from operators.openai.requests import CHAT, COMPLETIONS, EMBEDDINGS, FIELDS, PARAMETERS, read_line, request_of
from operators.openai.values import Code
from pipeline import PROJECT
from pipeline.api.records import ROW, Batch, Rejects
from tests.operators.openai.cases import ACCEPTED, REFUSED, REQUIRED, TOOL, cases
from tests.operators.test_generate import FAKE

SCHEMA = pa.schema([TEXT, LINE, ROW])
TEXT_PART = {"type": "text", "text": "a"}
TABLE = [(url, name) for url in PARAMETERS for name in PARAMETERS[url]]
TEMPLATE = Path(__file__).with_name("tools.jinja")


def line(body: Any, url: Any = CHAT, **envelope: Any) -> str:
    whole = {"custom_id": "a", "method": "POST", "url": url, "body": body} | envelope
    return json.dumps({key: value for key, value in whole.items() if value is not ...})


def parse(*lines: str, models: list[str] | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """The rows that lines become, and the reasons of those that are rejected."""
    op = ParseBatch(replace(FAKE, chat_template=str(TEMPLATE)), models)
    op.plan(SCHEMA)
    rows = [{"text": text, "line": i + 1, "row": i} for i, text in enumerate(lines)]
    out = list(op.process(Batch(0, pa.RecordBatch.from_pylist(rows, schema=SCHEMA))))
    made = [row for item in out if isinstance(item, Batch) for row in item.data.to_pylist()]
    return made, [reject.reason for item in out if isinstance(item, Rejects) for reject in item.rows]


def fault(*lines: str, **kwargs: Any) -> str:
    """The reason for which the last of `lines` is rejected."""
    rows, reasons = parse(*lines, **kwargs)
    assert {row["row"] for row in rows} == set(range(len(lines) - 1))
    (reason,) = reasons
    return reason


def test_the_table_and_the_cases_name_the_same_parameters():
    wanted = {name for _, name in TABLE if name != "logprobs"} | {f"{CHAT} logprobs", f"{COMPLETIONS} logprobs"}
    assert ACCEPTED.keys() | REFUSED.keys() == wanted
    assert all(cases(ACCEPTED, *key) or cases(REFUSED, *key) for key in TABLE)


def test_the_documentation_has_each_parameter_in_the_row_of_its_endpoints():
    page = (PROJECT / "docs/openai_batch.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| `(\w+)`( \(required\))? \| ([a-z, ]+) \|", page.partition("## Error codes")[0], re.M)
    short = {"chat": [CHAT], "completions": [COMPLETIONS], "embeddings": [EMBEDDINGS], "all": list(PARAMETERS)}
    rows = [(url, name, bool(needed)) for name, needed, where in found for w in where.split(", ") for url in short[w]]
    assert sorted(rows) == sorted((url, name, name in REQUIRED[url]) for url, name in TABLE)


@pytest.mark.parametrize(("url", "name"), TABLE)
def test_what_is_accepted_becomes_rows_and_what_is_not_is_an_error_that_names_it(url, name):
    """A row of dicts goes into the schema without a word about keys that are no column."""
    for value in cases(ACCEPTED, url, name):
        rows, reasons = parse(text := line(REQUIRED[url] | {name: value}, url))
        assert rows, (value, reasons)
        assert request_of(read_line(text), None)[0].keys() <= set(FIELDS.names)
    for value in cases(REFUSED, url, name):
        reason = fault(line(REQUIRED[url] | {name: value}, url))
        assert name in reason, value
        assert reason.split(":")[0] in {Code.INVALID_VALUE, Code.UNSUPPORTED_PARAMETER, Code.UNKNOWN_PARAMETER}


@pytest.mark.parametrize(("url", "name"), TABLE)
def test_a_null_is_as_if_the_parameter_was_not_there(url, name):
    if name in REQUIRED[url]:
        assert fault(line(REQUIRED[url] | {name: None}, url)) == f"missing_parameter: {name} is missing"
    else:
        assert parse(line(REQUIRED[url] | {name: None}, url)) == parse(line(REQUIRED[url], url))


@pytest.mark.parametrize("url", PARAMETERS)
def test_a_parameter_that_nobody_knows_is_an_error(url):
    assert fault(line(REQUIRED[url] | {"beam_width": 2}, url)).startswith("unknown_parameter: ")
    for _, name in TABLE:
        if name not in PARAMETERS[url]:
            assert "unknown_parameter" in fault(line(REQUIRED[url] | {name: 1}, url)), name


@pytest.mark.parametrize(
    ("url", "body", "said"),
    [
        (CHAT, {"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens and max_completion_tokens differ"),
        (CHAT, {"logprobs": False, "top_logprobs": 2}, "top_logprobs needs logprobs"),
        (CHAT, {"stop": "a", "response_format": {"type": "json_object"}}, "stop beside a response_format"),
        (CHAT, {"tool_choice": "required"}, 'tool_choice is "required", and there are no tools'),
        (CHAT, {"tools": [], "tool_choice": "auto"}, 'tool_choice is "auto", and there are no tools'),
        (CHAT, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "the tools are f"),
        (CHAT, {"tools": [TOOL], "tool_choice": "required", "stop": "a"}, "stop beside tool_choice"),
        (COMPLETIONS, {"echo": True, "logprobs": 1}, "echo beside logprobs"),
        (COMPLETIONS, {"best_of": 3, "n": 2}, "best_of other than n, which is 2"),
        (COMPLETIONS, {"prompt": ["a"] * 100, "n": 100}, "at most 2048 in all"),
        (EMBEDDINGS, {"input": ["a"] * 2049}, "at most 2048 in all"),
    ],
)
def test_parameters_that_contradict_each_other_are_an_error(url, body, said):
    assert said in fault(line(REQUIRED[url] | body, url))


def test_parameters_arrive_as_the_columns_that_override_sampling():
    body = REQUIRED[CHAT] | {"max_completion_tokens": 5, "stop": "x", "top_p": 0, "logit_bias": {"7": 1}, "n": 1}
    ((row,), _) = parse(line(body | {"logprobs": True, "top_logprobs": 2, "temperature": 1}))
    said = {key: row[key] for key in ("max_tokens", "stop", "logprobs", "logit_bias", "temperature", "min_tokens")}
    assert said == {
        "max_tokens": 5,
        "stop": ["x"],
        "logprobs": 2,
        "logit_bias": [{"token": 7, "bias": 1.0}],
        "temperature": 1.0,
        "min_tokens": None,
    }
    assert 0 < row["top_p"] < 1e-6


@pytest.mark.parametrize(
    ("body", "given"),
    [
        ({}, None),
        ({"reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"reasoning_effort": "none"}, {"reasoning_effort": "none", "enable_thinking": False}),
        ({"reasoning_effort": "low", "chat_template_kwargs": {"a": 1}}, {"reasoning_effort": "low", "a": 1}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"enable_thinking": False}),
    ],
)
def test_arguments_of_the_chat_template_arrive_as_json(body, given):
    ((row,), _) = parse(line(REQUIRED[CHAT] | body))
    assert row["template_kwargs"] == (None if given is None else json.dumps(given))


def test_choices_are_the_samples_of_the_first_prompt_and_then_those_of_the_next():
    rows, _ = parse(line({"model": "m", "prompt": ["a", "b"], "n": 2, "seed": 5}, COMPLETIONS))
    assert [(row["prompt"], row["sample"], row["lineage"], row["choices"]) for row in rows] == [
        ("a", 0, [0], 4),
        ("a", 1, [1], 4),
        ("b", 0, [2], 4),
        ("b", 1, [3], 4),
    ]
    assert [row["max_tokens"] for row in rows] == [16] * 4
    seeds = [row["seed"] for row in rows]
    assert seeds[0] == seeds[2] == 5
    assert len(set(seeds)) == 2


DEEP = (101, *range(880, 1000, 7), 100_000)
"""Brackets: what is read may be too deep to be written again, for a message or a schema."""
MALFORMED = [
    ("", "invalid_line"),
    ('{"custom_id": "a"', "invalid_line"),
    ("[1]", "invalid_line"),
    ("null", "invalid_line"),
    ("[" * 100_000, "invalid_line"),
    ('{"custom_id": "a", "custom_id": "b"}', "invalid_line"),
    (line({**REQUIRED[CHAT], "temperature": float("nan")}), "invalid_line"),
    (line({**REQUIRED[CHAT], "user": "\ud800"}), "invalid_line"),
    (line(REQUIRED[CHAT], custom_id=...), "invalid_custom_id"),
    (line(REQUIRED[CHAT], custom_id=""), "invalid_custom_id"),
    (line(REQUIRED[CHAT], custom_id=3), "invalid_custom_id"),
    (line(REQUIRED[CHAT], method="GET"), "invalid_method"),
    (line(REQUIRED[CHAT], method=...), "invalid_method"),
    (line(REQUIRED[CHAT], url="/v1/chat"), "invalid_url"),
    (line(REQUIRED[CHAT], url=[CHAT]), "invalid_url"),
    (line(REQUIRED[CHAT], url=...), "invalid_url"),
    (line([]), "invalid_line"),
    (line(None), "invalid_line"),
    (line(...), "invalid_line"),
    (line(REQUIRED[CHAT], extra=1), "invalid_line"),
    (line({**REQUIRED[CHAT], "temperature": 10**400}), "invalid_value"),
    (line({**REQUIRED[CHAT], "top_p": 0.5}).replace("0.5", "1e999"), "invalid_value"),
    (line({**REQUIRED[CHAT], "logit_bias": {"1" * 5000: 1}}), "invalid_value"),
    *(
        (line({"model": "m", "input": 0}, EMBEDDINGS).replace("0}", "[" * n + "]" * n + "}"), "invalid_line")
        for n in DEEP
    ),
]


@pytest.mark.parametrize(("text", "code"), MALFORMED, ids=range(len(MALFORMED)))
def test_a_malformed_line_costs_itself(text, code):
    assert fault(line(REQUIRED[CHAT], custom_id="before"), text).startswith(f"{code}: ")


def test_of_two_lines_with_one_custom_id_the_earlier_counts():
    rows, reasons = parse(line(REQUIRED[CHAT]), line(REQUIRED[EMBEDDINGS], EMBEDDINGS), line(REQUIRED[CHAT]))
    assert [row["row"] for row in rows] == [0]
    assert reasons == ["duplicate_custom_id: an earlier line has the custom_id 'a' too"] * 2


def test_a_resumed_run_knows_the_custom_ids_of_the_chunks_before_and_of_no_other():
    op = ParseBatch(FAKE)
    op.plan(SCHEMA)
    for chunk, name in enumerate("abc"):
        row = {"text": line(REQUIRED[CHAT], custom_id=name), "line": 1, "row": chunk}
        list(op.process(Batch(chunk, pa.RecordBatch.from_pylist([row], schema=SCHEMA))))
    resumed = ParseBatch(FAKE)
    added = [op.state(chunk) for chunk in range(3)]
    assert [len(each) for each in added] == [16, 16, 16]  # of its own chunk and no other
    resumed.restore(added[:2])
    resumed.plan(SCHEMA)
    rows = [{"text": line(REQUIRED[CHAT], custom_id=name), "line": 1, "row": i} for i, name in enumerate("abc", 1)]
    out = list(resumed.process(Batch(1, pa.RecordBatch.from_pylist(rows, schema=SCHEMA))))
    assert [type(item) for item in out] == [Rejects, Rejects, Batch]
    assert [row["custom_id"] for row in out[2].data.to_pylist()] == ["c"]  # type: ignore[union-attr]


def test_models_are_looked_at_where_the_job_names_some():
    assert parse(line(REQUIRED[CHAT]), models=["m"])[0]
    assert fault(line(REQUIRED[CHAT]), models=["x"]) == "model_not_found: model is 'm'; this job answers for x"


def test_images_are_for_models_that_read_them():
    """As parts with `data:` URLs or URLs, which the row's messages have as they came."""
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    asked = line({"model": "m", "messages": [{"role": "user", "content": [TEXT_PART, part]}]})
    assert "unsupported_parameter: a part of the type image_url is not supported" in fault(asked)
    op = ParseBatch(replace(FAKE, chat_template=str(TEMPLATE), mmproj="mmproj.gguf"))
    op.plan(SCHEMA)
    (batch,) = op.process(Batch(0, pa.RecordBatch.from_pylist([{"text": asked, "line": 1, "row": 0}], schema=SCHEMA)))
    assert isinstance(batch, Batch)
    (row,) = batch.data.to_pylist()
    assert json.loads(row["messages"]) == [{"role": "user", "content": [TEXT_PART, part]}]
    for url in ("a.png", "file:///etc/passwd", "data:text/html,x"):
        other = {"type": "image_url", "image_url": {"url": url}}
        reason = fault(line({"model": "m", "messages": [{"role": "user", "content": [other]}]}))
        assert "not a URL that begins with data:image/, http:// or https://" in reason
