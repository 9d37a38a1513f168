"""The sampling values of rows: settings, overridden by columns, become SamplingParams in the token ids of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

from operators.constraints.thinking import Thinking
from operators.engine.backend.interface import Model
from operators.engine.sampling.constraint import Constraint
from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.penalties import Breakers
from operators.generation.structured import MOST_SCHEMAS, structured_form
from operators.generation.tools import AUTO, NONE, Tools
from operators.prompts.messages import NoPrompt
from operators.settings import SamplingSettings
from operators.settings.sampling import misfits, plain_value
from operators.settings.structured import StructuredSettings, parse_schema
from pipeline.api.errors import ConfigError

if TYPE_CHECKING:
    from operators.constraints.compiler import Compiler
    from operators.constraints.grammars import Form
    from operators.generation.reasoning import Reasoning

MOST_DRAWINGS = 10_000
"""Combinations of column values to cache at most."""
_BREAKER_BYTES = 40
_TAIL_TOKENS = 20
"""Tokens of a DRY breaker that llama.cpp looks at."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """The sampling values of a row, converted for its sequence."""

    params: SamplingParams
    within: SamplingParams
    """The same for a completion that begins within its reasoning."""
    stops: Sequence[bytes]
    keep_stop: bool


class RowParams:
    """Converts the sampling values of rows: the job's, or those with which its columns override them. Raises
    ConfigError if a token id of the job's values is not in the vocabulary, a text has no tokens, or the constraint
    cannot be compiled.

    Args:
        sampling: the job's values.
        model: whose tokens.
        reasoning: its tags; None: it does not reason.
        tools: what rows may call; None: nothing.

    Attributes:
        columns: the columns that may override, and those of the row's JSON schema and of its tools."""

    def __init__(
        self, sampling: SamplingSettings, model: Model, reasoning: Reasoning | None = None, tools: Tools | None = None
    ) -> None:
        self._reasoning = reasoning
        self._tools = tools
        self._tools_column = None if tools is None else tools.column
        self._sampling = sampling
        self._model = model
        self._schema_column = sampling.structured.json_schema_column
        more = [name for name in (self._schema_column, self._tools_column) if name is not None]
        self.columns = [*sampling.per_row, *more]
        self._breakers: dict[tuple[str, ...], Breakers] = {}
        self._compiler: Compiler | None = None
        self._drawings: dict[str, Drawing | str] = {}
        stops = () if tools is None else tools.form.stops
        self._tool_stops = frozenset(token for stop in stops if (token := self._control(stop)) is not None)
        plain = vars(sampling)
        if tools is not None and tools.given is None:
            plain = {**plain, "tools": NONE}  # there are none to call but those of a row
        self._plain = self._drawing(plain)

    def of(self, values: tuple[Any, ...]) -> Drawing | str:
        """Convert the values of a row with these `values` of its `columns`, or return the reason why they are invalid;
        cached, since combinations repeat."""
        if not values:
            return self._plain
        named = dict(zip(self._sampling.per_row, values, strict=False))
        named.pop("seed", None)
        named.pop("n", None)
        own = len(self._sampling.per_row)
        more = dict(zip(self.columns[own:], values[own:], strict=True))
        schema = None if self._schema_column is None else more[self._schema_column]
        key = repr((*named.values(), *more.values()))
        if key not in self._drawings:
            if len(self._drawings) >= (MOST_SCHEMAS if more else MOST_DRAWINGS):
                self._drawings.clear()
            overrides = {k: v for k, v in named.items() if v is not None}
            self._drawings[key] = self._overridden(overrides, schema, more.get(self._tools_column or ""))
        return self._drawings[key]

    def _overridden(self, overrides: dict[str, Any], schema: str | None, tools: Any) -> Drawing | str:
        try:
            values = vars(self._sampling) | {k: plain_value(k, v) for k, v in overrides.items()}
            if self._schema_column is not None:
                values["structured"] = self._of_row(self._schema_column, schema)
            broken = misfits(values)
            if not broken:
                return self._drawing(values, tools)
        except NoPrompt as error:
            return str(error)
        except ConfigError as error:
            return str(error) if schema is None else f"column '{self._schema_column}': {error}"
        except (TypeError, ValueError, AttributeError):
            return f"the columns {overrides!r} have values of a type that cannot be used"
        name, allowed = next(iter(broken.items()))
        where = f"column '{name}' has" if name in overrides else f"under its columns the row has {name}"
        return f"{where} {values[name]!r}; allowed: {allowed}"

    def _of_row(self, column: str, schema: str | None) -> StructuredSettings:
        """Return the constraint of a row with `schema` in its `column`."""
        if schema is None and self._sampling.structured.optional:
            return StructuredSettings()
        if schema is None:
            raise ConfigError(f"column '{column}' is null; it has to hold the JSON schema of the row")
        parsed = parse_schema(schema, "its value")
        return replace(self._sampling.structured, json_schema=parsed, json_schema_column=None, optional=False)

    def _drawing(self, values: Mapping[str, Any], tools: Any = None) -> Drawing:
        """Convert checked values, which are named as in SamplingSettings. `tools`: the row's value of their column."""
        named = (self._named(stop) for stop in values["stop"])
        stop_ids = frozenset(self._token("stop_token_ids", t) for t in values["stop_token_ids"]).union(*named)
        ends = self._model.end_ids
        bad_words = (ids for word in values["bad_words"] for ids in self._bad_word(word))
        converted = {
            "logit_bias": tuple(self._biases(values["logit_bias"] or {})),
            "bad_words": tuple(dict.fromkeys((*bad_words, *((token,) for token in self._model.suppressed_ids)))),
            "order": tuple(values["order"]),
            "stop_ids": stop_ids | self._tool_stops if values["ignore_eos"] else stop_ids | ends | self._tool_stops,
            "kept_stop_ids": stop_ids if values["keep_stop"] else frozenset(),
            "end_ids": stop_ids | ends,
            "dry_breakers": self._dry_breakers(values),
            "constraint": self._constraint(values["structured"], values["thinking_budget"], self._call(values, tools)),
        }
        as_they_stand = {f.name: values[f.name] for f in fields(SamplingParams) if f.name in values}
        stops = [stop.encode() for stop in values["stop"]]
        params = within = SamplingParams(**(as_they_stand | converted))
        if isinstance(params.constraint, Thinking):
            within = replace(params, constraint=replace(params.constraint, within=True))
        return Drawing(params, within, stops, values["keep_stop"])

    def _call(self, values: Mapping[str, Any], given: Any) -> Form | None:
        """Return the shape of the call that a row is forced to make; None if it is not."""
        if self._tools is None:
            if values["tools"] not in (None, AUTO, NONE):
                raise ConfigError(
                    f"sampling.tools={values['tools']} forces a call, and there are no tools, or the format of the"
                    " model's calls is not known; name it with model.tool_format="
                )
            return None
        choice = values["tools"] or self._tools.choice
        self._tools.check_beside(choice, values)
        return self._tools.shape(choice, self._tools.of_row(given), self._control)

    def _named(self, stop: str) -> Iterable[int]:
        """Return the control token whose name a stop string is, if it is one: the token has no text to be found."""
        for token in token_ids(self._model, stop.encode()):
            name = None if self._model.pieces()[token] else self._model.special_tokens.texts.get(token)
            if name == stop:
                return (token,)
            if name and name in stop:
                raise ConfigError(
                    f"sampling.stop has {stop!r}, and {name} is a control token of the model, which has no text beside"
                    f" others; give sampling.stop=['{name}'] or sampling.stop_token_ids=[{token}]"
                )
        return ()

    def _control(self, text: str) -> int | None:
        """Return the id of the control token with this name; None if it is none."""
        ids = token_ids(self._model, text.encode())
        return ids[0] if len(ids) == 1 and not self._model.pieces()[ids[0]] else None

    def _constraint(self, settings: StructuredSettings, budget: int | None, call: Form | None) -> Constraint | None:
        answer, tags = self._answer_constraint(settings, call), self._reasoning
        if call is not None and self._tools is not None and self._tools.form.before:
            if budget is not None:
                raise ConfigError(
                    "sampling.thinking_budget and a forced tool call cannot both be in this model's format; keep one"
                )
            return answer  # it says itself where the reasoning stands
        if tags is None or not tags.opening:
            if budget is not None:
                raise ConfigError(
                    f"sampling.thinking_budget={budget} needs a model that reasons, and the chat template has no tags"
                    " for it; name them with model.reasoning_tags='[<think>,</think>]', or leave the budget out"
                )
            return answer
        if budget is not None and answer is not None and not settings.after_reasoning:
            raise ConfigError(
                "sampling.thinking_budget has no effect where sampling.structured.after_reasoning=false; leave one out"
            )
        if budget is None and (answer is None or not settings.after_reasoning):
            return answer
        ids = (tags.opening_ids, tags.closing_ids)
        ends, n_vocab = self._model.end_ids, self._model.n_vocab
        return Thinking(tags.marked, tags.opening, tags.closing, *ids, ends, n_vocab, budget, False, answer)

    def _answer_constraint(self, settings: StructuredSettings, call: Form | None) -> Constraint | None:
        form = call or structured_form(settings)
        if form is None:
            return None
        if self._compiler is None:
            from operators.constraints.compiler import Compiler

            self._compiler = Compiler(self._model)
        return self._compiler.constraint(form, skip_forced=settings.skip_forced)

    def _token(self, key: str, token: int) -> int:
        if not 0 <= token < self._model.n_vocab:
            raise ConfigError(
                f"sampling.{key} has the token id {token}; the model's ids are 0 to {self._model.n_vocab - 1}"
            )
        return token

    def _ids(self, key: str, text: str) -> tuple[int, ...]:
        ids = token_ids(self._model, text.encode())
        if not ids:
            raise ConfigError(f"sampling.{key} has {text!r}, for which the model has no tokens")
        return ids

    def _biases(self, biases: Mapping[int | str, float]) -> Iterable[tuple[int, float]]:
        """A text's bias goes to each of its tokens, as in llama-server."""
        for key, bias in biases.items():
            ids = self._ids("logit_bias", key) if isinstance(key, str) else (self._token("logit_bias", key),)
            yield from ((token, float(bias)) for token in dict.fromkeys(ids))

    def _bad_word(self, word: str | int | Sequence[int]) -> Iterable[tuple[int, ...]]:
        if isinstance(word, str):
            # A word has different tokens at the start of a text and after a space.
            yield self._ids("bad_words", word)
            yield self._ids("bad_words", " " + word.lstrip(" "))
        elif isinstance(word, int):
            yield (self._token("bad_words", word),)
        else:
            yield tuple(self._token("bad_words", token) for token in word)

    def _dry_breakers(self, values: Mapping[str, Any]) -> Breakers:
        texts = tuple(values["dry_sequence_breakers"])
        if values["dry_multiplier"] == 0:
            return Breakers()
        if texts not in self._breakers:
            self._breakers[texts] = dry_breakers(self._model, texts)
        return self._breakers[texts]


def token_ids(model: Model, text: bytes) -> tuple[int, ...]:
    """Return the tokens of a text, without BOS."""
    ids: list[int] = model.tokenize([text], special=True)[0].tolist()
    return tuple(ids[1:] if model.add_bos else ids)


def dry_breakers(model: Model, texts: Sequence[str]) -> Breakers:
    """Return every sequence of tokens in which one of `texts` can appear: inside a token, or begun by the end of a
    token and completed by further tokens. The same as llama.cpp's get_overlapping_token_sequences."""
    pieces = model.pieces()
    return Breakers(
        (token, *tail)
        for text in dict.fromkeys(text.encode()[:_BREAKER_BYTES] for text in texts)
        for token in range(model.n_vocab)
        for tail in _tails(model, text, pieces[token])
    )


def _tails(model: Model, text: bytes, piece: bytes) -> Iterable[tuple[int, ...]]:
    if text in piece:
        yield ()
        return
    for length in range(1, min(len(text), len(piece)) + 1):
        if piece.endswith(text[:length]):
            yield token_ids(model, text[length:])[:_TAIL_TOKENS]
