"""The parts of a body, and rows with values of their own."""

from __future__ import annotations

import json

import pytest

from operators.endpoint.api.bodies import Bodies
from operators.endpoint.api.dialects import COMPLETIONS, NAMES
from operators.settings import DataSettings, SamplingSettings
from operators.settings.structured import StructuredSettings
from pipeline.api.errors import ConfigError
from tests.operators.endpoint.api.asked import HI, PLAIN, SCHEMA, TOOLS, bodies, body, completion, refusal, server


def test_a_text_is_a_prompt_or_the_users_message():
    assert completion("openai", logprobs=3, structured=StructuredSettings()) == {
        "model": "m",
        "prompt": "once",
        "temperature": 1.0,
        "max_tokens": 256,
        "logprobs": 3,
        "seed": 5,
    }
    made = bodies("openai").of("hi", {}, 5)
    assert isinstance(made, dict)
    assert made["messages"] == HI
    refused = bodies("vllm", model=server(api=COMPLETIONS)).of(HI, {}, 5)
    assert refused == "the row has messages, and model.api=completions takes a text; write model.api=chat"


def test_seeds_are_cut_to_31_bits():
    assert body("vllm", {"seed": 2**62 + 7})["seed"] == 7
    assert body("vllm", {"seed": -1})["seed"] == 2**31 - 1


def test_a_schema_in_each_dialect():
    structured = StructuredSettings(json_schema=json.dumps(SCHEMA))
    named = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    for dialect in ("openai", "vllm", "sglang", "llama_server"):
        assert body(dialect, structured=structured)["response_format"] == named
    assert body("llama_cpp_python", structured=structured)["response_format"] == {
        "type": "json_object",
        "schema": SCHEMA,
    }
    assert completion("llama_server", structured=structured)["json_schema"] == SCHEMA
    assert completion("vllm", structured=structured)["response_format"] == named
    said = refusal("openai", model=server(api=COMPLETIONS), structured=structured)
    assert "openai has no key for it in model.api=completions; in model.api=completions vllm, sglang" in said


def test_regex_choices_and_grammars():
    assert body("vllm", structured=StructuredSettings(regex="a+"))["structured_outputs"] == {"regex": "a+"}
    assert body("sglang", structured=StructuredSettings(regex="a+"))["regex"] == "a+"
    choices = StructuredSettings(choices=["yes", 'say "no"\n', "ü\x01"])
    grammar = 'root ::= "yes" | "say \\"no\\"\\n" | "ü\\x01"'
    assert body("vllm", structured=choices)["structured_outputs"] == {"choice": choices.choices}
    assert body("sglang", structured=choices)["ebnf"] == grammar
    assert body("llama_server", structured=choices)["grammar"] == grammar
    assert completion("llama_cpp_python", structured=choices)["grammar"] == grammar
    lark = StructuredSettings(grammar="start: /a+/")
    assert body("vllm", structured=lark)["structured_outputs"] == {"grammar": "start: /a+/"}


def test_a_grammar_may_be_a_file(tmp_path):
    (tmp_path / "a.gbnf").write_text('root ::= "a"')
    structured = StructuredSettings(grammar=str(tmp_path / "a.gbnf"))
    assert body("llama_server", structured=structured)["grammar"] == 'root ::= "a"'


def test_a_choice_among_tools():
    data = DataSettings(tools=TOOLS)
    for dialect in NAMES:
        plain = body(dialect, {"tools": TOOLS}, data=data)
        assert (plain["tools"], plain["tool_choice"]) == (TOOLS, "auto")
        assert body(dialect, {"tools": TOOLS}, data=data, tools="none")["tool_choice"] == "none"
        assert "tools" not in body(dialect, {"tools": []}, data=data)
    assert body("vllm", {"tools": TOOLS}, data=data, tools="required")["tool_choice"] == "required"
    named = {"type": "function", "function": {"name": "sum"}}
    assert body("openai", {"tools": TOOLS}, data=data, tools="sum")["tool_choice"] == named
    made = body("llama_server", {"tools": TOOLS}, data=data, tools="sum")
    assert (made["tools"], made["tool_choice"]) == ([TOOLS[1]], "required")


def test_tools_that_cannot_be_sent():
    data = DataSettings(tools=TOOLS)
    assert "llama_cpp_python forces no call but one" in refusal("llama_cpp_python", data=data, tools="required")
    said = refusal("openai", data=data, model=server(api=COMPLETIONS))
    assert "tools are of model.api=chat" in said
    asked = bodies("vllm", data=data, tools="add")
    assert asked.of(HI, {}, 5, TOOLS) == "sampling.tools=add is none of the tools; they are now, sum"
    assert asked.of(HI, {}, 5, []) == "sampling.tools=add forces a call, and the row has no tools"
    both = bodies("vllm", data=data, tools="sum", structured=StructuredSettings(json_schema=SCHEMA))
    assert "cannot both be" in str(both.of(HI, {}, 5, TOOLS))


