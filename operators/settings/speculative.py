"""The config group `decode` for `decode=speculative`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from operators.settings.checks import NOT_IN_DATA, check, check_one_of
from operators.settings.model import DecodeSettings
from operators.settings.runtime import KERNEL_TOKENS

DRAFTS = ("lookup",)


@dataclass
class SpeculativeSettings(DecodeSettings):
    """Drafts of the next tokens, verified in one call (`decode`). docs/speculative.md has what they gain.

    Nothing but the strategy is in the fingerprint: a draft changes no token.

    Args:
        draft: where drafts come from; lookup: the row's own prompt and completion, and completions of other rows.
        draft_tokens: tokens of a draft at most.
        adaptive: choose the tokens of each call, also none, by what calls cost and how often drafts are right; false:
            always bring `draft_tokens`.
    """

    strategy: str = "operators.engine.strategies.speculative.strategy:Speculative"
    draft: str = field(default="lookup", metadata=NOT_IN_DATA)
    draft_tokens: int = field(default=7, metadata=NOT_IN_DATA)
    adaptive: bool = field(default=True, metadata=NOT_IN_DATA)

    def __post_init__(self) -> None:
        check_one_of("decode.draft", self.draft, DRAFTS)
        most = KERNEL_TOKENS - 2
        allowed = f"it is 1 to {most}: from {KERNEL_TOKENS} tokens of a row on llama.cpp computes with another kernel"
        check(1 <= self.draft_tokens <= most, "decode.draft_tokens", self.draft_tokens, allowed)

    def identity(self, *, exact: bool) -> dict[str, Any]:
        """Be that of decode=autoregressive where the text is the same to the bit: a store serves both."""
        return DecodeSettings().identity(exact=exact) if exact else {"strategy": self.strategy}
