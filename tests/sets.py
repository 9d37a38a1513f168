"""The values of a parametrised test that `make test` takes; the others are for `make laws`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def often(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Return `values` as parameters, of which all but `kept` are marked `laws`."""
    return [value if value in kept else pytest.param(value, marks=pytest.mark.laws) for value in values]


def often_cases(cases: Iterable[tuple[Any, ...]], *kept: Any) -> list[Any]:
    """Return `cases`, each the values of several parameters, of which those without one of `kept` are marked `laws`."""
    return [c if any(k in c for k in kept) else pytest.param(*c, marks=pytest.mark.laws) for c in cases]
