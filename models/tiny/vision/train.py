"""Train the small vision model on the CPU: `python -m models.tiny.vision.train` (needs the `train` extra).

    python -m models.tiny.vision.teacher --out outputs/tiny_vision             # first the teacher
    python -m models.tiny.vision.train --out outputs/tiny_vision               # then, about an hour of one core
    python -m models.tiny.vision.train --out outputs/tiny_vision --resume      # go on after an interruption

The encoder learns to make the teacher's cells of pictures, and in the last steps through the frozen text model. Helpers
that are thrown away read the letters off its patches, and what the picture shows off its cells. The learning rate
depends on the step alone, as in models/tiny/train.py. `--out` receives checkpoint.pt and log.jsonl.
"""

from __future__ import annotations

import argparse
import json
import logging
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from models.tiny.train import keep_log, save
from models.tiny.vision.batches import LETTERS, TOLD, Asked, PictureBatch, asked, pictures_of, told_of
from models.tiny.vision.frozen import FrozenText
from models.tiny.vision.network import Encoder, VisionShape
from models.tiny.vision.scenes import LONGEST
from models.tiny.vision.steps import TEXT_MODEL, Rate, evaluate, make_optimizers, update
from models.tiny.vision.teacher import Teacher, load_teacher

log = logging.getLogger("tiny.vision.train")


@dataclass(frozen=True)
class Plan:
    """What a run does. The last `reading` steps learn through the text model, and no longer from the teacher."""

    rate: Rate = field(default_factory=lambda: Rate(steps=6000, peak=4e-3))
    reading: int = 1500
    seed: int = 2
    rows: int = 48
    evaluate_every: int = 500
    save_every: int = 100
    evaluation_rows: int = 200


class Helpers(nn.Module):
    """Reads what a picture shows off its cells, and the letters off its patches; only for the training."""

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        width = shape.text_width
        self.queries = nn.Parameter(torch.randn(len(TOLD), width) * 0.1)
        self.keys = nn.Linear(width, width)
        self.values = nn.Linear(width, width)
        self.heads = nn.ModuleList(nn.Linear(width, classes) for classes in TOLD)
        self.place_heads = nn.Linear(shape.width, LONGEST + 1)
        self.letter_heads = nn.Linear(shape.width, len(LETTERS))

    def forward(self, cells: Tensor) -> list[Tensor]:
        """Logits [pictures, classes] for each of TOLD, of cells [pictures, cells, width]."""
        x = functional.layer_norm(cells, cells.shape[-1:])
        seen = torch.softmax(self.queries @ self.keys(x).transpose(-1, -2) * x.shape[-1] ** -0.5, dim=-1)
        found = seen @ functional.silu(self.values(x))
        return [head(found[:, index]) for index, head in enumerate(self.heads)]

    def loss(self, cells: Tensor, patches: Tensor, told: Tensor, batch: PictureBatch) -> dict[str, Tensor]:
        """How badly they read each thing, in nats."""
        told_by = [functional.cross_entropy(f.float(), t) for f, t in zip(self(cells), told.T, strict=True)]
        x = functional.layer_norm(patches, patches.shape[-1:])
        asked_of = {"place": (self.place_heads, batch.places), "letter": (self.letter_heads, batch.letters)}
        return {"told": torch.stack(told_by).mean()} | {
            name: functional.cross_entropy(head(x).float().flatten(0, 1), torch.from_numpy(right).view(-1))
            for name, (head, right) in asked_of.items()
        }


