"""SpeculativeSetup: what speculative decoding needs of settings and models, before any is loaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from operators.engine.backend.interface import ROLLBACK_ROOM
from operators.engine.backend.loading import ModelFacts, inspect_model
from operators.engine.backend.shape import max_sequence_tokens
from operators.engine.strategies.base import DecodeSetup, Strategy
from operators.engine.strategies.speculative.lookup import DraftedRow
from operators.settings import DecodeSettings, ModelSettings, SamplingSettings
from operators.settings.runtime import EngineSettings
from operators.settings.speculative import SpeculativeSettings
from pipeline.api.errors import ConfigError, InputError

MOST_UNUSED = 128
"""Words that one vocabulary may have behind those of the other: models of a family are padded to different sizes.
llama.cpp allows as many."""
_KEYS = {"model.path=": "decode.draft.model=", "model.gpu_layers=": "decode.draft.gpu_layers="}


class SpeculativeSetup(DecodeSetup):
    """Answers for speculative decoding."""

    name = "speculative"
    takes_images = False

    def __init__(self, settings: DecodeSettings, strategy: type[Strategy]) -> None:
        if not isinstance(settings, SpeculativeSettings):
            raise ConfigError(f"decode.strategy='{settings.strategy}' has settings of its own; use decode=speculative")
        super().__init__(settings, strategy)
        self.draft, self.draft_model = settings.draft_tokens, settings.draft_model

    def settled(self, settings: EngineSettings) -> EngineSettings:
        works: dict[str, Any] = {"kv": "per_sequence"} | ({"flash_attention": True} if settings.deterministic else {})
        return replace(settings, **{key: value for key, value in works.items() if key in settings.open_keys()})

    def check(self, sampling: SamplingSettings, engine: EngineSettings, model: ModelSettings) -> None:
        """Refuse what would cut calls otherwise than by rows, or compute tokens of a row otherwise than one."""
        if engine.kv == "unified":
            raise ConfigError("decode=speculative needs runtime.kv=per_sequence: rows share the cells of one stream")
        if engine.deterministic and engine.flash_attention is not True:
            raise ConfigError(
                "decode=speculative needs runtime.flash_attention=true: without it llama.cpp computes several tokens of"
                " a row by other kernels than one, and a text would depend on its drafts (runtime.deterministic=false"
                " allows that)"
            )
        check_model(model, engine, self.draft)
        if self.draft_model is not None:
            check_draft_model(self.draft_model, model, engine)

    def sequence_type(self) -> Callable[..., DraftedRow]:
        return DraftedRow


def check_model(model: ModelSettings, engine: EngineSettings, draft_tokens: int) -> None:
    """Raise ConfigError if `model` cannot drop tokens that were drafted wrongly, or would compute those of a draft
    otherwise than one by one."""
    facts = inspect_model(model)
    if facts.attention is not None and facts.attention.keeps_window_alone(engine):
        raise ConfigError(
            "decode=speculative needs runtime.window_cache=full: where a draft was wrong, tokens that the window had"
            " passed are seen again"
        )
    if facts.sizes is None or not facts.sizes.recurrent:
        return
    name = f"decode=speculative cannot work with {model.path or model.file}"
    if facts.no_rollback is not None:
        raise ConfigError(f"{name}: {facts.no_rollback}; use decode=autoregressive")
    if engine.deterministic and facts.drafts_change_bits is not None:
        raise ConfigError(
            f"{name}: {facts.drafts_change_bits}, so a text would depend on its drafts; set model.weights=q8_0, or"
            " runtime.deterministic=false, which allows that"
        )
    if engine.n_ubatch < (least := draft_tokens + ROLLBACK_ROOM):
        raise ConfigError(
            f"{name} and runtime.n_ubatch={engine.n_ubatch}: to drop a draft of decode.draft_tokens={draft_tokens} from"
            f" its recurrent layers it has to be {least} or more"
        )


def check_draft_model(draft: ModelSettings, model: ModelSettings, engine: EngineSettings) -> None:
    """Check that `draft` can make drafts for `model`.

    Raises:
        InputError: the file of `draft` is missing or damaged.
        ConfigError: it does not continue texts, was trained for shorter rows, or has another
            vocabulary.
    """
    draft_facts, facts = _inspect(draft), inspect_model(model)
    name = f"decode.draft.model={draft.path}"
    if draft_facts.encoder is not None:
        raise ConfigError(f"{name} cannot make drafts: {draft_facts.encoder}; take a model that continues texts")
    if draft_facts.attention is not None:
        draft_facts.attention.check(name, engine)
    longest = max_sequence_tokens(engine, facts.n_ctx_train) if facts.n_ctx_train is not None else None
    most = None if draft_facts.n_ctx_train is None else engine.rope.most_tokens(draft_facts.n_ctx_train)
    if longest is not None and most is not None and most < longest:
        raise ConfigError(
            f"{name} was trained for {most} tokens, and rows have up to {longest};"
            f" set runtime.max_sequence_tokens={most}, or take another draft model"
        )
    if facts.tokens is None or draft_facts.tokens is None:
        raise ConfigError(f"{name} cannot make drafts: the model's vocabulary is not known; use decode.draft=lookup")
    if (difference := _difference(draft_facts.tokens(), facts.tokens())) is not None:
        raise ConfigError(
            f"{name} has another vocabulary than the model: {difference}; take a smaller model of the same family, or"
            " decode.draft=lookup"
        )


def _inspect(draft: ModelSettings) -> ModelFacts:
    """Inspect the draft model; errors name its keys."""
    try:
        return inspect_model(draft)
    except (ConfigError, InputError) as error:
        text = str(error)
        for key, own in _KEYS.items():
            text = text.replace(key, own)
        raise type(error)(text) from error


def _difference(own: Sequence[bytes], tokens: Sequence[bytes]) -> str | None:
    """Return how two vocabularies differ; None if they agree but for unused words at the end of one."""
    different = [i for i, (one, other) in enumerate(zip(own, tokens, strict=False)) if one != other]
    if different:
        i = different[0]
        shown = [text.decode("utf-8", "replace") for text in (own[i], tokens[i])]
        return f"token {i} is {shown[0]!r} and not {shown[1]!r}, and {len(different):,} in all differ"
    if abs(len(own) - len(tokens)) > MOST_UNUSED:
        return f"it has {len(own):,} tokens and not {len(tokens):,}"
    return None
