"""The loss plot of a training run."""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt


def smoothed(values: list[float], window: int) -> list[float]:
    """The running mean over the last `window` values."""
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    return [(sums[i + 1] - sums[max(0, i + 1 - window)]) / min(i + 1, window) for i in range(len(values))]


def plot_loss(log_path: Path, image: Path) -> None:
    """Draw loss and held-out exact match over tokens from the lines of a training log."""
    entries = [json.loads(line) for line in log_path.read_text().splitlines()]
    tokens = [entry["tokens"] / 1e6 for entry in entries]
    figure, (upper, lower) = plt.subplots(2, 1, figsize=(7, 7), sharex=True)
    upper.plot(tokens, smoothed([entry["loss"] for entry in entries], 50))
    upper.set_yscale("log")
    upper.set_ylabel("training loss (mean of 50 steps)")
    evaluated = [entry for entry in entries if "exact" in entry]
    for family in evaluated[0]["exact"] if evaluated else ():
        if family not in ("story", "instruct"):
            points = [(entry["tokens"] / 1e6, entry["exact"][family]) for entry in evaluated]
            lower.plot(*zip(*points, strict=True), marker=".", label=family)
    if evaluated:
        lower.legend()
    lower.set_ylabel("held-out exact match, teacher forced")
    lower.set_xlabel("million tokens")
    for axis in (upper, lower):
        axis.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(image, dpi=80)
    plt.close(figure)
