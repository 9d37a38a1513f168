"""The chain of steps that the parameters of a row make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from operators.engine.sampling.dry import Dry
from operators.engine.sampling.mirostat import Mirostat
from operators.engine.sampling.penalties import Penalties
from operators.engine.sampling.step import HistoryStep, Step
from operators.engine.sampling.temperature import DynamicTemperature, Temperature
from operators.engine.sampling.truncation import MinP, TopK, TopNSigma, TopP, TypicalP, Xtc

if TYPE_CHECKING:
    from operators.engine.sampling.params import SamplingParams


@dataclass(frozen=True)
class Chain:
    """The steps of a row, without those that do nothing.

    Args:
        edits: the penalties that lead the chain: they change the logits of a few tokens.
        steps: the others.
        greedy: take the likeliest token after the edits; then there are no steps.
    """

    edits: tuple[HistoryStep, ...]
    steps: tuple[Step, ...]
    greedy: bool = False

    @property
    def top_k(self) -> int:
        """The k of a top-k that comes first; else 0."""
        first = self.steps[0] if self.steps else None
        return first.k if isinstance(first, TopK) else 0

    @property
    def random(self) -> bool:
        """True if the seed can change a token."""
        cold = any(isinstance(step, Temperature) and step.t == 0 for step in self.steps)
        return not self.greedy and (not cold or any(isinstance(step, Xtc) for step in self.steps))


def chain_of(params: SamplingParams) -> Chain:
    """Make the steps that `params` ask for, in order. Mirostat replaces all but the temperature, as in llama.cpp."""
    if params.mirostat:
        return Chain((), (Temperature(params.temperature), Mirostat(params.mirostat_tau, params.mirostat_eta)))
    made = [step for name in params.order if (step := STEPS[name](params)) is not None]
    edits = _leading_edits(made)
    steps = made[len(edits) :]
    # All other steps only cut by falling probability, which keeps the likeliest.
    if params.temperature == 0 and not any(isinstance(step, TypicalP | Xtc | HistoryStep) for step in steps):
        return Chain(tuple(edits), (), greedy=True)
    return Chain(tuple(edits), tuple(_with_floors(steps)))


def _leading_edits(steps: list[Step]) -> list[HistoryStep]:
    edits: list[HistoryStep] = []
    for step in steps:
        if not isinstance(step, HistoryStep):
            break
        edits.append(step)
    return edits


def _with_floors(steps: list[Step]) -> list[Step]:
    """Turn a min-p right after a top-p into its floor."""
    joined: list[Step] = []
    for step in steps:
        if isinstance(step, MinP) and joined and isinstance(joined[-1], TopP) and not joined[-1].floor:
            joined[-1] = TopP(joined[-1].p, step.p)
        else:
            joined.append(step)
    return joined


def _temperature(params: SamplingParams) -> Step:
    if params.dynatemp_range > 0 and params.temperature > 0:
        return DynamicTemperature(params.temperature, params.dynatemp_range, params.dynatemp_exponent)
    return Temperature(params.temperature)


def _penalties(params: SamplingParams) -> Step | None:
    values = (params.repetition_penalty, params.presence_penalty, params.frequency_penalty)
    return None if params.penalty_last_n == 0 or values == (1, 0, 0) else Penalties(params.penalty_last_n, *values)


def _dry(params: SamplingParams) -> Step | None:
    if params.dry_multiplier == 0 or params.dry_penalty_last_n == 0:
        return None
    return Dry(
        params.dry_multiplier,
        params.dry_base,
        params.dry_allowed_length,
        params.dry_penalty_last_n,
        params.dry_breakers,
    )


def _xtc(params: SamplingParams) -> Step | None:
    works = params.xtc_probability > 0 and params.xtc_threshold <= 0.5
    return Xtc(params.xtc_probability, params.xtc_threshold) if works else None


STEPS: dict[str, Callable[[SamplingParams], Step | None]] = {
    "penalties": _penalties,
    "dry": _dry,
    "top_n_sigma": lambda p: TopNSigma(p.top_n_sigma) if p.top_n_sigma > 0 else None,
    "top_k": lambda p: TopK(p.top_k) if p.top_k > 0 else None,
    "typical_p": lambda p: TypicalP(p.typical_p) if p.typical_p < 1 else None,
    "top_p": lambda p: TopP(p.top_p) if p.top_p < 1 else None,
    "min_p": lambda p: MinP(p.min_p) if p.min_p > 0 else None,
    "xtc": _xtc,
    "temperature": lambda p: _temperature(p) if p.temperature != 1 or p.dynatemp_range > 0 else None,
}
"""The steps that `sampling.order` can name."""
