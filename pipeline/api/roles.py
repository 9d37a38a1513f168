"""Checks the class of an operator: that each hook has its role, and how many inputs `plan` takes."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import pyarrow as pa

from pipeline.api.protocols import Concludes, Forecasts, MakesPrompts, Operator, Sink, Source, Stateful, UsesModel

ROLES: tuple[type, ...] = (Source, Sink, Stateful, UsesModel, Forecasts, MakesPrompts, Concludes)


def hooks_of(role: type) -> list[str]:
    """Return the names that a role adds to those of Operator."""
    return [name for name in vars(role) if not name.startswith("_") and not hasattr(Operator, name)]


def hook_without_role(operator: Operator) -> str | None:
    """Return what is wrong with an operator that has a hook and not its role: the engine would never call it."""
    for role in ROLES:
        for hook in [] if isinstance(operator, role) else hooks_of(role):
            if inspect.getattr_static(operator, hook, None) is not None:
                how = "in place of Operator" if issubclass(role, Operator) else "beside Operator"
                return (
                    f"{type(operator).__name__} has {hook}: inherit pipeline.api.{role.__name__}, {how}, for the engine"
                    " to use it, or give it another name"
                )
    return None


def inputs_fit(operator: Operator, inputs: Sequence[pa.Schema]) -> bool:
    """Return True if `operator.plan` accepts as many inputs as there are schemas."""
    try:
        inspect.signature(operator.plan).bind(*inputs)
    except TypeError:
        return False
    return True