class Learner(nn.Module):
    """The encoder with its helpers."""

    def __init__(self, shape: VisionShape) -> None:
        super().__init__()
        self.encoder = Encoder(shape)
        self.helpers = Helpers(shape)

    def cells_of(self, rows: list[Asked]) -> Tensor:
        """The cells of the rows' pictures."""
        made: Tensor = self.encoder(torch.from_numpy(pictures_of(rows).pixels))[0]
        return made

    def losses(self, rows: list[Asked], teacher: Teacher | None, text: FrozenText | None) -> dict[str, Tensor]:
        """What is to become small, by name."""
        batch, told = pictures_of(rows), torch.from_numpy(told_of(rows))
        with torch.autocast("cpu", torch.bfloat16):
            cells, patches = self.encoder(torch.from_numpy(batch.pixels))
            made = self.helpers.loss(cells, patches, told, batch)
        if teacher is not None:
            wanted = teacher(told)
            made["taught"] = functional.mse_loss(cells, wanted) / (wanted - wanted.mean(0)).square().mean()
        if text is not None:
            made["answer"] = text.answer_loss(cells, text.asked_about(rows, self.encoder.shape.cells))
        return made


def drawn(plan: Plan, first: int) -> Iterator[tuple[int, list[Asked]]]:
    """Step `first`, `first + 1` ... and its rows; step k is the same whether the run was resumed or not."""
    for step in count(first):
        yield step, asked(plan.seed * 1_000_003 + step, plan.rows, "train")


def train(
    plan: Plan,
    out: Path,
    resume: bool,
    teacher: Path | None,
    text_model: Path = TEXT_MODEL,
    shape: VisionShape | None = None,
) -> Path:
    """Run a plan; returns the path of the last checkpoint."""
    out.mkdir(parents=True, exist_ok=True)
    checkpoint, log_path = out / "checkpoint.pt", out / "log.jsonl"
    torch.manual_seed(plan.seed)
    text = FrozenText(text_model)
    learner = Learner(shape or VisionShape(text_width=text.width))
    cells = learner.encoder.shape.cells
    taught_by = load_teacher(teacher, text, cells) if teacher else None
    optimizers = make_optimizers(learner, plan.rate.peak)
    first = 0
    if resume and checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        learner.encoder.load_state_dict(state["encoder"])
        learner.helpers.load_state_dict(state["helpers"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        first = state["step"]
    keep_log(log_path, first)
    heldout = asked(0, plan.evaluation_rows, "heldout")
    with log_path.open("a") as lines:
        for step, rows in islice(drawn(plan, first), plan.rate.steps - first):
            started = time.process_time()
            reading = step >= plan.rate.steps - plan.reading
            losses = learner.losses(rows, None if reading else taught_by, text if reading else None)
            torch.stack(list(losses.values())).sum().backward()
            update(learner, optimizers, plan.rate.at(step))
            entry: dict[str, Any] = {"step": step + 1} | {name: round(x.item(), 4) for name, x in losses.items()}
            entry["cpu_s"] = round(time.process_time() - started, 3)
            last = step + 1 == plan.rate.steps
            if last or (step + 1) % plan.evaluate_every == 0:
                entry["exact"] = evaluate(text, cells, learner.cells_of, heldout)
                log.info(json.dumps(entry))
            lines.write(json.dumps(entry) + "\n")
            lines.flush()
            if last or (step + 1) % plan.save_every == 0:
                kept = {"encoder": learner.encoder.state_dict(), "helpers": learner.helpers.state_dict()}
                kept["optimizers"] = [optimizer.state_dict() for optimizer in optimizers]
                save(checkpoint, kept | {"step": step + 1, "shape": asdict(learner.encoder.shape)})
    return checkpoint


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m models.tiny.vision.train", description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=Plan().rate.steps, help="optimiser steps (default %(default)s)")
    parser.add_argument("--reading", type=int, default=Plan.reading, help="of them through the text model")
    parser.add_argument("--out", type=Path, default=Path("outputs/tiny_vision"), help="directory (default %(default)s)")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--rate", type=float, default=Plan().rate.peak, help="peak learning rate (default %(default)s)")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(options.threads)
    plan = Plan(Rate(options.steps, options.rate), options.reading)
    teacher: Path = options.out / "teacher.pt"
    train(plan, options.out, options.resume, teacher if teacher.exists() else None)


if __name__ == "__main__":
    main()
