"""Render: images of columns and of parts of messages, as marks in the text and files beside it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from operators.images.columns import IMAGE, IMAGE_MARK, are_of_columns
from operators.prompts.messages import may_have_parts
from operators.prompts.special_tokens import SpecialToken, SpecialTokens
from operators.render import Render
from operators.settings import DataSettings, ModelSettings
from pipeline.api.errors import ConfigError, SchemaError
from pipeline.api.records import Batch
from tests.operators.fakes import chat_model
from tests.operators.flow import Flow, Rows, chain
from tests.operators.test_render import TURNS, user

PARTS = (
    "{% for m in messages %}[{{ m.role }}]{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% endif %}"
    "{% endfor %}{% endfor %}[assistant]"
)
"""A template that takes contents as parts alone."""
SCHEMA = pa.schema([("prompt", pa.string()), ("page", IMAGE), ("more", pa.list_(pa.string()))])
TEXT = pa.schema([("chat", pa.string())])
A, B, C = ({"bytes": content, "path": None} for content in (b"A", b"B", b"C"))
I = IMAGE_MARK  # noqa: E741


def url(image: dict[str, Any]) -> str:
    return f"data:image/png;base64,{base64.b64encode(image['bytes']).decode()}"


def model(template: str | None = TURNS, **options: Any) -> ModelSettings:
    settings = chat_model(template, **options)
    settings.mmproj = "mmproj.gguf"
    return settings


def rendered(tmp_path: Path, rows: list[dict[str, Any]], schema: pa.Schema, op: Render) -> tuple[list[Any], list[str]]:
    """The texts with their images, and the reasons of the rejects."""
    flow = Flow(tmp_path, chain(Rows(rows, schema), render=op))
    return [(row["prompt_text"], row["prompt_images"]) for row in flow.run()], [r for _, _, r in flow.tally.by_reason]


def test_images_of_columns_come_before_the_text_of_the_last_user_message(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"prompt": "hi", "page": A, "more": [url(B), url(C)]},
        {"prompt": "hi", "page": None, "more": []},
        {"prompt": "hi", "page": None, "more": [url(C)]},
    ]
    op = Render(model(), DataSettings(), images=["page", "more"])
    wanted = [(f"[user]{I * 3}hi[assistant]", [A, B, C]), ("[user]hi[assistant]", None)]
    assert rendered(tmp_path, rows, SCHEMA, op) == ([*wanted, (f"[user]{I}hi[assistant]", [C])], [])
    turns = [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}]
    op = Render(
        model(PARTS), DataSettings(image_column="page"), messages=[*turns, {"role": "user", "content": "{{ prompt }}"}]
    )
    assert rendered(tmp_path, rows[:1], SCHEMA, op)[0] == [(f"[user]2 + 2?[assistant]4[user]{I}hi[assistant]", [A])]


@pytest.mark.parametrize("template", [None, TURNS])
def test_a_template_may_say_where_its_images_stand(tmp_path: Path, template: str | None) -> None:
    row: dict[str, Any] = {"prompt": "hi", "page": A, "more": [url(B), url(C)]}
    data = DataSettings(prompt_template="{{ more[1] }}: {{ prompt }} {{ page }}{% if more %}!{% endif %}")
    op = Render(model(template), data, images=["page", "more"])
    text = f"{I}{I}: hi {I}!"
    text = text if template is None else f"[user]{text}[assistant]"
    assert rendered(tmp_path, [row], SCHEMA, op)[0] == [(text, [B, C, A])]
    whole = Render(model(TURNS), DataSettings(image_column="more"), template="<s>{{ prompt }} {{ more }}")
    assert rendered(tmp_path, [row], SCHEMA, whole)[0] == [(f"hi {I}{I}", [B, C])]
    twice = Render(model(TURNS), DataSettings(image_column="page"), template="{{ page }} {{ page }}")
    assert "it has to print each once" in rendered(tmp_path, [row], SCHEMA, twice)[1][0]


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


@pytest.mark.parametrize("template", [TURNS, PARTS])
@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": url(A), "detail": "low"}},
        {"type": "image_url", "image_url": url(A)},
        {"type": "input_image", "image_url": url(A)},
        {"type": "image", "image": url(A)},
        {"type": "image", "base64": base64.b64encode(b"A").decode()},
        {"type": "image", "url": url(A), "text": None},
    ],
)
def test_parts_with_images_are_marks_in_their_place(tmp_path: Path, part: Any, template: str) -> None:
    content = [text("see"), part, text("and"), part, part, text("so"), text("on")]
    op = Render(model(template), DataSettings(messages_column="chat"))
    line = "\n" if template == TURNS else ""
    wanted = [(f"[user]see{I}and{I}{I}so{line}on[assistant]", [A] * 3)]
    chat = [{"role": "user", "content": content}]
    assert rendered(tmp_path, [{"chat": json.dumps(chat)}], TEXT, op)[0] == wanted


NO_BLANK = (
    "{% for m in messages %}{{ m.role }}{% if m.content[0].type == 'image' %}:{% else %}: {% endif %}"
    "{% for p in m.content %}{% if p.type == 'image' %}<img>{% else %}{{ p.text }}{% endif %}{% endfor %}{% endfor %}"
)
FIRST = (
    "{% for m in messages %}{{ m.role }}: {% for p in m.content if p.type == 'image' %}<|a|><|b|>\n{% endfor %}"
    "{% for p in m.content if p.type == 'text' %}{{ p.text }}{% endfor %}{% endfor %}"
)
RAISES = "{% for m in messages %}{% for p in m.content %}{{ {'text': p.text}[p.type] | upper }}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (NO_BLANK, [f"user:{I}hi", f"user: a{I}b{I}", f"user: {I}an <img>", "user: hi"]),
        (FIRST, [f"user: {I}\nhi", f"user: {I}\n{I}\nab", f"user: {I}\nan <img>", "user: hi"]),
        (RAISES, [f"{I}HI", f"A{I}B{I}", f"{I}AN <IMG>", "HI"]),
    ],
    ids=["no blank before", "images first", "no images"],
)
def test_a_template_that_takes_parts_prints_around_images_what_it_has_learnt(tmp_path, template, wanted):
    """Unless the text of the row has what it prints for an image, which nobody could tell apart then."""
    image = {"type": "image", "image": url(A)}
    contents = [[image, text("hi")], [text("a"), image, text("b"), image], [image, text("an <img>")], [text("hi")]]
    rows = [{"chat": json.dumps([{"role": "user", "content": content}])} for content in contents]
    texts, reasons = rendered(tmp_path, rows, TEXT, Render(model(template), DataSettings(messages_column="chat")))
    assert not reasons
    assert [found for found, _ in texts] == wanted


def test_parts_that_only_say_where_take_the_images_of_the_column(tmp_path: Path) -> None:
    """In their order; where the messages have no such part, all come before the first user message. Else the numbers
    have to be equal."""
    here, turn = {"type": "image"}, {"role": "assistant", "content": "ok"}
    chats = [
        [{"role": "user", "content": [here, text("a"), here]}, turn, {"role": "user", "content": "more"}],
        [{"role": "user", "content": "a"}, turn, {"role": "user", "content": [text("b")]}],
        [{"role": "user", "content": [here, text("a")]}],
        [{"role": "user", "content": [here, here, here]}],
        [{"role": "user", "content": [here, {"type": "image", "image": url(C)}, here]}],
        [{"role": "user", "content": [here | {"index": 0}, here | {"index": 1, "detail": "low", "text": None}]}],
        [{"role": "user", "content": [here | {"index": 1}, here | {"index": 0}]}],
    ]
    schema = pa.schema([*TEXT, *SCHEMA])
    rows = [{"chat": json.dumps(chat), "more": [url(A), url(B)]} for chat in chats]
    op = Render(model(), DataSettings(messages_column="chat", image_column="more"))
    texts, reasons = rendered(tmp_path, rows, schema, op)
    assert texts == [
        (f"[user]{I}a{I}[assistant]ok[user]more[assistant]", [A, B]),
        (f"[user]{I * 2}a[assistant]ok[user]b[assistant]", [A, B]),
        (f"[user]{I * 3}[assistant]", [A, C, B]),
        (f"[user]{I * 2}[assistant]", [A, B]),
    ]
    assert [reason.replace("N", "#") for reason in reasons] == [
        "the messages have # image parts, and the columns of images have #; give each its part, or none",
        "message # of column '…': an image part without an image, number #, and the columns of images have #",
        "message # of column '…': image part # of the row has the index #, and parts take the images of columns in"
        " their order, from #; give it the index # or none, or the image itself",
    ]


@pytest.mark.parametrize(
    ("chat", "says"),
    [
        ([{"role": "user", "content": f"a{I}"}], "a text of the row has the character U+FDD"),
        ([{"role": "user", "content": [text("a"), text(f"{I}b")]}], "a text of the row has the character U+FDD"),
        ([{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "x"}}]}], "has a part of type"),
        ([{"role": "user", "content": [{"type": "input_audio"}]}], "and only texts and images can be read"),
        ([{"role": "user", "content": [{"type": "image", "image": "a.png"}]}], "'…' is not there (looked below no fol"),
        ([{"role": "user", "content": [{"type": "image"}]}], "data.image_column is not set"),
        ([{"role": "user", "content": [{"text": "a", "image": url(A)}]}], "has a part with both a text and an image"),
        ([{"role": "user", "content": [text("a") | {"image_url": {"url": url(A)}}]}], "with both a text and an image"),
        ([{"role": "user", "content": [{"type": "image", "image": url(A), "text": "a"}]}], "with both a text and an i"),
        ([{"role": "user", "content": [text("") | {"image": url(A)}]}], "has a part with an image and another type"),
        ([{"role": "user", "content": [{"type": "image", "source": {"data": "AA=="}}]}], "an image part with '…', whi"),
        (
            [{"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}],
            "an image part with '…', which is n",
        ),
        ([{"role": "lost", "content": [{"type": "image", "image": url(A)}]}], "the template prints N of them"),
    ],
)
def test_what_has_no_place_costs_its_row(tmp_path: Path, chat: Any, says: str) -> None:
    template = "{% for m in messages if m.role != 'lost' %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    rows = [{"chat": json.dumps(chat)}, {"chat": json.dumps(chat, ensure_ascii=False)}]
    texts, reasons = rendered(tmp_path, rows, TEXT, Render(model(template), DataSettings(messages_column="chat")))
    assert not texts
    assert says in reasons[0]


def test_names_of_tokens_beside_images_stay_text(tmp_path: Path) -> None:
    tokens = SpecialTokens([SpecialToken(1, "<s>"), SpecialToken(2, "</s>"), SpecialToken(3, "<|end|>")])
    row = {"prompt": "a<|end|>b", "page": A, "more": [url(B)]}
    data = DataSettings(prompt_template="{{ more }}{{ prompt }}")
    op = Render(model(special_tokens=tokens), data, images=["page", "more"])
    flow = Flow(tmp_path, chain(Rows([row], SCHEMA), render=op))
    (found,) = flow.run()
    assert found["prompt_text"] == f"[user]{I}{I}a<|end|>b[assistant]"
    assert found["prompt_literals"] == [found["prompt_text"].index("<|end|>")]
    assert found["prompt_images"] == [A, B]


def test_what_a_template_prints_for_images_is_text_in_the_text_of_a_row(tmp_path: Path) -> None:
    tokens = SpecialTokens([SpecialToken(1, "<s>"), SpecialToken(2, "</s>"), SpecialToken(3, "<img>")])
    op = Render(model(NO_BLANK, special_tokens=tokens), DataSettings(image_column="page"))
    flow = Flow(tmp_path, chain(Rows([{"prompt": "an <img>", "page": A}], SCHEMA), render=op))
    (found,) = flow.run()
    assert (found["prompt_text"], found["prompt_literals"]) == (f"user: {I}an <img>", [10])


def test_a_model_that_reads_no_images(tmp_path: Path) -> None:
    """It is refused where columns have images, with the file beside it that would do; in messages it costs the row."""
    for name in ("mmproj-a-f16.gguf", "mmproj-x-f16.gguf"):
        (tmp_path / name).touch()
    blind = chat_model(TURNS)
    blind.path = str(tmp_path / "x-q8_0.gguf")
    with pytest.raises(ConfigError, match=r"images=page gives images .* model.mmproj=.*/mmproj-x-f16.gguf lies beside"):
        Render(blind, DataSettings(), images=["page"]).plan(SCHEMA)
    chats = [
        [{"role": "user", "content": [part, text("a")]}] for part in ({"type": "image", "image": url(A)}, text("b"))
    ]
    rows = [{"chat": json.dumps(chat)} for chat in chats]
    rows.append({"chat": json.dumps([user(f"{I} is text here")])})
    flow = Flow(tmp_path, chain(Rows(rows, TEXT), render=Render(blind, DataSettings(messages_column="chat"))))
    texts = [(row["prompt_text"], "prompt_images" in row) for row in flow.run()]
    assert texts == [("[user]b\na[assistant]", False), (f"[user]{I} is text here[assistant]", False)]
    assert "an image, and the model reads none: model.mmproj is not set" in flow.tally.by_reason.popitem()[0][2]


@pytest.mark.parametrize(
    ("data", "arguments", "says"),
    [
        ({"image_column": "pge"}, {}, r"data.image_column=pge is no column.*=page\?"),
        ({}, {"images": ["prompt", "row"]}, r"column 'row' has type int64, and an image is a path, bytes"),
        ({"image_column": "page"}, {"template": "{{ prompt }}"}, r"template does not say where .* write {{ page }}"),
        ({"image_column": "page"}, {"raw_column": "prompt"}, "data.image_column and raw_column cannot both be"),
        ({"image_root": "/none", "image_column": "page"}, {}, "data.image_root=/none is no folder"),
    ],
)
def test_what_no_row_could_be_rendered_with_is_refused(data: Any, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises((ConfigError, SchemaError), match=says):
        Render(model(), DataSettings(**data), **arguments).plan(pa.schema([("row", pa.int64()), *SCHEMA]))


def test_an_image_of_an_earlier_prompt_is_not_that_of_the_next() -> None:
    planned = Render(model(), DataSettings(image_column="page")).plan(SCHEMA)
    assert are_of_columns(planned.field("prompt_images"))
    of_parts = Render(model(), DataSettings(messages_column="chat")).plan(TEXT)
    assert not are_of_columns(of_parts.field("prompt_images"))
    again = Render(model(), DataSettings()).plan(planned.remove(planned.get_field_index("prompt_text")))
    assert "prompt_images" not in again.names


def test_a_column_of_the_input_by_that_name_stays_or_is_refused() -> None:
    own = pa.schema([*SCHEMA, ("prompt_images", pa.int64())])
    assert Render(model(), DataSettings()).plan(own).field("prompt_images").type == pa.int64()
    with pytest.raises(SchemaError, match="would write the column 'prompt_images', which the input has already"):
        Render(model(), DataSettings(image_column="page")).plan(own)


def test_images_that_no_prompt_has_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where the model would read them, and nobody has said that it is meant: also those that lie in a column of texts,
    where a model with an encoder would answer blind."""
    row, texts = {"prompt": "hi", "page": A}, pa.schema([("prompt", pa.string()), ("file_name", pa.string())])
    cases: list[tuple[ModelSettings, dict[str, Any], pa.Schema, str]] = [
        (model(), {}, SCHEMA, "data.image_column=page"),
        (model(), {"images": []}, SCHEMA, ""),
        (model(), {"images": ["page"]}, SCHEMA, ""),
        (chat_model(TURNS), {}, SCHEMA, ""),
        (model(), {}, texts, "data.image_column= names the column"),
        (model(), {"template": "{{ prompt }}"}, texts, "data.image_column= names the column"),
        (model(), {"images": []}, texts, ""),
        (chat_model(TURNS), {}, texts, ""),
    ]
    for number, (settings, arguments, schema, told) in enumerate(cases):
        caplog.clear()
        op = Render(settings, DataSettings(), **arguments)
        rows = [row if schema is SCHEMA else {"prompt": "hi", "file_name": "a.png"}]
        Flow(tmp_path / str(number), chain(Rows(rows, schema), render=op)).run()
        said = [each.getMessage() for each in caplog.records if "data.image_column" in each.getMessage()]
        assert [told in each for each in said] == [True] * bool(told)


def test_only_batches_that_may_hold_images_are_rendered_in_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    op = Render(model(), DataSettings(messages_column="chat"))
    op.plan(TEXT)
    monkeypatch.setattr(op, "_rendered_batch", lambda part: [part])
    for content, slices in (("an image", 1), ([{"type": "image", "image": url(A)}], 3)):
        chat = json.dumps([{"role": "user", "content": content}])
        batch = Batch(0, pa.RecordBatch.from_pylist([{"chat": chat}] * 80, TEXT))
        assert len(list(op.process(batch))) == slices
    parts = pa.struct([("type", pa.string()), ("text", pa.string())])
    for part, may in ((parts, False), (pa.struct([*parts, ("image", pa.binary())]), True)):
        kind = pa.list_(pa.struct([("role", pa.string()), ("content", pa.list_(part))]))
        assert may_have_parts(pa.array([], kind)) == may
