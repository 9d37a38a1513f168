"""The keys of `runtime` for long rows: the types of the KV cache, and rows longer than the model was trained for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from operators.settings.checks import check
from pipeline.api.keys import Rule, at_least, check_values, in_data, one_of

KV_TYPES = {
    **{"f16": 16.0, "f32": 32.0, "bf16": 16.0, "q8_0": 8.5},
    **{"q5_1": 6.0, "q5_0": 5.5, "q4_1": 5.0, "q4_0": 4.5, "iq4_nl": 4.5},
}
"""Types of the KV cache, and their bits per number."""
KV_BLOCK = 32
"""Numbers of a block of the quantised ones: a head is whole blocks."""
FULL, SMALL = "full", "small"
KV_PARTS = ("k", "v")
LINEAR, YARN = "linear", "yarn"
SCALINGS = (YARN, LINEAR)
_FACTOR: Rule = ("it is a number above 1", lambda v: v is None or v > 1)


def is_quantised(kv_type: str) -> bool:
    """Return whether numbers of the KV cache are stored in blocks with a scale."""
    return KV_TYPES[kv_type] < KV_TYPES["f16"]


def kv_types_of(value: object) -> tuple[str, str] | None:
    """Return the types of keys and values that `runtime.kv_type` names; None if it names none."""
    each = {**dict.fromkeys(KV_PARTS, "f16"), **value} if isinstance(value, Mapping) else dict.fromkeys(KV_PARTS, value)
    fits = each.keys() == set(KV_PARTS) and all(isinstance(t, str) and t in KV_TYPES for t in each.values())
    return (str(each["k"]), str(each["v"])) if fits else None


KV_RULE: Rule = (
    f"it is one of {', '.join(KV_TYPES)}, or one for keys and one for values, as {{k: q8_0, v: f16}}",
    lambda value: kv_types_of(value) is not None,
)


@dataclass
class RopeSettings:
    """Rows longer than the model was trained for (`runtime.rope`): positions are scaled, as YaRN or a linear
    interpolation does it. Without `scaling` they are as the model file has them.

    Args:
        scaling: yarn or linear.
        factor: the rows that the model may have are so many times as long.
        original_tokens: tokens that the model was trained for before any scaling; null: the context length in its
            file.
    """

    scaling: str | None = in_data(None, *one_of(SCALINGS, None))
    factor: float | None = in_data(None, *_FACTOR)
    original_tokens: int | None = in_data(None, *at_least(1, "it is 1 or more, or null"))

    def __post_init__(self) -> None:
        check_values(self, "runtime.rope")
        if self.scaling is None:
            given = self.factor is None and self.original_tokens is None
            check(given, "runtime.rope.scaling", None, f"with a factor or original_tokens it is {YARN} or {LINEAR}")
        else:
            check(self.factor is not None, "runtime.rope.factor", None, f"with scaling={self.scaling} it is above 1")

    def most_tokens(self, n_ctx_train: int) -> int:
        """Return the tokens that a row may have, of a model that was trained for `n_ctx_train`."""
        return n_ctx_train if self.factor is None else int(self.factor * (self.original_tokens or n_ctx_train))

    def describe(self, longest: int, n_ctx_train: int | None = None) -> str | None:
        """Return the line about rows of up to `longest` tokens; None without a scaling. `n_ctx_train`: None if it is
        not known."""
        if self.scaling is None:
            return None
        trained = self.original_tokens or n_ctx_train
        beyond = f"the {trained} that" if trained else "what"
        return (
            f"rows up to {longest} tokens: RoPE scaling {self.scaling} x{self.factor:g} beyond {beyond} the model was"
            " trained for"
        )
