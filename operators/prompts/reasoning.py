"""The tags between which models write their reasoning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tags:
    """Tags around a model's reasoning.

    Args:
        opening: comes before the reasoning; empty: a completion begins with the reasoning if it has the closing tag.
        closing: stands between the reasoning and the answer.
        plain: what may stand before an answer that has no reasoning.
        next: begins what follows the reasoning where that is not the answer but a tool call.
    """

    opening: str
    closing: str
    plain: str = ""
    next: str = ""


KNOWN = (
    Tags("<think>", "</think>"),
    Tags("[THINK]", "[/THINK]"),
    Tags("<seed:think>", "</seed:think>"),
    Tags("<mm:think>", "</mm:think>"),
    Tags("<|START_THINKING|>", "<|END_THINKING|>"),
    Tags("<|inner_prefix|>", "<|inner_suffix|>"),
    Tags("<|channel>thought\n", "<channel|>"),
)
"""Tags by which chat templates are told apart: Qwen, DeepSeek, GLM and many others, Mistral, Seed-OSS, MiniMax, Cohere,
Apertus, Gemma."""
HARMONY = Tags(
    "<|channel|>analysis<|message|>",
    "<|end|><|start|>assistant<|channel|>final<|message|>",
    "<|channel|>final<|message|>",
    "<|end|><|start|>assistant",
)
"""Those of gpt-oss, whose template writes them in parts."""


def tags_in(template: str | None) -> Tags | None:
    """Return the tags of the model with this chat template; None if it has none that are known."""
    if template is None:
        return None
    if "<|channel|>analysis" in template and "<|start|>" in template:
        return HARMONY
    return next((tags for tags in KNOWN if tags.closing in template), None)
