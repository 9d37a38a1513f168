"""Steps that the trainings of the teacher and of the encoder share: rates, optimisers, counts of answers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from torch import Tensor, nn

from models.tiny.vision.batches import Asked
from models.tiny.vision.frozen import FrozenText

TEXT_MODEL = Path(__file__).parents[1] / "tiny-q8_0.gguf"


@dataclass(frozen=True)
class Rate:
    """The learning rate: it warms up, holds, and falls to zero over the last part, `decay`, of the steps."""

    steps: int
    peak: float
    warmup: int = 100
    decay: float = 0.4

    def at(self, step: int) -> float:
        """The rate of a step."""
        left = (self.steps - step) / max(1.0, self.steps * self.decay)
        return self.peak * max(0.0, min(1.0, (step + 1) / self.warmup, left))


def make_optimizers(model: nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of linear layers, AdamW for the rest."""
    linear = (m for name, m in model.named_modules() if isinstance(m, nn.Linear) and "heads" not in name)
    matrices = [layer.weight for layer in linear]
    known = {id(matrix) for matrix in matrices}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in known]
    return [
        torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.02, adjust_lr_fn="match_rms_adamw"),
    ]


def update(model: nn.Module, optimizers: list[torch.optim.Optimizer], rate: float) -> None:
    """One step by the gradients, which are cleared."""
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


@torch.no_grad()
def evaluate(
    text: FrozenText, cells: int, cells_of: Callable[[list[Asked]], Tensor], rows: Sequence[Asked]
) -> dict[str, float]:
    """By family, the share of answers of which every token is the model's first choice, given the right ones before."""
    right: Counter[str] = Counter()
    for start in range(0, len(rows), 50):
        part = list(rows[start : start + 50])
        batch = text.asked_about(part, cells)
        logits, targets, _ = text.answer_logits(cells_of(part).float(), batch)
        owner = torch.from_numpy(batch.weights).nonzero()[:, 0]
        wrong = set(owner[logits.argmax(-1) != targets].tolist())
        right.update(row.family for index, row in enumerate(part) if index not in wrong)
    return {family: round(right[family] / n, 3) for family, n in sorted(Counter(row.family for row in rows).items())}
