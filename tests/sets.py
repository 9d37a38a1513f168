"""The values of a parametrised test that `make test` takes; the others are for `make laws`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def often(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Return `values` as parameters, of which all but `kept` are marked `laws`."""
    return [value if value in kept else pytest.param(value, marks=pytest.mark.laws) for value in values]
