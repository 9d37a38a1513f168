"""Numbers that a run shows. An operator registers each one, where it is counted: `Runtime.number`, `cache`, and
`StageMeter.histogram`. status.json, the file for Prometheus, metrics/ and the report follow.

Values are nested mappings of numbers, and add up: over nodes, workers and attempts. Of those whose name begins with
`peak_` the largest counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DIGITS = 9
"""Decimals of a sum: 0.3, not 0.30000000000000004."""
_PEAK = "peak_"
MEMORY = "memory"
"""The group of what was taken of the machine and of devices."""


@dataclass(frozen=True)
class Number:
    """What a number is, for people. `about`: in a few words; empty: it is not shown, but kept in metrics/run.parquet.
    `group`: heading of the table in the report that has it; empty: none has."""

    about: str
    unit: str = ""
    group: str = "counted"


def counted(about: str, unit: str = "") -> Any:
    """Return a field of a dataclass of counts, for `Runtime.numbers`; it begins at 0."""
    return field(default=0, metadata={"about": about, "unit": unit})


def number_of(status: Mapping[str, Any], name: str) -> Number:
    """Return what status.json says of a number; that of an earlier version says nothing."""
    return Number(**status.get("numbers", {}).get(name, {"about": name}))


def added(*each: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sum of nested mappings of numbers. What only one has is taken as it is; of peaks the largest is."""
    total: dict[str, Any] = {}
    for one in each:
        for key, value in one.items():
            if isinstance(value, Mapping):
                total[key] = added(total.get(key, {}), value)
            elif is_peak(key):
                total[key] = max(total.get(key, value), value)
            else:
                total[key] = round(total.get(key, 0) + value, DIGITS)
    return total


def is_peak(name: str) -> bool:
    """Return whether the number `name`, with or without its node, is the most that something came to."""
    return name.rpartition("/")[2].startswith(_PEAK)
