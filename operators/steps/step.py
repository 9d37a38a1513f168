"""Step: one entry of `steps` in a job, which asks a model something about each row."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from typing import Any

from operators.settings.checks import check, check_one_of
from pipeline.api.errors import ConfigError, did_you_mean

PICKS = ("all", "best", "majority")
OF_EVERY_ROW = ("n", "pick")
"""Keys that want a completion in every row."""
OF_DRAWS = ("n", "sampling", "decode", "seed")
"""Keys that say how a completion is drawn."""
OF_ANY_NODE = ("op", "after", "keep", "drop", "on_error")
PROMPTS = ("prompt", "messages")
ANSWERS = ("choices", "regex", "schema")
TYPES = {
    **dict.fromkeys(("string", "str", "text"), ("string", "string")),
    **dict.fromkeys(("int", "integer", "int64"), ("integer", "int64")),
    **dict.fromkeys(("float", "number", "double"), ("number", "double")),
    **dict.fromkeys(("bool", "boolean"), ("boolean", "bool")),
}
"""Types of JSON and of Arrow, by the words of the short form."""
_LIST = re.compile(r"list\s*[<\[](.+)[>\]]")
_OF_JSON_SCHEMA = ("properties", "anyOf", "oneOf", "allOf", "$ref", "$schema", "$defs")


@dataclass
class Step:
    """One entry of `steps`. It adds a column of its name: the completion, or what `extract`, `score` or `schema` make
    of it. All texts for the model are Jinja templates over the columns of the row.

    Args:
        prompt: the user's message, inside the model's chat template.
        system: the system prompt; null takes `model.system`.
        examples: answered questions that come before the prompt: a list of {user, assistant}.
        messages: the whole conversation instead, a list of {role, content}, or the name of a column that holds one.
        raw: give `prompt` to the model as it is, without its chat template.
        writes: the role whose message the model writes: assistant, or user, which needs no prompt.
        images: columns with images for the model, in the place of `data.image_column`; [] for none. They come before
            the text of the prompt, or where `{{ column }}` says.
        n: completions of each row, which becomes so many rows.
        pick: what stays of the completions of a row: all; best (the highest `score`, else the highest mean
            log-probability); majority (the first one with the most frequent value, and `<name>_votes` of
            `<name>_samples`). The others leave without a reject each. Without `n` it picks among the completions of
            the step before.
        choices: the completion is one of these texts.
        probability: add `<name>_probability`, how likely the model finds the answer among `choices`: 0 to 1. Nothing is
            drawn then: the answer is the likeliest of them, as operators.choose.Choose compares them.
        regex: the completion matches it.
        schema: the completion is JSON: {name: string, age: int, tags: list<string>, mood: [good, bad]}, a JSON schema,
            or the path of one. Adds a column `<name>_<key>` for each key.
        extract: a template that makes the column of `completion`, the whole text.
        where: a condition in SQL on a row. Rows for which it is false or null are not asked: their columns are null.
        score: [least, most]: the last number in the text is the column. A row without one in this range is a reject.
        keep, drop: conditions in SQL on a row with its new columns. Rows that are not kept become rejects of kind
            `filtered`.
        columns: what else to keep as `<name>_...`: completion, finish_reason, seed, prompt_text, prompt_token_count,
            completion_token_count, completion_ids.
        after: the step or node that it reads, instead of the step before it.
        model, sampling, decode, runtime, store: keys of these config groups that differ from the job's.
        adapter: a name of `model.adapters`, or a list of names, that the step asks; base: the model as it is. Null
            leaves it to `data.adapter_column`.
        seed: another seed than the job's.
        op: instead of a prompt, an operator as in `nodes`, in this place of the order; `after`, `keep`, `drop` and
            `on_error` can stand beside it.
        on_error: keep leaves a row in its place for which the step fails: its new columns are null, and
            `<name>_error` has the reason. Without it such rows are rejects, or, for an exception of `op`, end the run
            (fail) or are rejects (reject).
    """

    prompt: str | None = None
    system: str | None = None
    examples: list[dict[str, str]] | None = None
    messages: list[dict[str, str]] | str | None = None
    raw: bool = False
    writes: str = "assistant"
    images: list[str] | None = None
    n: int | None = None
    pick: str = "all"
    choices: list[str] | None = None
    probability: bool = False
    regex: str | None = None
    schema: dict[str, Any] | str | None = None
    extract: str | None = None
    where: str | None = None
    score: list[float] | None = None
    keep: str | None = None
    drop: str | None = None
    columns: list[str] = field(default_factory=list)
    after: str | list[str] | None = None
    model: dict[str, Any] = field(default_factory=dict)
    sampling: dict[str, Any] = field(default_factory=dict)
    decode: dict[str, Any] = field(default_factory=dict)
    runtime: dict[str, Any] = field(default_factory=dict)
    store: dict[str, Any] = field(default_factory=dict)
    adapter: Any = None
    seed: int | None = None
    op: dict[str, Any] | None = None
    on_error: str = "fail"

    def __post_init__(self) -> None:
        set_keys = [f.name for f in fields(self) if getattr(self, f.name) not in (f.default, [], {})]
        if self.op is not None:
            if asks := [key for key in set_keys if key not in OF_ANY_NODE]:
                raise ConfigError(f"has op, so {asks[0]} says nothing; beside op go {', '.join(OF_ANY_NODE[1:])}")
            return
        self._check_prompt()
        check_one_of("pick", self.pick, PICKS)
        answers = [key for key in ANSWERS if getattr(self, key) is not None]
        if len(answers) > 1:
            raise ConfigError(f"has {' and '.join(answers)}; keep one of them")
        if self.schema is not None and (self.extract is not None or self.score is not None):
            raise ConfigError("has schema, which gives columns of its own; leave extract and score out")
        if self.probability:
            self._check_probability(set_keys)
        check(self.on_error in ("fail", "keep"), "on_error", self.on_error, "it is fail or keep; reject goes beside op")
        if self.on_error == "keep" and self.pick != "all":
            raise ConfigError("has on_error: keep, which lets no row go, and pick, which takes rows out; leave one out")
        check(isinstance(self.after, str | None), "after", self.after, "it is one step or node; op takes several")
        if self.where is not None and (other := [key for key in OF_EVERY_ROW if key in set_keys]):
            raise ConfigError(f"has where, which leaves rows without a completion, and {other[0]} wants one in each")
        if self.score is not None:
            check(len(self.score) == 2 and self.score[0] < self.score[1], "score", self.score, "it is [least, most]")
        check(self.n is None or self.n >= 1, "n", self.n, "it is 1 or more")

    def _check_probability(self, set_keys: list[str]) -> None:
        if self.choices is None:
            raise ConfigError("has probability, which is that of one of its choices; add choices: [...]")
        if drawn := [key for key in OF_DRAWS if key in set_keys]:
            raise ConfigError(f"has probability, so nothing is drawn, and {drawn[0]} says nothing; leave it out")
        if self.pick == "best" and self.score is None:
            raise ConfigError("has probability and pick: best, which goes by a score; add score, or leave one out")

    def _check_prompt(self) -> None:
        check_one_of("writes", self.writes, ("assistant", "user"))
        if self.prompt is not None and self.messages is not None:
            raise ConfigError("has prompt and messages; keep one")
        if self.prompt is None and self.messages is None and self.writes == "assistant":
            raise ConfigError('has neither prompt nor op; write prompt: "... {{ column }} ..."')
        if self.messages is not None and (self.system is not None or self.examples):
            raise ConfigError("has messages, which are the whole conversation; write system and examples into them")
        if self.raw and (self.prompt is None or self.system is not None or self.examples or self.writes == "user"):
            raise ConfigError("is raw, so the prompt is all that the model gets; write everything into prompt")
        for example in self.examples or []:
            check(set(example) == {"user", "assistant"}, "examples", example, "each is {user: ..., assistant: ...}")

    def conversation(self) -> list[dict[str, str]] | str:
        """Return the messages before the one that the model writes, as {role, content}, or the column with them."""
        if self.messages is not None:
            return self.messages
        turns = [("system", self.system)]
        for example in self.examples or []:
            turns += [("user", example["user"]), ("assistant", example["assistant"])]
        turns.append(("user", self.prompt))
        return [{"role": role, "content": text} for role, text in turns if text is not None]


def json_schema(given: dict[str, Any] | str) -> tuple[Any, dict[str, Any]]:
    """Return the JSON schema that the `schema` of a step means, and the arguments of ParseJson that make columns of it.

    Raises:
        ConfigError: a type of the short form is unknown.
    """
    if isinstance(given, str) or given.get("type") == "object" or any(key in given for key in _OF_JSON_SCHEMA):
        return given, {"schema": given}
    forms = {name: _form(name, kind) for name, kind in given.items()}
    schema = {
        "type": "object",
        "properties": {name: form for name, (form, _) in forms.items()},
        "required": list(forms),
        "additionalProperties": False,
    }
    return schema, {"fields": {name: kind for name, (_, kind) in forms.items()}}


def _form(name: str, kind: object) -> tuple[dict[str, Any], str]:
    """Return the JSON schema and the Arrow type of a key of the short form."""
    if isinstance(kind, list) and kind and all(isinstance(text, str) for text in kind):
        return {"enum": kind}, "string"
    if isinstance(kind, str) and (inside := _LIST.fullmatch(kind)):
        form, of = _form(name, inside[1])
        return {"type": "array", "items": form}, f"list<{of}>"
    if not isinstance(kind, str) or kind not in TYPES:
        hint = did_you_mean(str(kind), TYPES)
        allowed = "string, int, float, bool, list<...>, or a list of the texts that it may be"
        raise ConfigError(f"schema.{name} is {kind!r}, and a type is {allowed}{hint}")
    of_json, of_arrow = TYPES[kind]
    return {"type": of_json}, of_arrow
