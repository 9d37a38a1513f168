"""Format numbers, times, sizes and texts for people."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping


def number(value: float) -> str:
    """Format a number with at least three digits and no needless decimals: `12,345`, `12.3`, `0.0123`."""
    if value == 0 or abs(value) >= 100 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.3g}"


def share(part: float, whole: float) -> str:
    """Format part / whole: `12.3 %`; empty if `whole` is 0."""
    return f"{100 * part / whole:.1f} %" if whole else ""


def of_the_limit(totals: Mapping[str, float]) -> str:
    """Say how near the calls of the model came to what the machine can do, by the totals of a run: `12.4 of 31 GB/s and
    40 of 128 GMAC/s: 41.2 % of this machine's limit`; empty if it is not known."""
    if not totals.get("work_limit_s") or not totals["work_s"]:
        return ""
    rates = []
    for work, unit in (("work_bytes", "GB/s"), ("work_macs", "GMAC/s")):
        reached, peak = (totals[work] / totals[seconds] / 1e9 for seconds in ("work_s", f"{work}_s"))
        rates.append(f"{number(reached)} of {number(peak)} {unit}")
    return f"{' and '.join(rates)}: {share(totals['work_limit_s'], totals['work_s'])} of this machine's limit"


def duration(seconds: float) -> str:
    """Format a duration: `2h03m`, `4m05s` or `7s`."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{whole % 60:02}s" if minutes else f"{whole}s"


def seconds(value: float) -> str:
    """Format a duration: `2h03m`, `4m05s`, or `7.3 s` below a minute."""
    return duration(value) if value >= 60 else f"{value:.1f} s"


def at_time(value: float) -> str:
    """Format a moment of running time: `1:02:03`, `2:03`, or `7.3 s` below a minute."""
    if value < 60:
        return f"{value:.1f} s"
    whole = round(value)
    minutes = f"{whole // 60 % 60:02}:{whole % 60:02}"
    return f"{whole // 3600}:{minutes}" if whole >= 3600 else minutes


def shortened(text: str, most: int) -> str:
    """Cut `text` after `most` characters and say how many were left out."""
    return text if len(text) <= most else f"{text[:most]} [... {len(text) - most:,} more characters]"


def one_line(text: str, most: int) -> str:
    """Return `text` on one line, cut between words to at most `most` characters, with `...` at the end if cut."""
    text = " ".join(text.split())
    head = text[: most - len("...")]
    return text if len(text) <= most else f"{head.rpartition(' ')[0] or head[:-1]} ..."


def time_text(seconds: float) -> str:
    """Format an estimated duration: `7.3 s`, `95 s`, `12.5 min`, `3.1 h` or `2.4 days`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


def bytes_text(size: float) -> str:
    """Format a size: `12.0 bytes`, `1.5 KiB` ... `2.0 TiB`."""
    power = min(int(math.log(max(size, 1), 1024)), 4)
    return f"{size / 1024**power:,.1f} {('bytes', 'KiB', 'MiB', 'GiB', 'TiB')[power]}"


def mib(size: int) -> str:
    """Format a size in MiB: `1,234 MiB`."""
    return f"{size / (1 << 20):,.0f} MiB"


def printable(text: str) -> str:
    """Return `text` with escapes for line breaks and control characters."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def quoted(text: str, most: int) -> str:
    """Return `text` as a printable JSON string; if it is longer than `most` characters, without its middle."""
    if len(text) > most:
        half = most // 2
        return f"{quoted(text[:half], half)} ({len(text) - most:,} characters) {quoted(text[-half:], half)}"
    return printable(json.dumps(text, ensure_ascii=False))
