"""Make SamplingParams from settings: texts become token ids of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from operators.engine.backend.interface import Model
from operators.engine.sampling.constraint import Constraint
from operators.engine.sampling.params import SamplingParams
from operators.engine.sampling.penalties import Breakers
from operators.settings.structured import StructuredSettings
from pipeline.api.errors import ConfigError, install

if TYPE_CHECKING:
    from operators.constraints.compiler import Compiler
    from operators.constraints.grammars import Form

_BREAKER_BYTES = 40
_TAIL_TOKENS = 20
"""Tokens of a DRY breaker that llama.cpp looks at."""


class ParamsMaker:
    """Makes SamplingParams for a model.

    Args:
        model: whose tokens.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._breakers: dict[tuple[str, ...], Breakers] = {}
        self._compiler: Compiler | None = None

    def make(self, values: Mapping[str, Any]) -> SamplingParams:
        """Return the parameters for checked values, which are named as in SamplingSettings.

        Raises:
            ConfigError: a token id is not in the vocabulary, a text has no tokens, or a constraint cannot be compiled.
        """
        own = frozenset(self._token("stop_token_ids", t) for t in values["stop_token_ids"])
        stops = own | (frozenset() if values["ignore_eos"] else self._model.end_ids)
        as_they_stand = {f.name: values[f.name] for f in fields(SamplingParams) if f.name in values}
        in_token_ids = {
            "logit_bias": tuple(self._biases(values["logit_bias"] or {})),
            "bad_words": tuple(dict.fromkeys(ids for word in values["bad_words"] for ids in self._bad_word(word))),
            "order": tuple(values["order"]),
        }
        return SamplingParams(
            **(as_they_stand | in_token_ids),
            stop_ids=stops,
            kept_stop_ids=own if values["keep_stop"] else frozenset(),
            end_ids=own | self._model.end_ids,
            dry_breakers=self._dry_breakers(values),
            constraint=self._constraint(values["structured"]),
        )

    def _constraint(self, settings: StructuredSettings) -> Constraint | None:
        form = structured_form(settings)
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


def structured_form(settings: StructuredSettings) -> Form | None:
    """Compile the constraint of `settings` on the texts of all rows; None if there is none.

    Raises:
        ConfigError: it cannot be compiled, or llguidance is not installed.
        InputError: its file cannot be read.
    """
    if settings.kind is None:
        return None
    try:
        from operators.constraints.grammars import form_of
    except ImportError as error:
        raise ConfigError(f"sampling.structured needs llguidance ({error}); {install('structured')}") from error
    return form_of(settings)


def token_ids(model: Model, text: bytes) -> tuple[int, ...]:
    """Return the tokens of a text, without BOS."""
    ids: list[int] = model.tokenize([text])[0].tolist()
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
