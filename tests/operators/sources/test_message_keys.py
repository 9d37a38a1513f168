"""Conversations with other names of keys and roles are those of our own form."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from operators.render import Render
from operators.settings import DataSettings
from operators.sources.read_prompts import ReadPrompts
from pipeline.api.errors import ConfigError, SchemaError
from tests.operators.fakes import chat_model
from tests.operators.flow import Flow, chain
from tests.operators.sources.reading import read

CHATML = "{% for m in messages %}<{{ m.role }}:{{ m.name }}:{{ m.weight }}>{{ m.content }}{% endfor %}"
KEYS = {"from": "role", "value": "content"}
NAMES = {"user": "human", "assistant": "gpt", "system": "system", "tool": "tool"}
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from([*NAMES]), "content": st.text(st.characters(codec="utf-8"), max_size=8)},
    optional={"weight": st.none() | st.floats(0, 1), "name": st.text("aé", max_size=2)},
)
ROWS = st.lists(st.none() | st.lists(MESSAGES, max_size=4), min_size=1, max_size=6)


def sharegpt(messages: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    if messages is None:
        return None
    names = {"role": "from", "content": "value"}
    return [{names.get(k, k): NAMES[v] if k == "role" else v for k, v in message.items()} for message in messages]


def write(path: Path, conversations: list[Any]) -> Path:
    if path.suffix == ".parquet":
        made = pa.table({"chat": conversations})
        pq.write_table(made, path)
    else:
        as_text = path.stem == "text"
        values = [json.dumps(chat) if as_text and chat is not None else chat for chat in conversations]
        path.write_text("".join(json.dumps({"chat": chat}) + "\n" for chat in values))
    return path


def prompts(folder: Path, path: Path, **settings: Any) -> tuple[dict[int, str], Any]:
    """The texts of the prompts by row, and the counted reasons of the rows that have none."""
    data = DataSettings(path=str(path), messages_column="chat", **settings)
    flow = Flow(folder, chain(ReadPrompts(data, 3), render=Render(chat_model(CHATML), data)))
    texts = {row["row"]: row["prompt_text"] for row in flow.run()}
    return texts, flow.tally.by_reason


@pytest.mark.parametrize("name", ["chat.jsonl", "text.jsonl", "chat.parquet"])
@settings(max_examples=10, deadline=None)
@given(rows=ROWS)
def test_prompts_are_those_of_our_own_form(
    tmp_path_factory: pytest.TempPathFactory, name: str, rows: list[list[dict[str, Any]] | None]
) -> None:
    folder = tmp_path_factory.mktemp("chats")
    (folder / "ours").mkdir()
    if not any(rows):
        rows = [*rows, [{"role": "user", "content": "x"}]]
    ours = prompts(folder / "a", write(folder / "ours" / name, rows))
    theirs = prompts(folder / "b", write(folder / name, [sharegpt(row) for row in rows]), message_keys=KEYS)
    assert theirs == ours


def test_what_is_no_message_under_these_names_is_a_bad_row(tmp_path: Path) -> None:
    user = {"from": "human", "value": "x"}
    chats: list[Any] = [
        [user],
        [user, {"from": "bot", "value": "y"}],
        [user, {"from": "bard", "value": "y"}],
        [{**user, "role": "user"}],
        [{**user, "role": None}],
        [{"value": "x"}],
        ["x"],
        "no JSON",
    ]
    path = write(tmp_path / "text.jsonl", [chat if isinstance(chat, list) else None for chat in chats])
    path.write_text(path.read_text().replace("null}\n", '"no JSON"}\n'))
    settings: dict[str, Any] = {"message_keys": KEYS, "message_roles": {"bot": "assistant"}, "messages_column": "chat"}
    reading = read(path, **settings)
    assert {row: reject.reason for row, reject in reading.rejects.items()} == {
        2: "message 1 of column 'chat' has the role 'bard'; data.message_roles={bard: user} (or another of system,"
        " developer, user, assistant, tool) says whose turn it is",
        3: "message 0 of column 'chat' has 'role' twice, with the names of data.message_keys",
    }
    assert json.loads(reading.rows[1]["chat"])[1] == {"role": "assistant", "content": "y"}
    texts, reasons = prompts(tmp_path, path, message_keys=KEYS, message_roles={"bot": "assistant"})
    assert set(texts) == {0, 1, 4}
    assert Counter(node for node, _, _ in reasons.elements()) == {"source": 2, "render": 3}


def test_what_cannot_hold_such_messages_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "chat.parquet", [[{"from": "human", "value": "x"}]])
    for keys, column, why in (
        ({"speaker": "role"}, "chat", "names 'speaker'; messages of 'chat' have from, value"),
        (KEYS, "talk", "'talk' is no column of chat"),
    ):
        with pytest.raises(SchemaError, match=why):
            read(path, messages_column=column, message_keys=keys)
    with pytest.raises(ConfigError, match=r"data\.messages_column is not set; name the column"):
        DataSettings(message_keys=KEYS)
    with pytest.raises(SchemaError, match="messages are list<struct"):
        read(write(tmp_path / "n.parquet", [1]), messages_column="chat", message_keys=KEYS)
