"""The config group `decode` for `decode=speculative`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from operators.settings.checks import check
from operators.settings.layers import GPU_LAYERS
from operators.settings.model import DecodeSettings, ModelSettings
from operators.settings.runtime import KERNEL_TOKENS
from pipeline.api.keys import not_in_data

LOOKUP = "lookup"


@dataclass
class SpeculativeSettings(DecodeSettings):
    """Drafts of the next tokens, verified in one call (`decode`). docs/speculative.md has what they gain.

    Nothing but the strategy is in the fingerprint: a draft changes no token.

    Args:
        draft: where drafts come from; lookup: the row's own prompt and completion, and completions of other rows. Or a
            mapping: `model`, the GGUF file of a small model with the vocabulary of the job's own (null: lookup), and
            its `gpu_layers`.
        draft_tokens: tokens of a draft at most.
        adaptive: choose the tokens of each call, also none, by what calls cost and how often drafts are right; false:
            always bring `draft_tokens`.
    """

    strategy: str = "operators.engine.strategies.speculative.strategy:Speculative"
    draft: Any = not_in_data(lambda: {"model": None, "gpu_layers": 0})
    draft_tokens: int = not_in_data(7)
    adaptive: bool = not_in_data(True)

    def __post_init__(self) -> None:
        keys = {"model", "gpu_layers"}
        fits = self.draft == LOOKUP or (isinstance(self.draft, dict) and self.draft.keys() <= keys)
        check(fits, "decode.draft", self.draft, f"it is {LOOKUP}; a model is named by decode.draft.model=small.gguf")
        if isinstance(self.draft, dict):
            allowed, holds = GPU_LAYERS
            check(holds(layers := self.draft.get("gpu_layers", 0)), "decode.draft.gpu_layers", layers, allowed)
        if (model := self.draft_model) is not None:
            check(isinstance(model.path, str), "decode.draft.model", model.path, "it is the path of a GGUF file")
        most = KERNEL_TOKENS - 2
        allowed = f"it is 1 to {most}: from {KERNEL_TOKENS} tokens of a row on llama.cpp computes with another kernel"
        check(1 <= self.draft_tokens <= most, "decode.draft_tokens", self.draft_tokens, allowed)

    @property
    def draft_model(self) -> ModelSettings | None:
        """The model that makes the drafts; None: they are looked up."""
        draft = self.draft if isinstance(self.draft, dict) else {}
        if draft.get("model") is None:
            return None
        return ModelSettings(path=draft["model"], gpu_layers=draft.get("gpu_layers", 0))

    def identity(self, *, exact: bool) -> dict[str, Any]:
        """Be that of decode=autoregressive where the text is the same to the bit: a store serves both."""
        return DecodeSettings().identity(exact=exact) if exact else super().identity(exact=exact)
