"""Models for tests, by loader string: `tests.operators.fakes:load` takes its attributes from `model.options`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from operators.prompts.special_tokens import SpecialToken, SpecialTokens
from operators.settings import ModelSettings


def load(settings: ModelSettings) -> Any:
    """A chat model that has a template and special tokens, and nothing else."""
    defaults: dict[str, Any] = {"chat_template": None, "tool_template": None, "bos_token": "<s>", "eos_token": "</s>"}
    defaults |= {"add_bos": True, "special_tokens": SpecialTokens([SpecialToken(1, "<s>"), SpecialToken(2, "</s>")])}
    return SimpleNamespace(**(defaults | settings.options))


def chat_model(chat_template: str | None = None, system: str | None = None, **options: Any) -> ModelSettings:
    """Settings of such a model."""
    settings = ModelSettings(loader="tests.operators.fakes:load", system=system)
    settings.options = {"chat_template": chat_template, **options}
    return settings
