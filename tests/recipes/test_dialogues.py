"""The job dialogues: three turns, a forced call, its result, and prompts that are those of the whole conversation."""

from __future__ import annotations

import json
import operator
from pathlib import Path

from operators.prompts.messages import conversation
from operators.prompts.template import Template
from pipeline.config.jobs import JOBS
from tests.recipes.shipped import recipe, run

CALCULATED = {"add": operator.add, "subtract": operator.sub, "multiply": operator.mul}
ROLES = ["user", "assistant", "tool", "assistant", "user", "assistant", "user", "assistant"]


def test_without_a_call_the_answer_is_the_turn(tmp_path: Path) -> None:
    job = recipe("dialogues")
    job["steps"]["call"]["sampling"] = {"tools": "auto", "max_tokens": 8}
    data, rejects = run(job, tmp_path, 4)
    assert (len(data), rejects) == (4, [])
    for row in data:
        assert [message["role"] for message in json.loads(row["messages"])] == ["user", "assistant"] * 3


def test_a_tool_answers_the_call_of_the_first_of_three_turns(tmp_path: Path) -> None:
    job = recipe("dialogues")
    job["steps"]["third"]["columns"] = ["prompt_text"]
    job["steps"]["dataset"]["op"]["columns"].append("third_prompt_text")
    data, rejects = run(job, tmp_path, 8)
    assert (len(data), rejects) == (8, [])
    hermes = Template((JOBS / "data/hermes.jinja").read_text(encoding="utf-8"), "hermes", strict=False)
    for row in data:
        messages = json.loads(row["messages"])
        assert [message["role"] for message in messages] == ROLES
        assert messages[0]["content"] == row["question"]
        (call,) = messages[1]["tool_calls"]
        arguments = json.loads(call["function"]["arguments"])
        assert (call["id"], call["function"]["name"]) == ("call00000", "calculate")
        assert all(0 <= arguments[key] <= 999 for key in ("a", "b"))
        result = CALCULATED[arguments["operation"]](arguments["a"], arguments["b"])
        assert (messages[2]["tool_call_id"], json.loads(messages[2]["content"])) == ("call00000", {"result": result})
        before = [{"content": "", **message} for message in conversation(messages[:-1], "messages")]
        values = {"messages": before, "tools": job["data"]["tools"], "add_generation_prompt": True}
        assert row["third_prompt_text"] == hermes.render(values)
