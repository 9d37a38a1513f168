"""Every parameter of the three endpoints, what is done with it, and how it is read. Whatever is not in here is refused.

docs/openai_batch.md shows the table; `python -m operators.openai.parameters` prints it, and a test compares.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from operators.openai import values
from operators.openai.messages import messages
from operators.openai.values import Columns, Read, flag, no_effect, number, only, whole

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
GENERATE = (CHAT, COMPLETIONS)
ALL = (CHAT, COMPLETIONS, EMBEDDINGS)
MOST_CHOICES = 128
_TEXT_ONLY = "the models are given text, and answer with text"
_NO_TOOLS = "leave it out, or ask for JSON of a schema with response_format"
_EXTENSION = "of this project, not of the API: as the sampling key of that name"


@dataclass(frozen=True)
class Parameter:
    """One parameter.

    Args:
        name: its key in the body.
        urls: the endpoints that have it.
        answer: what is done with it, for the documentation.
        read: takes a value that is not null. A null is as if the parameter was not there.
        required: a request without it is an error.
    """

    name: str
    urls: Sequence[str]
    answer: str
    read: Read
    required: bool = False


def _refused(name: str, urls: Sequence[str], what: str, *harmless: object, remedy: str) -> Parameter:
    shown = " or ".join("`" + values.shown(one) + "`" for one in harmless)
    answer = f"error{f', unless {shown}' if harmless else ''}: {what}"
    return Parameter(name, urls, answer, only(name, *harmless, remedy=remedy))


def _model(value: object) -> Columns:
    if not isinstance(value, str) or not value:
        raise values.invalid("model", value, "a string")
    return {"model": value}


def _encoding(value: object) -> Columns:
    if value not in ("float", "base64"):
        raise values.invalid("encoding_format", value, '"float" or "base64"')
    return {"encoding_format": value}


def _prompt(value: object) -> Columns:
    return {"texts": values.texts_or_ids("prompt", value)}


def _input(value: object) -> Columns:
    found = values.texts_or_ids("input", value)
    if "" in found:
        raise values.invalid("input", value, "texts of at least one character")
    return {"texts": found}


PARAMETERS = (
    Parameter(
        "model",
        ALL,
        "any name, and the response repeats it: the job's model answers. With `nodes.parse.op.models` only these names",
        _model,
        required=True,
    ),
    Parameter(
        "messages",
        [CHAT],
        "roles system, developer (as system), user, assistant; content a string or parts of type text, joined by line"
        " breaks. Images, audio, files, tool calls and names are errors",
        messages,
        required=True,
    ),
    Parameter(
        "prompt",
        [COMPLETIONS],
        "a string, token ids, or a list of either: choices for each, in order",
        _prompt,
        required=True,
    ),
    Parameter(
        "input",
        [EMBEDDINGS],
        "a string, token ids, or a list of either: a vector for each, in order",
        _input,
        required=True,
    ),
    Parameter(
        "max_tokens",
        GENERATE,
        "1 or more. Without it 16 for completions, as in the API, and `sampling.max_tokens` for chat",
        whole("max_tokens", 1),
    ),
    Parameter(
        "max_completion_tokens",
        [CHAT],
        "the newer name of max_tokens; an error if both are given and differ",
        whole("max_completion_tokens", 1),
    ),
    Parameter("temperature", GENERATE, "0 to 2; without it `sampling.temperature`", number("temperature", 0, 2)),
    Parameter("top_p", GENERATE, "0 to 1; without it `sampling.top_p`", values.top_p),
    Parameter("n", GENERATE, f"1 to {MOST_CHOICES}", whole("n", 1, MOST_CHOICES)),
    Parameter(
        "seed",
        GENERATE,
        "choices of a request differ. Without it the seed comes from custom_id and the job's `seed`",
        whole("seed", -(2**63), 2**63 - 1),
    ),
    Parameter("stop", GENERATE, "a string, or up to four; not beside a response_format other than text", values.stop),
    Parameter("logprobs", [CHAT], "true or false", flag("logprobs")),
    Parameter("top_logprobs", [CHAT], "0 to 20, beside `logprobs: true`", whole("top_logprobs", 0, 20)),
    Parameter("logprobs", [COMPLETIONS], "0 to 5", whole("logprobs", 0, 5)),
    Parameter("frequency_penalty", GENERATE, "-2 to 2, over prompt and completion", number("frequency_penalty", -2, 2)),
    Parameter("presence_penalty", GENERATE, "-2 to 2, over prompt and completion", number("presence_penalty", -2, 2)),
    Parameter("logit_bias", GENERATE, "token ids of the job's model, each -100 to 100", values.logit_bias),
    Parameter(
        "response_format",
        [CHAT],
        "text, json_object, json_schema (always strict). A text that max_tokens cuts before it is whole is an error",
        values.response_format,
    ),
    Parameter("echo", [COMPLETIONS], "the prompt comes first; an error beside logprobs", flag("echo")),
    Parameter(
        "best_of",
        [COMPLETIONS],
        "error, unless equal to n: take n choices and pick one",
        whole("best_of", 1, MOST_CHOICES),
    ),
    _refused("suffix", [COMPLETIONS], "there is no insertion", "", remedy="put all text into the prompt"),
    Parameter("encoding_format", [EMBEDDINGS], "float or base64 (of little-endian float32)", _encoding),
    Parameter(
        "dimensions",
        [EMBEDDINGS],
        "error, unless it is the model's own number",
        whole("dimensions", 1),
    ),
    _refused("stream", GENERATE, "a file is written whole", False, remedy="leave it out"),
    _refused("stream_options", GENERATE, "a file is written whole", remedy="leave it out"),
    _refused("tools", [CHAT], "there are no tools", [], remedy=_NO_TOOLS),
    _refused("tool_choice", [CHAT], "there are no tools", "none", remedy=_NO_TOOLS),
    _refused("parallel_tool_calls", [CHAT], "there are no tools", remedy=_NO_TOOLS),
    _refused("functions", [CHAT], "there are no tools", [], remedy=_NO_TOOLS),
    _refused("function_call", [CHAT], "there are no tools", "none", remedy=_NO_TOOLS),
    _refused("modalities", [CHAT], _TEXT_ONLY, ["text"], remedy=_TEXT_ONLY),
    _refused("audio", [CHAT], _TEXT_ONLY, remedy=_TEXT_ONLY),
    _refused("prediction", [CHAT], "there is none", remedy="leave it out"),
    _refused("reasoning_effort", [CHAT], "no model is told", "none", remedy="say it in the messages"),
    _refused("verbosity", [CHAT], "no model is told", remedy="say it in the messages"),
    _refused("web_search_options", [CHAT], "there is no search", remedy="leave it out"),
    Parameter("user", ALL, "accepted: says nothing about the answer", no_effect),
    *(
        Parameter(name, [CHAT], "accepted: says nothing about the answer", no_effect)
        for name in (
            "metadata",
            "store",
            "service_tier",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_retention",
        )
    ),
    Parameter("top_k", GENERATE, _EXTENSION, whole("top_k", 0)),
    Parameter("min_p", GENERATE, _EXTENSION, number("min_p", 0, 0.999999)),
    Parameter("repetition_penalty", GENERATE, _EXTENSION, number("repetition_penalty", 0.01, 100)),
    Parameter("min_tokens", GENERATE, _EXTENSION, whole("min_tokens", 0)),
)


def parameters_of(url: str) -> Mapping[str, Parameter]:
    """The parameters of an endpoint, by name."""
    return {parameter.name: parameter for parameter in PARAMETERS if url in parameter.urls}


def markdown() -> str:
    """The table of the documentation."""
    short = {CHAT: "chat", COMPLETIONS: "completions", EMBEDDINGS: "embeddings"}
    lines = ["| parameter | endpoints | what is done with it |", "|---|---|---|"]
    for one in PARAMETERS:
        where = "all" if len(one.urls) == len(ALL) else ", ".join(short[url] for url in one.urls)
        lines.append(f"| `{one.name}`{' (required)' if one.required else ''} | {where} | {one.answer} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(markdown())
