"""How numbers and times are written on a page."""

from __future__ import annotations

from pipeline.monitor.display import duration


def number(value: float) -> str:
    """`12,345`, `12.3`, `0.0123`: three digits at least, and no more than those of a whole number."""
    if value == 0 or abs(value) >= 100 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.3g}"


def share(part: float, whole: float) -> str:
    """`12.3 %`; nothing where there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else ""


def seconds(value: float) -> str:
    """`2h03m`, `4m05s`, or `7.3 s` below a minute."""
    return duration(value) if value >= 60 else f"{value:.1f} s"


def unit_of_time(longest_s: float) -> tuple[str, float]:
    """The unit in which a length of up to `longest_s` seconds reads well, and how many seconds it has."""
    if longest_s >= 3 * 3600:
        return "h", 3600.0
    return ("min", 60.0) if longest_s >= 600 else ("s", 1.0)


def at_time(value: float) -> str:
    """A moment of running time: `1:02:03`, `2:03`, or `7.3` seconds below a minute."""
    if value < 60:
        return f"{value:.1f} s"
    whole = round(value)
    minutes = f"{whole // 60 % 60:02}:{whole % 60:02}"
    return f"{whole // 3600}:{minutes}" if whole >= 3600 else minutes


def shortened(text: str, most: int) -> str:
    """`text` with at most `most` characters, and how many were left out."""
    return text if len(text) <= most else f"{text[:most]} [... {len(text) - most:,} more characters]"
