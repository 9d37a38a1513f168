"""A model loader for jobs of these tests: llama.cpp, whose calls fail when they are told to.

model.options.code=-3     the code that a call fails with, after it was computed
model.options.every=7     every so many calls; else the calls that have the token of MARK
"""

from __future__ import annotations

import itertools

import operators.llama.model as llama
from operators.engine.backend.batch import DecodeFailed
from operators.engine.backend.interface import DecoderShape, Logits
from operators.engine.backend.loading import ModelFacts
from operators.llama.context import LlamaContext
from operators.llama.header import facts_of
from operators.settings import ModelSettings
from operators.settings.runtime import EngineSettings

MARK = "\a"
"""A character that is a token of its own."""
LOADER = f"model.loader={__name__}:load"


def inspect(settings: ModelSettings) -> ModelFacts:
    return facts_of(llama.gguf_path(settings))


def load(settings: ModelSettings) -> llama.LlamaModel:
    return FailingModel(settings)


class FailingModel(llama.LlamaModel):
    """Its contexts fail."""

    def __init__(self, settings: ModelSettings) -> None:
        super().__init__(settings)
        self._code = int(settings.options["code"])
        self._every = int(settings.options.get("every", 0))
        self._calls = itertools.count(1)
        self._mark = int(self.tokenize([MARK.encode()], special=True)[0][-1])

    def _context(self, settings: EngineSettings, shape: DecoderShape) -> LlamaContext:
        context = super()._context(settings, shape)
        decode = context.decode

        def failing() -> Logits:
            logits = decode()
            if self._fails(context):
                raise DecodeFailed(self._code, f"llama_decode failed with {self._code}: made to fail")
            return logits

        context.decode = failing  # type: ignore[method-assign]
        return context

    def _fails(self, context: LlamaContext) -> bool:
        if self._every:
            return next(self._calls) % self._every == 0
        return self._mark in context.batch.token[: context.batch.n_tokens]