def test_template_arguments_and_a_message_to_continue():
    sampling = SamplingSettings(**PLAIN)
    data = DataSettings(continue_final_message=True)
    made = Bodies(server(dialect="vllm", template_kwargs={"enable_thinking": False, "a": 1}), sampling, data, "ask")
    found = made.of(HI, {}, 5, kwargs={"a": 2})
    assert isinstance(found, dict)
    assert found["chat_template_kwargs"] == {"enable_thinking": False, "a": 2}
    assert (found["continue_final_message"], found["add_generation_prompt"]) == (True, False)
    with pytest.raises(ConfigError, match=r"ask: model\.template_kwargs=\{'a': 1\} cannot be sent: openai has no key"):
        Bodies(server(dialect="openai", template_kwargs={"a": 1}), sampling, None, "ask")
    with pytest.raises(ConfigError, match=r"data\.continue_final_message=true cannot be sent"):
        Bodies(server(dialect="openai"), sampling, data, "ask")


def test_keys_of_the_job_come_last_and_null_removes_one():
    extra = {"seed": None, "max_completion_tokens": None, "max_tokens": 9, "top_k": 3, "stop": ["x"]}
    made = body("openai", model=server(extra_body=extra), top_k=40, stop=["y"])
    assert made == {"model": "m", "messages": HI, "temperature": 1.0, "max_tokens": 9, "top_k": 3, "stop": ["x"]}


def test_columns_override_settings():
    made = bodies("vllm", per_row=["temperature", "top_k", "seed", "n", "stop", "logit_bias"])
    assert made.columns == ["temperature", "top_k", "stop", "logit_bias"]
    row = {"temperature": 0.5, "top_k": 20.0, "stop": None, "logit_bias": [{"token": 3, "bias": 1.0}]}
    assert made.of(HI, row, 5) == body("vllm") | {"temperature": 0.5, "top_k": 20, "logit_bias": {"3": 1.0}}
    cold = made.of(HI, {"temperature": 0.0}, 5)
    assert isinstance(cold, dict)
    assert not cold.keys() & {"seed", "top_k", "top_p", "min_p"}
    assert made.of(HI, {}, 5) == body("vllm")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"temperature": -1.0}, "column 'temperature' has -1.0; allowed: 0 (greedy) to 100"),
        ({"temperature": "hot"}, "have values of a type that cannot be used"),
        ({"logit_bias": 3}, "have values of a type that cannot be used"),
        ({"stop": list("abcde")}, "openai takes 4 strings at most"),
        ({"max_tokens": 2}, "under its columns the row has min_tokens 3"),
    ],
)
def test_a_row_with_values_that_cannot_be_sent_has_a_reason(row, reason):
    extra = server(extra_body={"min_tokens": 3})
    made = bodies("openai", model=extra, min_tokens=3, per_row=["temperature", "stop", "logit_bias", "max_tokens"])
    said = made.of(HI, row, 5)
    assert isinstance(said, str)
    assert reason in said


def test_a_row_that_becomes_warm_shows_what_cannot_be_sent():
    made = bodies("openai", temperature=0.0, top_k=40, per_row=["temperature"])
    assert isinstance(made.of(HI, {}, 5), dict)
    assert "sampling.top_k=40 cannot be sent" in str(made.of(HI, {"temperature": 0.5}, 5))


def test_a_schema_of_its_own():
    made = bodies("vllm", structured=StructuredSettings(json_schema_column="schema"))
    found = made.of(HI, {}, 5, schema=json.dumps(SCHEMA))
    assert isinstance(found, dict)
    assert found["response_format"]["json_schema"]["schema"] == SCHEMA
    assert made.of(HI, {}, 5) == "column 'schema' is null; it has to hold the JSON schema of the row"
    assert "is no JSON" in str(made.of(HI, {}, 5, schema="{"))
    assert "has no text that fits" in str(made.of(HI, {}, 5, schema="false"))
    optional = bodies("vllm", structured=StructuredSettings(json_schema_column="schema", optional=True))
    assert optional.of(HI, {}, 5) == body("vllm")
    assert "cannot be sent" in refusal(
        "openai", model=server(api=COMPLETIONS), structured=StructuredSettings(json_schema_column="schema")
    )


def test_a_body_is_the_rows_own():
    made = bodies("vllm")
    first = made.of(HI, {}, 5)
    assert isinstance(first, dict)
    first["temperature"] = 9
    assert made.of(HI, {}, 5) == body("vllm")
